"""Turns the body of a watch, cut anywhere into chunks, into frames.

The fast path decodes all whole lines of a chunk in one call: object and metadata in one pass where
they are as kube-apiserver writes built-in resources (`TypedLines`), else the object's top-level
fields, and then those of its metadata. Anything that path does not expect (an ERROR line,
whitespace between tokens, damage) sends the chunk through the careful path, line by line, which
reports what is wrong.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from watchrelay.core.errors import KubeError, Undecodable
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
from watchrelay.kube.part_filter import CountForeign, PartFilter, uncounted
from watchrelay.kube.typed_lines import AROUND, TypedLines
from watchrelay.model.frames import Bookmark, Failure, Frame, ObjectFrame
from watchrelay.model.resources import Selection

LINE_MAX = 32 << 20
"""Bytes of one line. Source: docs/watch-facts.md 2.15."""

DAMAGED_MAX = 1000
"""Lines that cannot be decoded, above the number of those that can, until a watch is given up: they
are made one by one, and a read may hold 60,000."""

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class _Line(msgspec.Struct, gc=False):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: Fields


_decode_lines = msgspec.json.Decoder(_Line).decode_lines
_decode_line = msgspec.json.Decoder(_Line).decode

_LINE_DEPTH_MAX = DEPTH_MAX + 1


class FrameReader:
    """Decodes one watch. After `ended` became True (an ERROR line, a bare Status, a line over the
    limit, too many damaged lines) it takes nothing more.

    Frames do not depend on where the chunks were cut.
    """

    def __init__(
        self,
        selection: Selection,
        *,
        line_max: int = LINE_MAX,
        count_foreign: CountForeign = uncounted,
    ) -> None:
        keys, resource = selection.part, selection.resource
        self._part = None if keys is None else PartFilter(keys, resource, count_foreign)
        self._objects = ObjectReader(selection.resource, metadata_only=selection.metadata_only)
        self._depth_checked = selection.depth_checked
        # it checks no depth, and objects whose fields are left out or hidden are split anyway
        tries_typed = not (selection.depth_checked or selection.metadata_only)
        self._typed = TypedLines(selection.resource) if tries_typed else None
        self._line_max = line_max
        self._parts: list[bytes] = []
        """The line that is not whole yet, of `_held` bytes."""
        self._held = 0
        self._damaged_left = DAMAGED_MAX
        self.ended = False

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that `chunk` completes, often none.

        An undecodable line is a Failure(Undecodable) in its place and others follow; any other
        Failure is the last frame.
        """
        if self.ended:
            return []
        frames: list[Frame] = []
        # On LF alone: a JSON string may hold U+0085 or U+2028 unescaped (docs/watch-facts.md 2.16).
        end = chunk.rfind(b"\n")
        if end >= 0:
            block = chunk if end + 1 == len(chunk) else chunk[:end]
            if self._parts:
                block = b"".join((*self._parts, block))
                self._parts.clear()
                self._held = 0
            if self._part is not None:
                block = self._part.own_lines(block)
            quick = self._quickly(block) if len(block) <= self._line_max else None
            if quick is None:
                frames = self._carefully(block)
            else:
                frames = quick
                self._damaged_left = min(DAMAGED_MAX, self._damaged_left + len(quick))
        if end + 1 < len(chunk):
            self._parts.append(chunk[end + 1 :])
            self._held += len(chunk) - end - 1
        if self._held > self._line_max and not self.ended:
            self._parts.clear()
            frames.append(self._too_long())
        return frames

    def finish(self) -> list[Frame]:
        """The frame after the last LF, if it is complete: a clean end in mid-line is not an error
        (docs/watch-facts.md 2.13)."""
        rest = b"".join(self._parts).strip()
        if self.ended or not rest:
            return []
        try:
            decode_fields(rest)
        except BROKEN_JSON:
            return []
        return self._carefully(rest if self._part is None else self._part.own_lines(rest))

    def _too_long(self) -> Failure:
        self.ended = True
        return Failure(
            Undecodable(
                f"a watch line is longer than {self._line_max >> 20} MiB; metadataOnly would leave "
                "out what makes it so"
            )
        )

    def _quickly(self, block: bytes) -> list[Frame] | None:
        """The frames of a block in which all is as kube-apiserver writes it, None of any other."""
        frames: list[Frame] = []
        end = -1
        read, checked = self._objects.read, self._depth_checked
        try:
            if not block.isascii():
                block.decode()  # msgspec leaves the strings in a Raw unchecked
            if self._typed is not None and (typed := self._typed.read(block)) is not None:
                return list[Frame](typed)
            for line in _decode_lines(block):
                verb, fields = line.type, line.object
                begin = end + 1
                end = block.find(b"\n", begin)
                if end < 0:
                    end = len(block)
                size = compact_size(fields)
                blanks = end - begin - size - len(verb) - AROUND
                if blanks and not _has_usual_blanks(block, begin, blanks, fields):
                    return None  # a duplicate key, or a line break within an object
                if verb == "BOOKMARK":
                    frames.append(_bookmark(fields))
                else:
                    frames.append(read(verb, fields))
                if checked and too_deep(block[begin:end], _LINE_DEPTH_MAX):
                    return None
        except (*BROKEN_JSON, Odd):
            return None
        if end + 1 < len(block):
            return None
        if all(type(frame) is ObjectFrame for frame in frames):
            self._typed = None  # this server writes them differently: not tried again
        return frames

    def _carefully(self, block: bytes) -> list[Frame]:
        frames: list[Frame] = []
        for part in block.split(b"\n"):
            line = part.strip()
            if not line:
                continue
            frame = self._one(line)
            if self.ended:
                return [*frames, frame]
            if not isinstance(frame, Failure):
                self._damaged_left = min(DAMAGED_MAX, self._damaged_left + 1)
            elif self._damaged_left == 0:
                self.ended = True
                return [*frames, _too_many(frame.error)]
            else:
                self._damaged_left -= 1
            frames.append(frame)
        return frames

    def _one(self, line: bytes) -> Frame:
        """The frame of one line; whatever is wrong with it becomes a Failure."""
        if len(line) > self._line_max:
            return self._too_long()
        try:
            line.decode()
            outer = decode_fields(line)
            verb = decode_text(outer["type"]) if "type" in outer else None
        except BROKEN_JSON as error:
            return self._damaged(line, error)
        if verb == "ERROR" or (verb is None and _is_status(outer)):
            self.ended = True
            return Failure(status.from_watch(outer.get("object", b"") if verb else line))
        if verb not in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}:
            what = "has no type" if verb is None else "is of a type unknown here"
            return Failure(Undecodable(f"a watch line {what}"))
        try:
            decoded = _decode_line(line)
            size = compact_size(decoded.object)
            is_compact = size + AROUND + len(verb) == len(line)
            if not is_compact:
                proven = compact_size(outer) != len(line) and refuse_duplicates(line, outer)
                if not proven:
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
        if why(error) == TOO_DEEP and (deleted := self._objects.read_deleted(line)) is not None:
            return deleted
        named = about(outline(line).get("object", b""))
        return Failure(
            Undecodable(f"a watch line{kind} cannot be decoded: {why(error)}", about=named)
        )


def _too_many(last: KubeError) -> Failure:
    return Failure(
        Undecodable(
            f"too many lines of the watch cannot be decoded: {DAMAGED_MAX} more than can; the "
            f"last: {last}"
        )
    )


def _has_usual_blanks(block: bytes, begin: int, blanks: int, fields: Fields) -> bool:
    """Whether the line was written as `json.dumps` of Python does by default."""
    return blanks == 2 * len(fields) + 2 and block.startswith(b'{"type": ', begin)


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
    try:
        end = decode_text(decode_fields(metadata["annotations"])[INITIAL_EVENTS_END])
    except (KeyError, *BROKEN_JSON):
        end = None
    return Bookmark(version, end == "true")
