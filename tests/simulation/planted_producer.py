"""Producers in which one rule is broken, to see that the simulation of the producer finds it.

`PLANTS`: for each rule of the produce path, what breaks it, and the sign by which it must be found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from watchrelay.kafka.client.link import Link
from watchrelay.kafka.produce_state import (
    STEPS,
    Effect,
    Identity,
    PartitionState,
    Phase,
    Renew,
    Settled,
    Step,
)
from watchrelay.kafka.producer import CUT, Producer


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


def with_state(state: type[PartitionState]) -> type[Producer]:
    """A producer whose partitions have that state."""

    class Planted(Producer):
        """As the real one otherwise."""

        def _new_state(self) -> PartitionState:
            return state()

    return Planted


# ---- the bytes of a batch ------------------------------------------------------------------------


class StampsAgain(PartitionState):
    """A batch that is sent again gets the next sequence."""

    def take(self) -> bytes:
        if self.in_flight is not None:
            self.in_flight.data = b""
        return super().take()


class PacksAgain(PartitionState):
    """Where a batch is sent again, the next one leaves under its sequence."""

    def take(self) -> bytes:
        data, batch = super().take(), self._batch()
        if batch.tries > 1 and self.queue and self.identity is not None:
            return self.queue[0].packed.stamped(*self.identity, batch.sequence)
        return data


class TakesTheNewest(PartitionState):
    """Not the oldest batch is sent, but the newest."""

    def take(self) -> bytes:
        if self.in_flight is None:
            self.queue.rotate(1)
        return super().take()


# ---- what may be in the log ----------------------------------------------------------------------


class TrustsSilence(PartitionState):
    """A batch without an answer is taken for one that is not in the log."""

    def unanswered(self) -> tuple[Effect, ...]:
        effects = super().unanswered()
        self._batch().unresolved = False
        return effects


class DoesNotLook(PartitionState):
    """A batch that may be in the log is refused without looking for it."""

    def answered(self, code: int, offset: int) -> tuple[Effect, ...]:
        effects = super().answered(code, offset)
        return self.located(None) if self.phase is Phase.LOCATING else effects


class UsesTheSequenceAgain(PartitionState):
    """A batch that may be in the log is handed back, and the next one gets its sequence."""

    def _not_written(self, code: int) -> tuple[Effect, ...]:
        batch = self._batch()
        if STEPS.get(code, Step.REFUSE) is Step.REFUSE:
            batch.unresolved = False
        return super()._not_written(code)


# ---- duplicates ----------------------------------------------------------------------------------


class SendsDuplicatesAgain(PartitionState):
    """What the broker has already is sent once more, under another identity."""

    def answered(self, code: int, offset: int) -> tuple[Effect, ...]:
        if STEPS.get(code) is Step.DUPLICATE:
            self.phase = Phase.RENEWING
            return (Renew(doubtful=True),)
        return super().answered(code, offset)


class GuessesTheOffset(PartitionState):
    """What the broker has already is where it was expected."""

    def answered(self, code: int, offset: int) -> tuple[Effect, ...]:
        if STEPS.get(code) is Step.DUPLICATE and offset < 0 <= self.expected:
            return (self._written(self.expected),)
        return super().answered(code, offset)


# ---- identities ----------------------------------------------------------------------------------


class KeepsTheSequence(PartitionState):
    """Another identity goes on with the sequence of the former, as it does with the batch."""

    def renewed(self, identity: Identity) -> tuple[Effect, ...]:
        batch = self.in_flight
        data, self.identity = batch.data if batch is not None else b"", identity
        effects = super().renewed(self.identity)
        if batch is not None:
            batch.data = data
        return effects


class RenewsAll(Producer):
    """One identity that is refused is replaced for all partitions."""

    def _perform(self, partition: Any, effects: Iterable[Effect]) -> None:
        effects = tuple(effects)
        super()._perform(partition, effects)
        if any(isinstance(each, Renew) for each in effects):
            for other in self._partitions.values():
                state = other.state
                if other is not partition and state.phase is Phase.NONE and not state.in_flight:
                    state.phase = Phase.RENEWING
                    self._spawn(self._renew(other), "producer-identity")


class RemembersNobody(Producer):
    """A partition that was forgotten begins at sequence 0 under the identity that wrote it."""

    def forget(self, topic: str) -> None:
        identity = self._identity
        super().forget(topic)
        self._identity = identity


# ---- the end -------------------------------------------------------------------------------------


class LeavesLinksOpen(Producer):
    """A cut answers everybody, and lets the links be."""

    def cut(self) -> None:
        links: dict[int, Link] = dict(self._links)
        self._links.clear()
        super().cut()
        self._is_cut = not links
        self._links.update(links)


class AnswersTwice(PartitionState):
    """A batch whose answer was lost is answered as refused, and goes on."""

    def unanswered(self) -> tuple[Effect, ...]:
        return Settled(self._batch(), -1, CUT), *super().unanswered()


PLANTS: dict[str, ProducerPlant] = {
    "sequence": ProducerPlant(
        "a batch is sent again under another sequence",
        with_state(StampsAgain),
        ("is in the log 2 times", "is in the log 3 times"),
    ),
    "bytes": ProducerPlant(
        "other bytes are sent under the same sequence", with_state(PacksAgain), ("other bytes",)
    ),
    "order": ProducerPlant(
        "a newer batch overtakes", with_state(TakesTheNewest), ("before an older one",)
    ),
    "silence": ProducerPlant(
        "no answer means not written",
        with_state(TrustsSilence),
        ("was refused, and is in the log", "is reported at"),
    ),
    "look": ProducerPlant(
        "what may be written is not looked for",
        with_state(DoesNotLook),
        ("was refused, and is in the log",),
    ),
    "reuse": ProducerPlant(
        "a sequence is used again that may be written",
        with_state(UsesTheSequenceAgain),
        ("is reported at",),
    ),
    "duplicate": ProducerPlant(
        "a duplicate is sent again",
        with_state(SendsDuplicatesAgain),
        ("is in the log 2 times", "is in the log 3 times"),
    ),
    "offset": ProducerPlant(
        "the offset of a duplicate is guessed", with_state(GuessesTheOffset), ("is reported at",)
    ),
    "identity": ProducerPlant(
        "what is renewed is not stamped again",
        with_state(KeepsTheSequence),
        ("is not answered", "another identity"),
    ),
    "all": ProducerPlant(
        "one refused identity is replaced for all", RenewsAll, ("although no broker refused",)
    ),
    "forgotten": ProducerPlant(
        "a forgotten partition begins at 0 again", RemembersNobody, ("is reported at",)
    ),
    "cut": ProducerPlant("bytes leave after the cut", LeavesLinksOpen, ("after the cut",)),
    "twice": ProducerPlant(
        "a batch is answered twice", with_state(AnswersTwice), ("and nobody waits",)
    ),
}
