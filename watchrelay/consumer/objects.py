"""The state of a stream as its reader sees it: by key, decoded on access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from watchrelay.consumer.changes import parsed
from watchrelay.consumer.partitions import PartitionReplicas


class Objects(Mapping[str, Any]):
    """The objects of one stream by key, as a `TopicReader` holds them now.

    It is a live view: nothing is copied, an object is decoded each time it is asked for, and
    reading on changes what is seen. Take a `list()` of it before reading on inside a loop over it.
    """

    def __init__(self, stream: str, partitions: Mapping[Any, PartitionReplicas]) -> None:
        self._stream, self._partitions = stream, partitions

    def value(self, key: str) -> bytes | None:
        """The JSON of an object as published; None where there is no such object."""
        encoded = key.encode(errors="surrogatepass")
        for held in self._held():
            if (found := held.get(encoded)) is not None:
                return bytes(found.value)
        return None

    def __getitem__(self, key: str) -> Any:
        value = self.value(key)
        if value is None:
            raise KeyError(key)
        return parsed(self._stream, key, value)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.value(key) is not None

    def __iter__(self) -> Iterator[str]:
        return (key.decode() for held in self._held() for key in held)

    def __len__(self) -> int:
        return sum(map(len, self._held()))

    def _held(self) -> Iterator[Mapping[bytes, Any]]:
        for lanes in self._partitions.values():
            if (lane := lanes.by_stream.get(self._stream)) is not None:
                yield lane.replica.held
