"""What of a comparison with the cluster no log of a real broker shows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.daemon.conftest import settings_of
from tests.unit.store.frames import WIDGETS, frame
from watchrelay.admin.compare import compare_with_cluster
from watchrelay.consumer.audit import Audit
from watchrelay.contract.control_state import Origin
from watchrelay.core.errors import Interrupted
from watchrelay.model.frames import Page
from watchrelay.plan.streams import plan_streams


class OnePartition:
    """A stream of two partitions, of which the topic has one."""

    def __init__(self) -> None:
        self.audit = Audit("pods", "t", 0, origin=Origin(), partitions=2)

    def of(self, _stream: str) -> list[Audit]:
        return [self.audit]


class Cluster:
    """With `endless`, there are always more pages, as it says: the same one each time."""

    def __init__(self, names: int, *, endless: bool = False) -> None:
        self.names = names
        self.pages = 0
        self.endless = endless

    async def list_page(self, *_: Any, **__: Any) -> Page:
        self.pages += 1
        token = f"after-{self.pages}" if self.endless else None
        return Page("7", token, [frame(f"web-{number}", 5) for number in range(self.names)])


async def test_an_object_of_a_partition_that_the_topic_lacks_is_missing() -> None:
    settings = settings_of(["widgets.example.com"], kafka={"partitions": 2})
    (planned,) = plan_streams(settings, settings.resources[0], WIDGETS, prefixed=False)
    auditor: Any = OnePartition()
    auditor.audit.newest_marker = SimpleNamespace(frontier="7")
    cluster: Any = Cluster(8)
    await compare_with_cluster(auditor, cluster, planned)
    assert [problem.kind for problem in auditor.audit.problems] == ["missing"] * 8


async def test_a_list_that_never_ends_is_given_up() -> None:
    settings = settings_of(["widgets.example.com"], kafka={"partitions": 2})
    (planned,) = plan_streams(settings, settings.resources[0], WIDGETS, prefixed=False)
    auditor: Any = OnePartition()
    cluster: Any = Cluster(8, endless=True)
    with pytest.raises(Interrupted, match="more than one begins with n/web-0;"):
        await compare_with_cluster(auditor, cluster, planned)
