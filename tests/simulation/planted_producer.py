"""Producers in which one rule is broken, to see that the simulation of the producer finds it.

`PLANTS`: for each rule of the produce path, what breaks it, and the sign by which it must be found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from watchrelay.contract.wire import Receipt
from watchrelay.core.errors import RecordTooLarge
from watchrelay.kafka.client.record_batch import Packer
from watchrelay.kafka.partition import (
    STEPS,
    Delivery,
    Effect,
    Identity,
    Pack,
    Partition,
    Phase,
    Renew,
    Step,
)
from watchrelay.kafka.producer import Producer


@dataclass(frozen=True, slots=True)
class ProducerPlant:
    """One broken rule. `signs` are parts of lines of what was broken; other lines do not
    count."""

    about: str
    kind: type[Producer]
    signs: tuple[str, ...]

    def shown_by(self, broken: Iterable[str]) -> bool:
        """Whether what was broken says so."""
        return any(sign in line for line in broken for sign in self.signs)


def with_partitions(kind: type[Partition]) -> type[Producer]:
    """A producer with partitions of that class."""
    return type("Planted", (Producer,), {"partition_class": kind})


# ---- the bytes of a batch ------------------------------------------------------------------------


class StampsAgain(Partition):
    """A batch that is sent again gets the next sequence."""

    def take(self) -> bytes:
        if self.batch is not None:
            self.batch.data = b""
        return super().take()


class PacksAgain(Partition):
    """Where a batch is sent again, the next one leaves under its sequence."""

    def take(self) -> bytes:
        data, batch = super().take(), self.batch
        if data and batch is not None and batch.tries > 1 and self.identity is not None:
            for waiting in [*self.deliveries][self.in_flight :]:
                other = Packer().pack(waiting.left, most=9, limits=self.limits, now_ms=0)
                assert not isinstance(other, int)
                other.stamp(*self.identity, batch.sequence)
                return other.data
        return data


class TakesTheNewest(Partition):
    """Not the oldest batch is sent, but the newest."""

    def pack(self, pack: Pack, now_ms: int, now_s: float) -> tuple[Delivery, RecordTooLarge] | None:
        self.deliveries.rotate(1)
        return super().pack(pack, now_ms, now_s)


# ---- what may be in the log ----------------------------------------------------------------------


class TrustsSilence(Partition):
    """A batch without an answer is taken for one that is not in the log."""

    def unanswered(self) -> tuple[Effect, ...]:
        effects = super().unanswered()
        self._sent().unresolved = False
        return effects


class DoesNotLook(Partition):
    """A batch that may be in the log is refused without looking for it."""

    def answered(self, code: int, offset: int) -> tuple[Effect, ...]:
        effects = super().answered(code, offset)
        return self.located(None, code) if self.phase is Phase.LOCATING else effects


class UsesTheSequenceAgain(Partition):
    """A batch that may be in the log is handed back, and the next one gets its sequence."""

    def _not_appended(self, code: int) -> tuple[Effect, ...]:
        batch = self._sent()
        if STEPS.get(code, Step.REFUSE) is Step.REFUSE:
            batch.unresolved = False
        return super()._not_appended(code)


# ---- duplicates ----------------------------------------------------------------------------------


class SendsDuplicatesAgain(Partition):
    """What the broker has already is sent once more, under another identity."""

    def answered(self, code: int, offset: int) -> tuple[Effect, ...]:
        if STEPS.get(code) is Step.DUPLICATE:
            self.phase = Phase.RENEWING
            return (Renew(doubtful=True),)
        return super().answered(code, offset)


class GuessesTheOffset(Partition):
    """What the broker has already is where it was expected."""

    def answered(self, code: int, offset: int) -> tuple[Effect, ...]:
        if STEPS.get(code) is Step.DUPLICATE and offset < 0 <= self.expected:
            return (self._appended(self.expected),)
        return super().answered(code, offset)


# ---- identities ----------------------------------------------------------------------------------


class KeepsTheSequence(Partition):
    """Another identity goes on with the sequence of the former, as it does with the batch."""

    def renewed(self, identity: Identity) -> tuple[Effect, ...]:
        batch = self.batch
        data, self.identity = batch.data if batch is not None else b"", identity
        effects = super().renewed(self.identity)
        if batch is not None:
            batch.data = data
        return effects


class RenewsAll(Producer):
    """One identity that is refused is replaced for all partitions."""

    def _perform(self, partition: Partition, effects: Iterable[Effect]) -> None:
        effects = tuple(effects)
        super()._perform(partition, effects)
        if any(isinstance(each, Renew) for each in effects):
            for other in self.partitions.values():
                if other.phase is Phase.IDLE:
                    other.phase = Phase.RENEWING
                    self._spawn(self._renew(other), "producer-identity")


class RemembersNobody(Producer):
    """A partition that was forgotten begins at sequence 0 under the identity that wrote it."""

    def forget(self, topic: str) -> list[Any]:
        identity = self.leaders.identity
        forgotten = super().forget(topic)
        self.leaders.identity = identity
        return forgotten


# ---- the end -------------------------------------------------------------------------------------


class LeavesLinksOpen(Producer):
    """A cut takes nothing more from streams, and lets the links be."""

    def cut(self) -> None:
        if self._is_cut:
            super().cut()
        self._is_cut = True


class AnswersTwice(Partition):
    """A batch whose answer was lost is answered, and goes on."""

    def unanswered(self) -> tuple[Effect, ...]:
        for each in [*self.deliveries][: self.in_flight]:
            if each.done is not None:
                each.done(Receipt([]))
        return super().unanswered()


PLANTS: dict[str, ProducerPlant] = {
    "sequence": ProducerPlant(
        "a batch is sent again under another sequence",
        with_partitions(StampsAgain),
        ("is in the log 2 times", "is in the log 3 times"),
    ),
    "bytes": ProducerPlant("other bytes are sent under the same sequence", with_partitions(PacksAgain), ("other bytes",)),
    "order": ProducerPlant("a newer batch overtakes", with_partitions(TakesTheNewest), ("before an older one",)),
    "silence": ProducerPlant(
        "no answer means not written",
        with_partitions(TrustsSilence),
        ("is in the log 2 times", "was refused, and is in the log", "is reported at"),
    ),
    "look": ProducerPlant(
        "what may be written is not looked for",
        with_partitions(DoesNotLook),
        ("is in the log 2 times", "was refused, and is in the log"),
    ),
    "reuse": ProducerPlant(
        "a sequence is used again that may be written",
        with_partitions(UsesTheSequenceAgain),
        ("is reported at",),
    ),
    "duplicate": ProducerPlant(
        "a duplicate is sent again",
        with_partitions(SendsDuplicatesAgain),
        ("is in the log 2 times", "is in the log 3 times"),
    ),
    "offset": ProducerPlant("the offset of a duplicate is guessed", with_partitions(GuessesTheOffset), ("is reported at",)),
    "identity": ProducerPlant(
        "what is renewed is not stamped again",
        with_partitions(KeepsTheSequence),
        ("is not answered", "another identity"),
    ),
    "all": ProducerPlant("one refused identity is replaced for all", RenewsAll, ("although no broker refused",)),
    "forgotten": ProducerPlant("a forgotten partition begins at 0 again", RemembersNobody, ("is reported at",)),
    "cut": ProducerPlant("bytes leave after the cut", LeavesLinksOpen, ("after the cut",)),
    "twice": ProducerPlant("a batch is answered twice", with_partitions(AnswersTwice), ("and nobody waits",)),
}  # fmt: skip
