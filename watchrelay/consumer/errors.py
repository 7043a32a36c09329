"""What a `TopicReader` raises. Invalid arguments raise ValueError or TypeError, calls in the wrong
order RuntimeError."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from watchrelay.core.errors import SinkUnavailable, WatchrelayError
from watchrelay.core.text import listed, printable


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


def no_record_of(streams: Sequence[str]) -> str:
    """That nothing is on the topic of these described streams, and the cure. It proves no empty
    state: where records were removed, a relay that runs, or starts again, publishes the objects."""
    names, first = printable(listed(streams, shown=3, what="stream")), printable(streams[0])
    return (
        f"no record of {names} is there: start the relay, or, if none is to write it, "
        f"watchrelay retire {first}"
    )


@contextmanager
def own_errors() -> Iterator[None]:
    """SinkUnavailable is raised under the name that this package gives it."""
    try:
        yield
    except SinkUnavailable as error:
        raise KafkaUnavailable(str(error)) from error
