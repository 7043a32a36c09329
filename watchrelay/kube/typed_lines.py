"""Watch lines of built-in resources, decoded in one pass."""

from __future__ import annotations

import json
from typing import Final, Literal

import msgspec

from watchrelay.core.text import BROKEN_JSON
from watchrelay.model.frames import ObjectFrame, TypedObject
from watchrelay.model.resources import Resource


class _Line(msgspec.Struct, gc=False):
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: TypedObject


_decode_lines = msgspec.json.Decoder(_Line).decode_lines
_encode_into = msgspec.json.Encoder().encode_into
_WRITTEN = bytearray()
"""Shared output buffer, grown to the largest line already; a new one would grow for each."""

AROUND: Final = len('{"type":"","object":}')
"""Bytes of a line that are neither its type nor its object."""


class TypedLines:
    """Makes frames of the lines of one built-in resource.

    A line is accepted only if encoding it again gives the same bytes: then no key is unknown,
    duplicate or in another place, and there are no blanks between tokens.
    """

    def __init__(self, resource: Resource) -> None:
        kind = json.dumps(resource.kind, ensure_ascii=False).encode()
        api_version = json.dumps(resource.api_version, ensure_ascii=False).encode()
        typed = b',"object":{"kind":%b,"apiVersion":%b,"metadata":{' % (kind, api_version)
        self._starts = {
            verb: b'{"type":"%b"%b' % (verb.encode(), typed)
            for verb in ("ADDED", "MODIFIED", "DELETED")
        }

    def read(self, block: bytes) -> list[ObjectFrame] | None:
        """The frames of whole lines, None if one of them is not as kube-apiserver writes objects
        of this resource. `block` is UTF-8."""
        frames: list[ObjectFrame] = []
        starts, at = self._starts, 0
        try:
            lines = _decode_lines(block)
        except BROKEN_JSON:
            return None
        for line in lines:
            verb, typed = line.type, line.object
            metadata = typed.metadata
            name, version, namespace = metadata.name, metadata.resource_version, metadata.namespace
            if not name or not version or "/" in name or "/" in namespace:
                return None
            _encode_into(line, _WRITTEN)
            if not block.startswith(starts[verb], at) or not block.startswith(_WRITTEN, at):
                return None
            size = len(_WRITTEN) - len(verb) - AROUND
            end, line_end = at + len(_WRITTEN), block.find(b"\n", at)
            if end != (len(block) if line_end < 0 else line_end):
                return None  # another object on the same line, or a line break within this one
            at = end + 1
            frames.append(
                ObjectFrame(verb, namespace, name, metadata.uid, version, {}, {}, size, typed)
            )
        return frames if at >= len(block) else None
