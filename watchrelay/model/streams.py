"""A stream: one resolved entry of the config. It, or each of its parts, has one watch, one store,
one writer and one epoch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from watchrelay.model.parts import Part, stream_and_part
from watchrelay.model.reach import KeyRange, reach_of
from watchrelay.model.resources import PartKeys, Selection

InitialList = Literal["auto", "paged", "streaming"]
ListSemantic = Literal["mostRecent", "any"]
Format = Literal["cloudevents", "structured", "debezium"]


@dataclass(frozen=True, slots=True)
class WatchPlan:
    """How a stream is followed. `page_size` 0: unbounded; `relist_interval_s` 0: never."""

    selection: Selection
    initial_list: InitialList = "auto"
    list_semantic: ListSemantic = "mostRecent"
    page_size: int = 500
    bookmarks: bool = True
    relist_interval_s: float = 0.0
    arrival_namespaces: frozenset[str] = frozenset()
    """Not empty: a cluster-wide watch (`scope: cluster`), filtered on arrival to these."""


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """Everything that decides what a stream's topic holds, and where: docs/record-contract.md.
    `id` is the stream's, or that of a part as `pods%0/4`; `config_hash` is ce_wrconfig;
    `key_prefix` is b"" or b"pods/"."""

    id: str
    cluster: str
    topic: str
    partitions: int
    plan: WatchPlan
    config_hash: str
    key_prefix: bytes = b""
    format: Format = "cloudevents"
    snapshot_interval_s: float = 3600.0
    description: dict[str, object] = field(default_factory=dict)
    """The JSON of the control topic's `stream/<id>` record, but for `epochBase`."""
    partitions_from: Literal["config", "default", "topic"] = field(default="config", compare=False)
    """"topic" where the stream, or its topic, was started with this number of partitions."""

    @property
    def stream(self) -> str:
        """ce_wrstream: the id without the part."""
        return stream_and_part(self.id)[0]

    @property
    def part(self) -> Part:
        """Which part of the stream this is."""
        return stream_and_part(self.id)[1]

    @property
    def own_partitions(self) -> tuple[int, ...]:
        """Those that its writer writes."""
        return self.part.partitions(self.partitions)

    @property
    def own_plan(self) -> WatchPlan:
        """The plan; of a part, with what belongs to other parts left out."""
        if self.part.of == 1:
            return self.plan
        keys = PartKeys(self.key_prefix, self.partitions, frozenset(self.own_partitions))
        return replace(self.plan, selection=replace(self.plan.selection, part=keys))

    @property
    def keys(self) -> KeyRange:
        """Those that its objects can have, all parts together."""
        return KeyRange(self.key_prefix, reach_of(self.description.get("selectors")))

    @property
    def source(self) -> str:
        """ce_source. Source: the record contract, section 3."""
        return f"/clusters/{self.cluster}{self.plan.selection.resource.path()}"
