"""What is wrong, as one value, wherever it is noticed: the status page, `/readyz`, the log, Kafka's
side and the checks of commands carry it, and judge it by its cause, never by the text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """A kind of trouble; the values are those of `cause` in `/api/overview`."""

    MISSING_RIGHT = "right"
    RESOURCE_NOT_SERVED = "resource"
    TOPIC_UNUSABLE = "topic"
    TOPIC_SETTING = "setting"
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
    CLOCK = "clock"
    RESTART_NEEDED = "restart"
    INTERNAL = "internal"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with `subject`: a topic, partition, resource or entry of the config; "" for the
    process, or where it is not known.

    `message`: one line for an operator: what, where, and the cure. `cure`: that alone, where it is
    more exact than the advice for the cause. `operator`: only an operator can end it. `since_ms`,
    `at_ms`: when it began and was last reported, in wall milliseconds, once it is held.
    """

    subject: str
    cause: Cause
    message: str
    cure: str = ""
    operator: bool = False
    since_ms: int = 0
    at_ms: int = 0
