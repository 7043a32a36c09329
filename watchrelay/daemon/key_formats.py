"""Key formats and partitions of streams: those that a topic already has, else those of the config.
Pure.

Only the config decides which topics are shared, but an older release or another config may have
started a topic with other keys. Such a topic keeps its keys, and only a stream that cannot be
written beside them is refused (`plan.topic_conflict`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from watchrelay.contract.control import is_count
from watchrelay.contract.records import PARTITIONS_MAX
from watchrelay.model.streams import StreamSpec

PLAIN, PREFIXED = "plain", "prefixed"


class KeyFormats:
    """The key formats and partitions of the topics as they are described: by topic and stream, with
    the resource of each."""

    def __init__(self, described: Mapping[str, Mapping[str, object]]) -> None:
        self._topics: dict[object, dict[str, tuple[object, str]]] = {}
        self._partitions: dict[object, dict[str, int | None]] = {}
        for stream, description in described.items():
            resource = qualified(description)
            topic = description.get("topic")
            self._topics.setdefault(topic, {})[stream] = (description.get("keyFormat"), resource)
            partitions = description.get("partitions")
            self._partitions.setdefault(topic, {})[stream] = (
                partitions
                if isinstance(partitions, int) and is_count(partitions, PARTITIONS_MAX)
                else None
            )

    def kept(self, stream: StreamSpec) -> StreamSpec:
        """The stream with the keys that it has on its topic; a new one with those that the topic
        has.

        A new one is left as it is where the topic holds plain keys of another resource. Likewise
        with partitions, unless the config sets their number.
        """
        stream = self._with_partitions(stream)
        others = self._topics.get(stream.topic, {})
        resource = stream.plan.selection.resource.qualified
        there = [others[stream.id]] if stream.id in others else others.values()
        formats = {key_format for key_format, _ in there}
        alike = all(theirs == resource for _, theirs in there)
        if formats == {PREFIXED} and (alike or stream.id not in others):
            return _with_keys(stream, PREFIXED)
        return _with_keys(stream, PLAIN) if formats == {PLAIN} and alike else stream

    def _with_partitions(self, stream: StreamSpec) -> StreamSpec:
        others = self._partitions.get(stream.topic, {})
        counts = {others[stream.id]} if stream.id in others else set(others.values())
        pinned = counts.pop() if len(counts) == 1 else None
        if not pinned:
            return stream
        if stream.partitions_from == "config":
            return (
                replace(stream, partitions_from="topic")
                if pinned == stream.partitions and stream.id in others
                else stream
            )
        return replace(
            stream,
            partitions=pinned,
            description={**stream.description, "partitions": pinned},
            partitions_from="topic",
        )


def qualified(description: Mapping[str, object]) -> str:
    """The resource of a stream by its description, without the version."""
    return str(description.get("resource")).partition("/")[0]


def _with_keys(stream: StreamSpec, key_format: str) -> StreamSpec:
    if stream.description.get("keyFormat") == key_format:
        return stream
    prefix = (
        f"{stream.plan.selection.resource.qualified}/".encode() if key_format == PREFIXED else b""
    )
    return replace(
        stream, key_prefix=prefix, description={**stream.description, "keyFormat": key_format}
    )
