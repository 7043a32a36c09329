"""What a `TopicReader` raises. Invalid arguments raise ValueError or TypeError, calls in the wrong
order RuntimeError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from watchrelay.core.errors import SinkUnavailable, WatchrelayError


class ConsumerError(WatchrelayError):
    """The base of all errors of this package. The message is one line: what, where, cure."""


class KafkaUnavailable(ConsumerError):
    """No broker answers, or none accepts these credentials, or a right is missing."""


class NothingPublished(ConsumerError):
    """The control topic, a stream that was asked for, or a marker that proves it, is not there
    (yet)."""


class PositionsLost(ConsumerError):
    """The log no longer holds what leads to the saved positions: start without them, and forget
    what was built from them."""


class ObjectUnreadable(ConsumerError):
    """The value of an object is not JSON. Its bytes can still be read: `Change.value`,
    `Objects.value()`."""


@contextmanager
def own_errors() -> Iterator[None]:
    """SinkUnavailable is raised under the name that this package gives it."""
    try:
        yield
    except SinkUnavailable as error:
        raise KafkaUnavailable(str(error)) from error
