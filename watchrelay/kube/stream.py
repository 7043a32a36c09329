"""Turns the body of a watch, cut anywhere into chunks, into frames.

The fast path decodes all whole lines of a chunk in one call and reads `type` and `metadata` alone.
Anything that path does not expect (an ERROR line, whitespace between tokens, damage) sends the
chunk through the careful path, line by line, which reports what is wrong.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from watchrelay.core.errors import Undecodable
from watchrelay.core.text import BROKEN_JSON
from watchrelay.kube import status
from watchrelay.kube.frame import (
    DEPTH_MAX,
    TOO_DEEP,
    Fields,
    ObjectReader,
    Odd,
    about,
    compact_size,
    decode_fields,
    decode_text,
    outline,
    refuse_duplicates,
    refuse_too_deep,
    too_deep,
    why,
)
from watchrelay.model.frames import Bookmark, Failure, Frame
from watchrelay.model.resources import Selection

LINE_MAX = 32 << 20
"""Bytes of one line. Objects are at most ~1.5 MiB in etcd and a few times that as JSON. Source:
docs/watch-facts.md 2.15."""

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class _Line(msgspec.Struct, gc=False):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: Fields


_decode_lines = msgspec.json.Decoder(_Line).decode_lines
_decode_line = msgspec.json.Decoder(_Line).decode

_LINE_DEPTH_MAX = DEPTH_MAX + 1
_AROUND = len('{"type":"","object":}\n')


class LineSplitter:
    """Collects bytes until lines are whole. Splits on LF alone: a JSON string may hold U+0085 or
    U+2028 unescaped (docs/watch-facts.md 2.16)."""

    def __init__(self, line_max: int = LINE_MAX) -> None:
        self._line_max = line_max
        self._parts: list[bytes] = []
        self._held = 0
        self.overflowed = False
        """True once a line that is not whole yet is longer than allowed; its bytes are let go."""

    def feed(self, chunk: bytes) -> bytes | None:
        """The block of whole lines that `chunk` completes, without its last LF; None if it
        completes none."""
        end = chunk.rfind(b"\n")
        if end < 0:
            self._keep(chunk)
            return None
        if self._parts:
            block = b"".join((*self._parts, memoryview(chunk)[:end]))
            self._parts.clear()
            self._held = 0
        else:
            block = chunk[:end]
        if end + 1 < len(chunk):
            self._keep(chunk[end + 1 :])
        return block

    def rest(self) -> bytes:
        """The bytes behind the last LF."""
        return b"".join(self._parts)

    def _keep(self, part: bytes) -> None:
        self._held += len(part)
        if self._held > self._line_max:
            self._parts.clear()
            self.overflowed = True
        else:
            self._parts.append(part)


def too_long(line_max: int) -> Undecodable:
    """The error for a line over the limit."""
    return Undecodable(
        f"a watch line is longer than {line_max >> 20} MiB; metadataOnly would leave out what "
        "makes it so"
    )


class FrameStream:
    """Decodes one watch. After `ended` became True (an ERROR line, a bare Status, a line over the
    limit) it takes nothing more.

    Frames do not depend on where the chunks were cut.
    """

    def __init__(self, selection: Selection, *, line_max: int = LINE_MAX) -> None:
        self._objects = ObjectReader(selection.resource, metadata_only=selection.metadata_only)
        self._depth_checked = selection.depth_checked
        self._line_max = line_max
        self._lines = LineSplitter(line_max)
        self.ended = False

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that `chunk` completes, often none.

        An undecodable line is a Failure(Undecodable) in its place and others follow; any other
        Failure is the last frame.
        """
        if self.ended:
            return []
        block = self._lines.feed(chunk)
        frames = [] if block is None else self._decode(block)
        if self._lines.overflowed and not self.ended:
            self.ended = True
            frames.append(Failure(too_long(self._line_max)))
        return frames

    def finish(self) -> list[Frame]:
        """The frame behind the last LF, if it is complete: a clean end in mid-line is not an error
        (docs/watch-facts.md 2.13)."""
        rest = self._lines.rest().strip()
        if self.ended or not rest:
            return []
        try:
            decode_fields(rest)
        except BROKEN_JSON:
            return []
        return self._carefully(rest)

    def _decode(self, block: bytes) -> list[Frame]:
        frames = self._quickly(block) if len(block) <= self._line_max else None
        return self._carefully(block) if frames is None else frames

    def _quickly(self, block: bytes) -> list[Frame] | None:
        """The frames of a block in which all is as kube-apiserver writes it, None of any other."""
        frames: list[Frame] = []
        seen = -1  # bytes accounted for, if nothing is blank
        blanks = 0  # and those between tokens, if written as `json.dumps` of Python does by default
        end = -1  # of the line that was read; -1 for the last
        read = self._objects.read
        try:
            if not block.isascii():
                block.decode()  # msgspec leaves the strings in a Raw unchecked
            for line in _decode_lines(block):
                verb, fields = line.type, line.object
                if verb == "BOOKMARK":
                    frames.append(_bookmark(fields))
                    seen += compact_size(fields) + _AROUND + 8
                else:
                    frame = read(verb, fields)
                    frames.append(frame)
                    seen += frame.size + _AROUND + len(verb)
                blanks += 2 * len(fields) + 2
                end = block.find(b"\n", end + 1)
        except (*BROKEN_JSON, Odd):
            return None
        if end >= 0:
            # a line break within an object: its halves are lines of their own, in whichever chunk
            # they come
            return None
        if seen == len(block) or (seen + blanks == len(block) and block.startswith(b'{"type": ')):
            deep = self._depth_checked and any(
                too_deep(line, _LINE_DEPTH_MAX) for line in block.split(b"\n")
            )
            return None if deep else frames
        return None  # other blanks, or a duplicate key

    def _carefully(self, block: bytes) -> list[Frame]:
        frames: list[Frame] = []
        for part in block.split(b"\n"):
            line = part.strip()
            if not line:
                continue
            frames.append(self._one(line))
            if self.ended:
                break
        return frames

    def _one(self, line: bytes) -> Frame:
        """The frame of one line; whatever is wrong with it becomes a Failure."""
        if len(line) > self._line_max:
            self.ended = True
            return Failure(too_long(self._line_max))
        try:
            line.decode()
            outer = decode_fields(line)
            verb = decode_text(outer["type"]) if "type" in outer else None
        except BROKEN_JSON as error:
            return self._damaged(line, error)
        if verb == "ERROR" or (verb is None and _is_status(outer)):
            self.ended = True
            return Failure(status.from_stream(outer.get("object", b"") if verb else line))
        if verb not in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}:
            return Failure(
                Undecodable(
                    "a watch line has no type"
                    if verb is None
                    else "a watch line is of a type unknown here"
                )
            )
        try:
            decoded = _decode_line(line)
            if compact_size(decoded.object) + _AROUND - 1 + len(verb) != len(line):
                refuse_duplicates(line, outer)
                refuse_duplicates(bytes(outer["object"]), decoded.object)
            if decoded.type == "BOOKMARK":
                return _bookmark(decoded.object)
            if self._depth_checked:
                refuse_too_deep(line, _LINE_DEPTH_MAX)
            return self._objects.read(decoded.type, decoded.object)
        except (*BROKEN_JSON, Odd) as error:
            return self._damaged(line, error, f" of type {verb}")

    def _damaged(self, line: bytes, error: Exception, kind: str = "") -> Frame:
        """The frame of a line that cannot be decoded: a Failure, but for the deletion of an object
        that is nested too deeply."""
        if (isinstance(error, RecursionError) or str(error) == TOO_DEEP) and (
            deleted := self._objects.read_deleted(line)
        ) is not None:
            return deleted
        named = about(outline(line).get("object", b""))
        return Failure(
            Undecodable(f"a watch line{kind} cannot be decoded: {why(error)}", about=named)
        )


def _is_status(fields: Fields) -> bool:
    try:
        return decode_text(fields["kind"]) == "Status"
    except (KeyError, *BROKEN_JSON):
        return False


def _bookmark(fields: Fields) -> Bookmark:
    """Only version and annotations mean anything in a bookmark; one without a version moves
    nothing. Source: docs/watch-facts.md 2.4, 3.2."""
    try:
        metadata = decode_fields(fields["metadata"])
        version = decode_text(metadata["resourceVersion"]) or ""
    except (KeyError, *BROKEN_JSON):
        return Bookmark("")
    return Bookmark(version, _ends_initial_events(metadata))


def _ends_initial_events(metadata: Fields) -> bool:
    try:
        return decode_text(decode_fields(metadata["annotations"])[INITIAL_EVENTS_END]) == "true"
    except (KeyError, *BROKEN_JSON):
        return False
