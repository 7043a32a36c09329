"""The admin server over a status registry that a test fills by hand, served as the daemon serves it."""

from collections.abc import Callable
from typing import Self, TypeVar

from tests.support.loopthread import LoopThread
from watchrelay.core import clock
from watchrelay.core.timestamps import rfc3339
from watchrelay.observe.group import GroupStatus, MemberStatus
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.overview import About
from watchrelay.observe.server import AdminServer
from watchrelay.observe.status import Readiness, StatusRegistry, StreamStatus

T = TypeVar("T")


def live(statuses: StatusRegistry, stream: str, topic: str = "") -> StreamStatus:
    """A row of a stream that has nothing to complain of."""
    status = statuses.open(stream, topic or f"k8s.test.core.{stream}")
    status.progress.state, status.progress.whole, status.epoch, status.owner, status.objects = (
        "watching",
        True,
        7,
        "relay-1",
        12,
    )
    status.frontier, status.last_snapshot = "1004", rfc3339(clock.wall_ms() - 90_000)
    return status


def shared(statuses: StatusRegistry, *, other: str = "relay-2") -> None:
    """Two replicas share the streams; the other one writes `nodes`."""
    status = statuses.open("nodes", "k8s.test.core.nodes")
    status.progress.state, status.owner, status.objects = "standby", other, 5
    members = (
        MemberStatus("relay-1", 3, 1_000, "aaaa", True, False, 1, ("pods",)),
        MemberStatus(other, 3, 2_000, "bbbb", False, True, 1, ("nodes",)),
    )
    statuses.group = GroupStatus("relay-1", 3, 12, "relay-1", True, members)


class RunningAdminServer:
    """An admin server on a thread of its own; a context manager. The registry is changed by `do`, on that
    thread."""

    def __init__(self, *, cluster: str = "test") -> None:
        self.statuses = StatusRegistry()
        readiness = Readiness(self.statuses, started=True)
        about = About(cluster, "relay-1", "0.0.0", clock.wall_ms())
        self.server = AdminServer(
            statuses=self.statuses, readiness=readiness, metrics=Metrics(), about=about
        )
        self.port = 0
        self._thread = LoopThread("admin server")

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}/"

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._thread.run(self.server.start("127.0.0.1", 0))
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._thread.stop()

    def close(self) -> None:
        """It closes, as when the daemon ends."""
        self._thread.run(self.server.close())

    def do(self, change: Callable[[], T]) -> T:
        """What `change` returns, run on its thread."""
        return self._thread.call(change)
