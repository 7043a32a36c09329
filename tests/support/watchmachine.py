"""A watch for the steps of the machine."""

from random import Random
from typing import Any

from watchrelay.model.frames import FrameType, ObjectFrame
from watchrelay.model.resources import Resource, Selection
from watchrelay.model.streams import WatchPlan
from watchrelay.watch.context import StreamContext, WatchRules
from watchrelay.watch.machine import (
    Watching,
    WatchOpened,
    begin_watch,
    step,
)

PODS = Selection(Resource("", "v1", "pods", "Pod", namespaced=True))


def rules(version: tuple[int, int] | None = None, **plan: Any) -> WatchRules:
    return WatchRules(WatchPlan(PODS, **plan), Random(1), version)


def frame(name: str, version: str, kind: FrameType = "MODIFIED") -> ObjectFrame:
    return ObjectFrame(kind, "shop", name, f"uid-{name}", version, {}, {}, 10)


def watching(by: WatchRules, cursor: str = "100", **context: Any) -> Watching:
    state, _ = begin_watch(
        by, StreamContext(cursor=cursor, has_state=True, state_shown_at_s=0.0, **context)
    )
    opened, _ = step(by, state, WatchOpened(), 0.0)
    assert isinstance(opened, Watching)
    return opened
