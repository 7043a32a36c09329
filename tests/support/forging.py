"""Records by another writer, by seed: of every field, type and length, on a state topic."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from watchrelay.contract.headers import Header
from watchrelay.contract.records import MarkerRecord, content_hash, decode
from watchrelay.contract.state import judged, misfit
from watchrelay.core.errors import RecordRefused

FAR = b"900000000000000"
ODD_VALUES = (
    None, b"", b"\xff\xfe", b"null", b"[]", b"7", b"{}", b'{"kind":"Pod"}', b'{"metadata":7}', b'{"metadata":{}}',
    b'{"before":null,"after":{},"op":"c"}', b'{"before":', b'{"a":' * 3000, b"[" * 100_000, b'{"a":"' + b"x" * 300_000 + b'"}',
)  # fmt: skip
ODD_HEADERS = (
    b"", b"\xff", b"-1", b"+1", b"1_0", b"0x7", b"x", b"1" * 20, b"9" * 20, b"9" * 21, b"18446744073709551616", b"9223372036854775808",
    b"9007199254740992", b"100000", b"0", b"1.0", b"2.0", "\u0667".encode(), b"x" * 5000,
)  # fmt: skip
ODD_KEYS = (
    b"",
    b"/",
    b"x",
    b"n/",
    b"/x",
    b"a/b/c",
    b"\xff/\xfe",
    b"%wr/claim/pods/0",
    b"%wr/x/y",
    b"n/" + b"k" * 5000,
)


@dataclass(frozen=True, slots=True)
class Forged:
    """One record, and where it is written."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]

    @property
    def held(self) -> dict[str, bytes]:
        """Its headers by name."""
        return dict(self.headers)

    def having(self, **headers: bytes) -> Forged:
        """With these headers."""
        return replace(self, headers=tuple((self.held | headers).items()))

    def lacking(self, name: str) -> Forged:
        """Without this header."""
        return replace(self, headers=tuple(each for each in self.headers if each[0] != name))

    def hashed(self) -> Forged:
        """With the hash that its key and value have."""
        if self.value is None or self.key is None or "ce_wrhash" not in self.held:
            return self
        return self.having(ce_wrhash=b"%016x" % content_hash(self.key, self.value))

    @property
    def position(self) -> tuple[int, int]:
        """(0, 0) for none."""
        try:
            return int(self.held["ce_wrepoch"]), int(self.held["ce_sequence"])
        except (KeyError, TypeError, ValueError):
            return 0, 0

    def at(self, epoch: int, sequence: int) -> Forged:
        """Under this position."""
        return self.having(ce_wrepoch=b"%d" % epoch, ce_sequence=b"%020d" % sequence)

    def well_formed(self, prefix: bytes = b"") -> bool:
        """Whether only a list can tell that it is wrong."""
        try:
            found = decode(self.key, self.value, self.headers)
        except RecordRefused:
            return False
        if isinstance(found, MarkerRecord) or found.value is None:
            return True
        fits = not misfit(found.key, prefix, found.value, uid=found.uid, version=found.version)
        return fits and judged(found) is found


class Forger:
    """Forges records behind a log, whose records are handed in; `epochs` to come are never used:
    they take the stream, as they may."""

    def __init__(self, rng: Random, log: Sequence[Forged], partitions: int) -> None:
        self._rng, self._log, self._partitions = rng, [*log], partitions

    def forge(self) -> list[Forged]:
        """One to three records, which follow each other."""
        rng, forged = self._rng, list[Forged]()
        for _ in range(rng.choice([1, 1, 2, 3])):
            record = self._one()
            self._log.append(record)
            forged.append(record)
        return forged

    def _one(self) -> Forged:
        rng = self._rng
        markers = [each for each in self._log if (each.key or b"").startswith(b"%wr/")]
        objects = [each for each in self._log if each.value is not None and each.position[0]]
        base = rng.choice(markers[-20:] if rng.random() < 0.25 or not objects else objects)
        record = self._elsewhere(base) if rng.random() < 0.15 else base
        record = self._placed(record)
        for _ in range(rng.choice([0, 1, 1, 1, 2])):
            record = self._changed(record)
        if rng.random() < 0.05:
            record = replace(record, headers=())
        elif rng.random() < 0.1:
            name = rng.choice(record.headers)[0] if record.headers else "x"
            twice = (name, rng.choice(ODD_HEADERS))
            record = replace(record, headers=(twice, *record.headers))
        if record.position[0] > self._newest(record.partition)[0]:
            record = record.having(ce_wrepoch=b"x")
        return (
            record
            if record.key is not None or record.value is not None
            else replace(record, value=b"")
        )

    def _newest(self, partition: int) -> tuple[int, int]:
        return max(
            (
                each.position
                for each in self._log
                if each.partition == partition and each.position[1] < 10**12
            ),
            default=(1, 0),
        )

    def _elsewhere(self, record: Forged) -> Forged:
        return replace(record, partition=self._rng.randrange(self._partitions))

    def _placed(self, record: Forged) -> Forged:
        epoch, last = self._newest(record.partition)
        match self._rng.randrange(8):
            case 0:
                return record
            case 1:
                return record.at(epoch - 1, self._rng.choice([1, last, 10**9]))
            case 2:
                return record.at(epoch, last + self._rng.choice([2, 500]))
            case 3:
                return record.at(epoch, self._rng.choice([10**15, 2**63, 2**64, 10**20 - 1]))
            case _:
                return record.at(epoch, last + 1)

    def _changed(self, record: Forged) -> Forged:
        rng = self._rng
        match rng.randrange(10):
            case 9:
                return self._renamed(record)
            case 0:
                return replace(record, key=rng.choice([*ODD_KEYS, None])).hashed()
            case 1:
                return replace(record, value=rng.choice(ODD_VALUES)).hashed()
            case 2:
                return replace(record, value=rng.choice([*ODD_VALUES, record.value]))
            case 3 if record.headers:
                return record.lacking(rng.choice(record.headers)[0])
            case 4 | 5 if record.headers:
                return record.having(**{rng.choice(record.headers)[0]: rng.choice(ODD_HEADERS)})
            case 6:
                return self._versioned(record)
            case 7 if record.value is not None:
                gone = record.lacking("ce_wrhash").lacking("content-type")
                return replace(gone, value=None).having(
                    ce_type=b"dev.watchrelay.object.deleted.v1",
                    ce_wrrv=rng.choice([FAR, self._version(record)]),
                )
            case _:
                return self._edited(record)

    def _renamed(self, record: Forged) -> Forged:
        """Of another stream, or of another cluster under a position that readers ignore."""
        if self._rng.random() < 0.6:
            return record.having(ce_wrstream=b"ghost")
        elsewhere = record.having(ce_source=b"/clusters/elsewhere/api/v1/pods")
        return elsewhere.at(max(1, self._newest(record.partition)[0] - 1), 1)

    def _version(self, record: Forged) -> bytes:
        return record.held.get("ce_wrrv", b"1")

    def _versioned(self, record: Forged) -> Forged:
        version = self._rng.choice([FAR, b"1", b"soon", b"9" * 20, b"0", b"-5"])
        return self._with_metadata(record, "resourceVersion", version.decode()).having(
            ce_wrrv=version
        )

    def _edited(self, record: Forged) -> Forged:
        field = self._rng.choice(["name", "namespace", "uid", "more"])
        return self._with_metadata(record, field, "forged")

    def _with_metadata(self, record: Forged, field: str, value: str) -> Forged:
        try:
            tree = json.loads(record.value or b"")
            holder = next(
                each
                for each in (tree, tree.get("data"), tree.get("after"))
                if each and "metadata" in each
            )
            holder["metadata"][field] = value
        except (ValueError, AttributeError, StopIteration, TypeError, RecursionError):
            return record
        forged = replace(record, value=json.dumps(tree).encode())
        return forged.hashed() if holder is tree else forged
