"""Room: test support.  In: a board that a test fills by hand.  Out: the window over it, served as the daemon serves it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from watchrelay import clock
from watchrelay.observe.health import Readiness
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.overview import About
from watchrelay.observe.server import WindowServer
from watchrelay.observe.status import Board, StreamStatus

T = TypeVar("T")

_CALL_TIMEOUT_S = 20.0


def live(board: Board, stream: str, topic: str = "") -> StreamStatus:
    """A row of a stream that has nothing to complain of."""
    status = board.open(stream, topic or f"k8s.test.core.{stream}")
    status.state, status.complete, status.epoch, status.owner, status.objects = "watching", True, 7, "relay-1", 12
    status.frontier, status.last_snapshot = "1004", clock.rfc3339(clock.wall_ms() - 90_000)
    return status


class Window:
    """A window on a thread of its own; a context manager. The board is changed by `do`, on that thread."""

    def __init__(self, *, cluster: str = "test") -> None:
        self.board = Board()
        readiness = Readiness(self.board, started=True)
        about = About(cluster, "relay-1", "0.0.0", clock.wall_ms())
        self.server = WindowServer(board=self.board, readiness=readiness, metrics=Metrics(), about=about)
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="window", daemon=True)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}/"

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._on_loop(self.server.start("127.0.0.1", 0))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_TIMEOUT_S)
        self._loop.close()

    def close(self) -> None:
        """The window closes, as when the daemon ends."""
        self._on_loop(self.server.close())

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_TIMEOUT_S)

    def do(self, change: Callable[[], T]) -> T:
        """What `change` returns, run on the window's thread."""

        async def step() -> T:
            return change()

        return self._on_loop(step())
