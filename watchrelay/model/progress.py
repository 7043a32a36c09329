"""How far one stream is, as a value that its parts decide by; a status only shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

State = Literal["waiting", "listing", "resuming", "watching", "backoff", "standby", "stopped"]


class StreamProgress:
    """Of one run of a stream; its runner gives it to the watch, the writer and the group.

    `list_due`: a list is under way, or must come: set by the watch, read by the writer. `whole`:
    Kafka has acknowledged the whole state since the stream began. `next_acked` is called once, with
    the next acknowledgement. `entered` is called with each new state.
    """

    __slots__ = ("_state", "entered", "list_due", "next_acked", "whole")

    def __init__(self) -> None:
        self._state: State = "waiting"
        self.list_due = self.whole = False
        self.next_acked: Callable[[], None] | None = None
        self.entered: Callable[[State], None] = _unshown

    @property
    def state(self) -> State:
        """What the stream does now."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        if state != self._state:
            self._state = state
            self.entered(state)

    def acked(self) -> None:
        """Kafka has acknowledged records of the stream."""
        acked, self.next_acked = self.next_acked, None
        if acked is not None:
            acked()

    def renew(self) -> None:
        """The stream begins again, perhaps with other objects."""
        self.state, self.whole, self.next_acked = "waiting", False, None


def _unshown(_state: State) -> None:
    """No status shows it."""
