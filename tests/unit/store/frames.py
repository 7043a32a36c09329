"""Small frames for the tests of the store."""

from __future__ import annotations

import msgspec

from tests.support.pods import frame_of
from watchrelay.model.changes import Entry, ObjectChange
from watchrelay.model.frames import FrameType, ObjectFrame
from watchrelay.model.resources import Resource
from watchrelay.store.objects import Pieces, Store
from watchrelay.store.transform import Transform

WIDGETS = Resource("example.com", "v1", "widgets", "Widget", namespaced=True)


def frame(
    name: str,
    version: int | str,
    kind: FrameType = "ADDED",
    *,
    uid: str = "",
    body: object = 0,
    namespace: str = "n",
    noise: object = None,
) -> ObjectFrame:
    """One object. Uid is the name's own unless given; `noise` is in managedFields, which
    are dropped."""
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"uid-{name}",
        "resourceVersion": str(version),
    }
    if noise is not None:
        metadata["managedFields"] = noise  # type: ignore[assignment]  # of any shape
    return frame_of(
        msgspec.json.encode(
            {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata, "spec": body}
        ),
        kind,
    )


def widgets(**options: object) -> Store:
    """An empty store of widgets with the default transform."""
    return Store(Transform.compile(WIDGETS), partitions=3, **options)  # type: ignore[arg-type]  # options of Store by name


def listing(store: Store, frames: list[ObjectFrame], version: str = "100") -> Store:
    """`store` after a complete list of `frames`."""
    store.begin_list()
    store.stage(frames)
    store.replace(version)
    return store


def flat(pieces: Pieces) -> list[ObjectChange]:
    """All changes, made."""
    return [change for piece in pieces for change in piece]


def entries(store: Store) -> dict[bytes, Entry]:
    """Everything held, in the store's order."""
    keys = store.keys()
    return {key: entry for key in keys if (entry := store.get(key)) is not None}


def state(store: Store) -> dict[str, tuple[str, str, object]]:
    """uid, resourceVersion and spec by key, as published."""
    held = {}
    for key, entry in entries(store).items():
        value = msgspec.json.decode(store.unpack(entry))
        metadata = value["metadata"]
        assert (metadata["uid"], metadata["resourceVersion"]) == (entry.uid, entry.resource_version)
        held[key.decode()] = (entry.uid, entry.resource_version, value["spec"])
    return held
