"""The errors of every package, sorted by what the caller does next. A library's own exceptions are
translated into these once, where the library is called, with `raise ... from`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from watchrelay.core.text import cut_within, printable
from watchrelay.core.trouble import Cause, Trouble


class WatchrelayError(Exception):
    """Anything that this program raises on purpose. The message is one line for an operator: what,
    where, cure. The attributes are those of the `trouble()` that it is while it lasts."""

    cause = Cause.OTHER
    subject = ""

    def __init__(self, message: str = "", *, cure: str = "") -> None:
        super().__init__(message)
        self.cure = cure

    def trouble(self, *, subject: str = "", operator: bool = False) -> Trouble:
        """What to show of it. `operator`: only an operator can end it."""
        return Trouble(subject or self.subject, self.cause, str(self), self.cure, operator)


# ---- the API server's side: what the watch does next ---------------------------------------------


class KubeError(WatchrelayError):
    """The API server, or the way to it, did not give what was asked. The classes named below are
    those of docs/watch-facts.md 6.4.

    `retry_after_s`: seconds that the server asked us to stay away, or 0. `what`: the message
    without the cure that may follow it.
    """

    reason = "error"
    cause = Cause.KUBERNETES

    def __init__(
        self, message: str, *, status: int = 0, retry_after_s: float = 0.0, cure: str = ""
    ) -> None:
        super().__init__(message + cure, cure=cure.strip(" ()"))
        self.what = message
        self.status = status
        self.retry_after_s = retry_after_s


class Unavailable(KubeError):
    """The endpoint is unreachable or answered as a broken server does: open the circuit breaker,
    keep the cursor, retry. Class A."""

    reason = "unavailable"


class Unreachable(Unavailable):
    """No connection came about: as `Unavailable`, but trying again costs no server anything, so it
    is done sooner."""


class Unanswered(Unavailable):
    """The request was taken, and no answer began in time. For a watch, what answers may hold its
    answer back until there is more of it: the next ones are short, for a while."""

    reason = "unanswered"


class Throttled(Unavailable):
    """429, 503 or 500: as `Unavailable`, and not before `retry_after_s`. Class B."""

    reason = "throttled"


class Interrupted(KubeError):
    """One response broke while the server is still up (a 5xx within a watch, inactivity): keep the
    cursor, retry, leave the circuit breaker alone."""

    reason = "interrupted"


class Expired(KubeError):
    """410, in either form: the history is gone; list again. Class C."""

    reason = "expired"


class VersionTooLarge(KubeError):
    """504 with cause ResourceVersionTooLarge: the server is behind the version asked for; wait,
    then list with none."""

    reason = "version_too_large"


class Unauthorized(KubeError):
    """401: re-read credentials once for all, then retry. Class E."""

    reason = "unauthorized"
    cause = Cause.CREDENTIALS


class Forbidden(KubeError):
    """403: a person must grant a right; keep what is held, retry slowly. Class F."""

    reason = "forbidden"
    cause = Cause.MISSING_RIGHT


class TransientlyForbidden(Interrupted):
    """403 for a request that was allowed before: API servers answer so for a second or two while
    they start. Retry quickly."""

    reason = "refused"


class NotFound(KubeError):
    """404 on a collection: the resource is not served (now); ask discovery. Class G."""

    reason = "not_found"
    cause = Cause.RESOURCE_NOT_SERVED


class Hidden(NotFound):
    """The same, while the resource's objects may exist: the server has them in another version, or
    in none that this release serves."""

    reason = "hidden"


class NotWatchable(KubeError):
    """405, a missing `watch` verb, or a list without resourceVersion: a person must change the
    config. Class H, T12."""

    reason = "not_watchable"
    cause = Cause.ENTRY_UNUSABLE


class NotAcceptable(KubeError):
    """406: ask again without the metadata-only representation, and trim here. Class I."""

    reason = "not_acceptable"
    cause = Cause.ENTRY_UNUSABLE


class Invalid(KubeError):
    """400 or 422. Class J. `about`: what was refused: "streaming" (sendInitialEvents), "continue",
    "version" (resourceVersion), or "selector" (and all else)."""

    reason = "invalid"
    cause = Cause.ENTRY_UNUSABLE

    def __init__(
        self,
        message: str,
        *,
        about: str = "selector",
        status: int = 0,
        retry_after_s: float = 0.0,
        cure: str = "",
    ) -> None:
        super().__init__(message, status=status, retry_after_s=retry_after_s, cure=cure)
        self.about = about


class Misconfigured(KubeError):
    """TLS verification, kubeconfig or exec plugin is wrong: a person must act; retry slowly with a
    re-read. Class K. `status` is 401 where that answer had us look for another credential."""

    reason = "misconfigured"
    cause = Cause.CREDENTIALS


class NoFilesLeft(Misconfigured):
    """This process has no file descriptor left for a connection."""

    cause = Cause.OTHER


class Undecodable(KubeError):
    """A line or page that does not follow the protocol. Class L. `about`: namespace and name of the
    one object that it concerns, None where they cannot be read."""

    reason = "undecodable"

    def __init__(self, message: str, *, about: tuple[str, str] | None = None) -> None:
        super().__init__(message)
        self.about = about


# ---- Kafka's side --------------------------------------------------------------------------------


class SinkError(WatchrelayError):
    """Kafka, or the way to it, did not give what was asked."""

    cause = Cause.KAFKA


class SinkUnavailable(SinkError):
    """No broker answers (or refuses our credentials): keep the state, retry without end, report
    it."""


class SinkMisconfigured(SinkUnavailable):
    """Our files, credentials or trust do not fit the brokers: tried again all the same, but a
    person must mend it."""


class SinkForbidden(SinkMisconfigured):
    """The brokers know us, and this user lacks a right: what needs it waits for a person to grant
    it, all else goes on."""

    cause = Cause.TOPIC_UNUSABLE


class TransactionOpen(SinkUnavailable):
    """A transaction that a program leaves open holds back the records after it: what reads them
    tries again until it ends."""

    cause = Cause.TOPIC_UNUSABLE


class RecordTooLarge(SinkError):
    """The record at `index` of the batch given does not fit the topic, by its `setting`.

    `acked`: offsets of the records before it that were acknowledged, a prefix of the batch; nothing
    from there on was appended. Trim the record, then deliver again what follows the prefix, or
    everything, under the same positions.
    """

    def __init__(
        self,
        message: str,
        *,
        index: int,
        acked: Sequence[int] = (),
        setting: str = "max.message.bytes",
    ) -> None:
        super().__init__(message)
        self.index, self.setting = index, setting
        self.acked = tuple(acked)


class TopicRefused(SinkError):
    """A topic is missing, has a dangerous config, or another shape than pinned: that stream waits
    for a person."""

    cause = Cause.TOPIC_UNUSABLE


class TopicLost(SinkError):
    """A topic was deleted, or deleted and recreated, while it was written or read: start again
    without its former content."""

    def __init__(self, topic: str, why: str) -> None:
        super().__init__(f"topic {topic} was deleted or recreated: {why}")
        self.topic = topic


class EpochSpoiled(SinkError):
    """A record that this process did not write has the stream's epoch: readers ignore the relay's
    own records up to its sequence. Claim a new epoch, and list."""

    def __init__(self, stream: str, partition: int, epoch: int, sequence: int) -> None:
        super().__init__(
            f"stream {stream}: partition {partition} holds a record with epoch {epoch} and "
            f"sequence {sequence}, and this relay, whose epoch that is, did not write it: a new "
            "epoch is claimed; find out who else may write to the topic, or whether brokers lost "
            "records of the control topic"
        )


class Fenced(SinkError):
    """A newer writer owns the stream: this one stops writing it. A single relay then ends with exit
    code 75; a replica makes the stream a standby."""


class ForeignRecords(Fenced):
    """The topic holds records that no claim on the control topic explains: the stream waits for an
    operator, the others go on."""

    cause = Cause.TOPIC_UNUSABLE


class EpochAhead(ForeignRecords):
    """A partition holds a record of a higher epoch than that of the stream's newest claim: of a
    newer relay whose claim was not read yet, or of a writer that does not use this control
    topic."""

    def __init__(self, stream: str, found: int, claimed: int) -> None:
        super().__init__(
            f"stream {stream}: its topic holds a record of epoch {found}, its newest claim has "
            f"epoch {claimed}: stop the other writer, then delete the record stream/{stream} from "
            f"the control topic: this relay continues above epoch {found}"
        )


class Shared(ForeignRecords):
    """The stream's topic holds records of another cluster. An operator must name another topic."""


class NotRelayed(WatchrelayError):
    """No relay writes the streams that a command asked it about."""


class Died(WatchrelayError):
    """A task that must not end has ended: a bug. The process exits and is restarted."""


def first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error of which the others are the consequence: the first one that is not of a task which
    was cancelled for it (asyncio.TaskGroup appends the error of its own body after these)."""
    first: BaseException = group.split(Died)[1] or group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


def fenced_by(group: BaseExceptionGroup[BaseException], message: str = "") -> Fenced:
    """What to raise for a group that holds a `Fenced`: its `ForeignRecords` if it holds one, else a
    `Fenced` with `message`, or with that of the first one in the group."""
    first = first_cause(group.subgroup(ForeignRecords) or group.subgroup(Fenced) or group)
    return first if isinstance(first, ForeignRecords) else Fenced(message or str(first))


PERSON: Final = (
    Forbidden,
    Invalid,
    Misconfigured,
    NotWatchable,
    Unauthorized,
    SinkMisconfigured,
    TopicRefused,
)
"""What does not come back by itself: a person must grant, correct or allow something."""


class RecordRefused(WatchrelayError):
    """A record on a topic does not follow the contract; the message names the rule."""


# ---- the operator's side -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing wrong with the config, for people. Path is dotted, as written in the file; line
    counts from 1."""

    message: str
    path: str = ""
    source: str = ""
    line: int | None = None
    hint: str = ""

    def __str__(self) -> str:
        line = "" if self.line is None else f":{self.line}"
        where = f"{self.source}{line}: " if self.source or line else ""
        what = cut_within(f"{self.path}: {self.message}" if self.path else self.message)
        # It is one short line, whatever a file holds.
        return printable(f"{where}{what}" + (f" ({cut_within(self.hint)})" if self.hint else ""))


class ConfigError(WatchrelayError):
    """The configuration cannot be used; carries every problem found, in file order."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)

    @classmethod
    def of(
        cls, message: str, path: str = "", source: str = "", line: int | None = None, hint: str = ""
    ) -> ConfigError:
        """The error for a single problem."""
        return cls([ConfigProblem(message, path, source, line, hint)])
