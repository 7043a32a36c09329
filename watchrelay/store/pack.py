"""Objects, small: zstd level 1, with a dictionary of the stream's own once there are enough objects
to learn it from.

Room: store. In: published bytes. Out: packed bytes, about a tenth of them; and back.
A stream without a dictionary owns nothing: all of them share one compressor, so that 200 idle
streams cost no more than one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import zstandard

LEVEL: Final = 1
DICTIONARY_BYTES: Final = 16 * 1024
TRAIN_AT_OBJECTS: Final = 400
"""From here on a dictionary saves more than the 250 KB that its tables cost."""

_SAMPLE_BYTES: Final = 64 * 1024
_SAMPLES_BYTES: Final = 2 * 1024 * 1024
"""Training reads its samples several times and holds up the loop: 2 MiB take about 25 ms."""

_PLAIN: Final = zstandard.ZstdCompressor(level=LEVEL, write_dict_id=False)
_PLAIN_UNPACKER: Final = zstandard.ZstdDecompressor()


class ObjectCompressor:
    """Compresses the objects of one stream.

    Law: unpack(pack(value)) == value, also when a dictionary was learnt in between; and while none
    is learnt in between, pack(a) == pack(b) exactly when a == b (the same compressor, settings and
    dictionary give the same bytes).
    """

    __slots__ = ("_unpacker", "pack", "trained")

    def __init__(self) -> None:
        self.trained = False
        """A dictionary was learnt, or could not be: there will be no other."""
        self.pack = _PLAIN.compress
        self._unpacker = _PLAIN_UNPACKER

    def unpack(self, packed: bytes | memoryview) -> bytes:
        """What `pack` was given. Reads frames made before and after training alike."""
        return self._unpacker.decompress(packed)

    def train(self, values: Iterable[bytes]) -> bool:
        """Learn a dictionary from `values`; whatever is packed from now on uses it. False: too
        little to learn from.

        Source: the segment length of half an object was the best of those tried on pods (380 B; 490
        B with one of 200 B).
        """
        self.trained = True
        samples = _bounded(values)
        segment = min(max(sum(map(len, samples)) // max(len(samples), 1) // 2, 64), 2000)
        try:
            learnt = zstandard.train_dictionary(DICTIONARY_BYTES, samples, k=segment, d=8)
        except zstandard.ZstdError:
            return False
        learnt.precompute_compress(level=LEVEL)
        self.pack = zstandard.ZstdCompressor(
            level=LEVEL, dict_data=learnt, write_dict_id=False
        ).compress
        self._unpacker = zstandard.ZstdDecompressor(dict_data=learnt)
        return True


def _bounded(values: Iterable[bytes]) -> list[bytes | bytearray | memoryview]:
    """The first of `values`, cut so that training stays short."""
    samples: list[bytes | bytearray | memoryview] = []
    left = _SAMPLES_BYTES
    for value in values:
        if left <= 0:
            break
        samples.append(value[:_SAMPLE_BYTES])
        left -= len(samples[-1])
    return samples
