"""The text format of Prometheus, made in pieces and kept compressed: it is long."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

from watchrelay.core.turns import Turns

Sample = Sequence[Any]
"""Of one series: the suffix of its name, its further labels (a dict), its value; the library adds
more."""
Rows = Iterable[tuple[Sequence[str], Iterable[Sample]]]
"""The values of a family's labels, and the samples that have them, which are of one moment."""
_LINES: Final = 200
"""A piece has some more at most: a millisecond's work."""
_SENT_BYTES: Final = 8 << 10
"""Compressed bytes sent at once; as text some 200 KiB."""
_GZIP: Final = 16 + zlib.MAX_WBITS
_FASTEST: Final = 1


@dataclass(frozen=True, slots=True)
class Family:
    """The series of one name; `rows` reads them one by one, as they are at that moment."""

    name: str
    """Without `_total`."""
    kind: str
    labels: Sequence[str]
    help: str
    rows: Callable[[], Rows]

    def metric(self) -> Metric:
        """All series at once, as the library has them."""
        metric = Metric(self.name, self.help, self.kind)
        for values, samples in self.rows():
            labels = dict(zip(self.labels, values, strict=True))
            for suffix, further, value in (each[:3] for each in samples):
                metric.add_sample(f"{self.name}{suffix}", labels | further, value)
        return metric


def family_of(metric: Metric) -> Family:
    """Of what a collector of the library made."""
    rows = [
        ((), ((each.name.removeprefix(metric.name), each.labels, each.value),))
        for each in metric.samples
    ]
    return Family(metric.name, metric.type, (), metric.documentation, lambda: rows)


def pieces(families: Iterable[Family], cluster: str) -> Iterator[bytes]:
    """The text of `families`, each of which is whole, with the label `cluster` in each series."""
    piece: list[str] = []
    for family in families:
        piece.append(_heading(family))
        forms: dict[tuple[str, ...], str] = {}
        for values, samples in family.rows():
            escaped = [*map(_escaped, values)]
            for suffix, further, value in (each[:3] for each in samples):
                form = forms.get(key := (suffix, *further))
                if form is None:
                    labels = (*family.labels, *further)
                    form = forms[key] = _form(f"{family.name}{suffix}", labels, cluster)
                series = form.format(*escaped, *map(_escaped, further.values()))
                number = floatToGoString(value)  # type: ignore[no-untyped-call]  # without annotations
                piece.append(f"{series}{number}\n")
            if len(piece) >= _LINES:
                yield "".join(piece).encode()
                piece.clear()
    yield "".join(piece).encode()


def _heading(family: Family) -> str:
    name = f"{family.name}_total" if family.kind == "counter" else family.name
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {family.kind}\n"


def _form(name: str, labels: Sequence[str], cluster: str) -> str:
    """The begin of a line, for `format` with the values of `labels` in their order."""
    own = _escaped(cluster).replace("{", "{{").replace("}", "}}")
    places = sorted((label, place) for place, label in enumerate(labels))
    pairs = [f'cluster="{own}"', *(f'{label}="{{{place}}}"' for label, place in places)]
    return f"{name}{{{{{','.join(pairs)}}}}} "


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@dataclass(frozen=True, slots=True)
class Exposition:
    """What `/metrics` answers, compressed."""

    gzipped: bytes
    text_bytes: int

    @classmethod
    async def of(cls, made: Iterable[bytes]) -> Exposition:
        """Of the pieces of `made`, of which each turn of the event loop makes some."""
        turns, packed, text_bytes = Turns(), zlib.compressobj(_FASTEST, wbits=_GZIP), 0
        gzipped = bytearray()
        for piece in made:
            text_bytes += len(piece)
            gzipped += packed.compress(piece)
            await turns.pause()
        return cls(bytes(gzipped + packed.flush()), text_bytes)

    def compressed(self) -> Iterator[bytes]:
        """In pieces, for a client that accepts gzip."""
        for at in range(0, len(self.gzipped), _SENT_BYTES):
            yield self.gzipped[at : at + _SENT_BYTES]

    def text(self) -> Iterator[bytes]:
        """In pieces."""
        unpacked = zlib.decompressobj(wbits=_GZIP)
        for piece in self.compressed():
            yield unpacked.decompress(piece)
