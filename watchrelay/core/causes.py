"""Why a stream, or the whole process, is in trouble, as a value: the status page, `/readyz` and the
advice for operators read it, never the text of a message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class CauseKind(StrEnum):
    """What is wrong; the values are those of `cause` in `/api/overview`."""

    MISSING_RIGHT = "right"
    RESOURCE_NOT_SERVED = "resource"
    TOPIC_UNUSABLE = "topic"
    ENTRY_UNUSABLE = "entry"
    CONFIG_REFUSED = "reload"
    DUPLICATE_ENTRY = "config"
    KUBERNETES = "kubernetes"
    CREDENTIALS = "credentials"
    KAFKA = "kafka"
    CONTROL_TOPIC = "control"
    SIGNAL_TOPIC = "signal"
    GROUP = "group"
    BACKLOG = "behind"
    RESTART_NEEDED = "restart"
    INTERNAL = "internal"
    OTHER = "other"

    @classmethod
    def _missing_(cls, _value: object) -> CauseKind:
        return cls.OTHER


@dataclass(frozen=True, slots=True)
class Cause:
    """A kind of trouble, the resource, topic or config entry that it concerns, and the verb of the
    request that was refused; "" when not known."""

    kind: CauseKind
    subject: str = ""
    verb: str = ""

    def about(self, subject: str, verb: str = "") -> Cause:
        """The same kind of trouble, with its arguments."""
        return replace(self, subject=subject, verb=verb)


MISSING_RIGHT = Cause(CauseKind.MISSING_RIGHT)
RESOURCE_NOT_SERVED = Cause(CauseKind.RESOURCE_NOT_SERVED)
TOPIC_UNUSABLE = Cause(CauseKind.TOPIC_UNUSABLE)
ENTRY_UNUSABLE = Cause(CauseKind.ENTRY_UNUSABLE)
KUBERNETES = Cause(CauseKind.KUBERNETES)
CREDENTIALS = Cause(CauseKind.CREDENTIALS)
KAFKA = Cause(CauseKind.KAFKA)
GROUP = Cause(CauseKind.GROUP)
INTERNAL = Cause(CauseKind.INTERNAL)
OTHER = Cause(CauseKind.OTHER)
