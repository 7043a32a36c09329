"""Which of the streams that read one topic a record concerns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from watchrelay.contract.records import stream_named
from watchrelay.model.reach import KeyRange

_NAMED_AT = slice(2, 3)
"""Where a relay writes the header with the stream's name."""


class ByStream:
    """Gives each stream its own records, those that name no stream, and those that name another
    stream and have a key of this one: they hide its object from tables."""

    def __init__(self, streams: Mapping[bytes, KeyRange]) -> None:
        self._streams = streams
        self._ranges: dict[tuple[bytes, str | None], list[bytes]] = {}
        """The streams by prefix and namespace, None for those of any."""
        for stream, keys in streams.items():
            namespaces = keys.reach.namespaces
            for each in (None,) if namespaces.inverted else namespaces.listed:
                self._ranges.setdefault((keys.prefix, each), []).append(stream)

    def split(self, records: Sequence[Any]) -> dict[bytes, list[Any]]:
        """The records of each stream, in order."""
        found: dict[bytes, list[Any]] = {stream: [] for stream in self._streams}
        only = next(iter(found)) if len(found) == 1 else None
        as_written = (("ce_wrstream", only),)
        for record in records:
            if only is not None and tuple(record.headers[_NAMED_AT]) == as_written:
                # a later header that names another stream is found by those who decode the record
                found[only].append(record)
                continue
            named = stream_named(record.headers)
            if named is None:
                for records_of_stream in found.values():
                    records_of_stream.append(record)
                continue
            keys_of_named = self._streams.get(named)
            if keys_of_named is not None:
                found[named].append(record)
                if named == only:
                    continue  # it hides an object of no other stream
            if record.key is not None and not (keys_of_named and keys_of_named.has(record.key)):
                for stream in self._holders(record.key):
                    if stream != named:
                        found[stream].append(record)
        return found

    def _holders(self, key: bytes) -> Iterable[bytes]:
        """The streams of which an object can have this key, in a plain or a prefixed format."""
        resource, slash, after = key.partition(b"/")
        for prefix, plain in ((b"", key), (resource + slash, after)):
            namespace = plain.partition(b"/")[0].decode(errors="replace")
            for each in (None, namespace):
                for stream in self._ranges.get((prefix, each), ()):
                    if self._streams[stream].has(key):
                        yield stream
