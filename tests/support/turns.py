"""The longest turn of an event loop: how long whatever else runs on it, as `/livez`, had to wait."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

TURN_S_MAX: Final = 0.2
"""Of any input from outside, and any object up to 4 MiB, on the machine that `slowness` is 1 of."""
PLAYS: Final = 2
"""How often input holds the loop before that is its fault."""
_WORK, _WORK_S = 200_000, 0.015
"""A fixed loop, and what it takes on that machine."""
_MEMORY, _MEMORY_S = 16 << 20, 0.007
"""The same of fresh memory, in bytes: it is read and written by what decodes large input."""
_LOOK_S = 0.02
_TOO_LONG = "a turn of the loop took"


def slowness() -> float:
    """How many times as long as there fixed work takes here and now, in CPU time; at least 1. What
    decodes large input computes for half of it, and has memory for the other half."""
    computing = _median_s(lambda: sum(number * number % 7 for number in range(_WORK))) / _WORK_S
    memory = _median_s(lambda: bytes(_MEMORY).count(b"x")) / _MEMORY_S
    return max(1.0, (computing + memory) / 2)


def _median_s(work: Callable[[], object]) -> float:
    times_s = []
    for _ in range(5):
        began_s = time.thread_time()
        work()
        times_s.append(time.thread_time() - began_s)
    return sorted(times_s)[2]


class TurnLoop(asyncio.SelectorEventLoop):
    """An event loop that measures its turns, in CPU time of its own thread: neither other processes
    nor other threads count. What the process held before is no work of the garbage collector: in a
    process of thousands of tests one collection takes longer than a turn may."""

    def __init__(self) -> None:
        super().__init__()
        gc.collect()
        gc.freeze()
        self.longest_s = 0.0
        self.longest_stack = ""
        """Where the longest turn was when it was looked at last."""
        self._turn, self._stack, self._measures, self._over = 0, "", True, False
        self._slow = 1.0
        """`slowness` right after the longest turn: other processes may be gone later."""
        self._thread = 0
        self._ended = threading.Event()
        threading.Thread(target=self._look, name="look at turns", daemon=True).start()

    def _run_once(self) -> None:
        self._thread, self._stack = threading.get_ident(), ""
        self._turn, self._measures = self._turn + 1, not self._over
        began_s = time.thread_time()
        super()._run_once()  # type: ignore[misc]  # private, and what every event loop of asyncio runs by
        took_s = time.thread_time() - began_s
        if took_s > self.longest_s and self._measures:
            self.longest_s, self.longest_stack = took_s, self._stack
            if took_s > TURN_S_MAX:
                self._slow = slowness()

    def begin(self) -> None:
        """Measure from the next turn on."""
        self.longest_s, self.longest_stack, self._measures = 0.0, "", False
        self._slow = 1.0

    def end(self) -> None:
        """Measure no more, from this turn on."""
        self._measures, self._over = False, True

    def close(self) -> None:
        self._ended.set()
        super().close()

    def _look(self) -> None:
        """Keep the stack of a turn that goes on."""
        seen = -1
        while not self._ended.wait(_LOOK_S):
            turn, frame = self._turn, sys._current_frames().get(self._thread)
            if turn == seen and frame is not None:
                stack = traceback.format_stack(frame)
                if "selectors.py" not in stack[-1]:
                    self._stack = "".join(stack[-8:])
            seen = turn

    def too_long(self, limit_s: float = TURN_S_MAX) -> str:
        """What is wrong with the longest turn so far, "" where it is within `limit_s`, scaled by
        `slowness`."""
        if self.longest_s <= limit_s:
            return ""
        if self.longest_s <= limit_s * (slow := max(self._slow, slowness())):
            return ""
        return (
            f"{_TOO_LONG} {self.longest_s:.3f} s of CPU, {limit_s * slow:.3f} s are "
            f"allowed here (slowness {slow:.2f}):\n{self.longest_stack}"
        )


def held_by(play: Callable[[TurnLoop], Coroutine[Any, Any, object]]) -> str:
    """What is wrong with the longest turn while `play` ran, "" where it is within the limit. A turn
    that is too long is played again: what else the machine does lengthens one turn, input that
    holds the loop does so each time."""
    wrong = ""
    for _ in range(PLAYS):
        with asyncio.Runner(loop_factory=TurnLoop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, TurnLoop)
            runner.run(play(loop))
        if not (wrong := loop.too_long()):
            break
    return wrong


def are_turns(broken: Sequence[str]) -> bool:
    """Whether turns that are too long are all that was found: to be played again, as `held_by`
    does."""
    return bool(broken) and all(_TOO_LONG in each for each in broken)
