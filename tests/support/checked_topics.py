"""All records of topics: their tables, whether they are proven, and every broken rule.

Tests ask here; `TopicReader` is one that reads its topics from Kafka.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from tests.support.checked_partition import CheckedPartition, KnownObject
from tests.support.wirerules import ParsedRecord, Raw, understand


class Writer(Protocol):
    """A relay that can report why it published something twice."""

    def rebuilds(self) -> Mapping[str, float]:
        """How often it resent batches in flight, by reason."""

    def explained(self) -> str:
        """The same with its last warnings, as text."""


class CheckedTopics:
    """What the topics hold, as `take` is given it.

    `records` are all, in the order taken; `problems` one line each, empty for a right topic;
    `duplicates` and `stale` count what the contract tells a reader to ignore.
    """

    def __init__(self, *topics: str, writers: Sequence[Writer] = ()) -> None:
        """`writers` are those who write the topics; it may grow."""
        self.topics = topics
        self._writers = writers
        self.records: list[ParsedRecord] = []
        self.problems: list[str] = []
        self.partitions: dict[tuple[str, int], CheckedPartition] = {}
        self.plain: dict[str, dict[bytes, bytes]] = {topic: {} for topic in topics}
        """What a table that knows no markers holds: upsert by key, null is delete."""
        self.duplicates = self.stale = 0
        self.ignored: set[tuple[str, int, int]] = set()
        """Topic, partition and offset of those."""

    def take(self, raw: Raw) -> None:
        """The next record of its partition."""
        if raw.key is not None:
            if raw.value is None:
                self.plain[raw.topic].pop(raw.key, None)
            else:
                self.plain[raw.topic][raw.key] = raw.value
        try:
            record = understand(raw)
        except ValueError as error:
            self.problems.append(str(error))
            return
        self.records.append(record)
        self.problems.extend(f"{record}: {problem}" for problem in record.problems)
        if not record.problems:
            self._apply(record)

    def _apply(self, record: ParsedRecord) -> None:
        partition = self.partitions.setdefault(
            (record.stream, record.raw.partition), CheckedPartition(self.problems)
        )
        outcome = partition.apply(record)
        self.duplicates += outcome == "duplicate"
        self.stale += outcome == "stale"
        if outcome != "applied":
            self.ignored.add(record.place)

    def partitions_of(self, stream: str) -> list[CheckedPartition]:
        """The stream's partitions that had any record."""
        return [
            partition for (name, _), partition in sorted(self.partitions.items()) if name == stream
        ]

    def held(self, stream: str) -> dict[bytes, KnownObject]:
        """All objects of the stream, with what stood on their records."""
        return {
            key: one
            for partition in self.partitions_of(stream)
            for key, one in partition.held.items()
        }

    def table(self, stream: str) -> dict[bytes, bytes]:
        """The stream's state by key, as section 5 rebuilds it."""
        return {key: one.value for key, one in self.held(stream).items()}

    def epoch(self, stream: str) -> int:
        """The newest epoch of the stream; 0 before any record."""
        return max((partition.epoch for partition in self.partitions_of(stream)), default=0)

    def proven(self, stream: str) -> bool:
        """True when each partition's newest marker agreed with the state held there."""
        partitions = self.partitions_of(stream)
        return bool(partitions) and all(partition.proven for partition in partitions)

    def of(self, stream: str, *types: str) -> list[ParsedRecord]:
        """The stream's records of these types (all if none are named), in the order read."""
        return [
            record
            for record in self.records
            if record.stream == stream and (not types or record.type in types)
        ]

    def about(self, stream: str, key: str) -> list[ParsedRecord]:
        """The records of one object, oldest first."""
        return [record for record in self.of(stream) if record.key == key.encode()]

    def sources(self, stream: str) -> set[str]:
        """Every ce_source that the stream's records name."""
        return {record.headers["ce_source"] for record in self.of(stream)}

    def accounts(self) -> Counter[str]:
        """Every object record on the topics, by reason.

        `changes`: sent by the watch, or found by a list. `snapshot`: members of snapshots, those
        cut short among them. `ignored`: appended late, or twice, around a kill; readers skip
        them. `healed`: published again because of one of those.
        """
        kinds: Counter[str] = Counter()
        for record in self.records:
            if record.is_object:
                reason = record.headers["ce_wrreason"]
                kinds[
                    "ignored"
                    if record.place in self.ignored
                    else reason
                    if reason in {"snapshot", "healed"}
                    else "changes"
                ] += 1
        return kinds

    def describe(self) -> str:
        """The state of everything, in one line, for failures."""
        partitions = {
            f"{stream}/{at}": (
                partition.epoch,
                partition.last,
                len(partition.held),
                partition.proven,
            )
            for (stream, at), partition in self.partitions.items()
        }
        return (
            f"{len(self.records)} records, partitions (epoch, last, objects, proven) {partitions}, "
            f"problems {self.problems[:5]}"
        )

    def assert_right(self, *streams: str, duplicates: bool = False) -> None:
        """No broken rule, every partition of these streams proven, and nothing published twice
        unless `duplicates`.

        What a writer resent, by its own count, may be on the log twice, and is printed; without a
        rebuild of its producer nothing may.
        """
        assert self.problems == [], "\n".join(self.problems[:20])
        for stream in streams:
            assert self.proven(stream), f"{stream} is not proven: {self.describe()}"
            assert len(self.sources(stream)) == 1, self.sources(stream)
        if duplicates or (self.duplicates, self.stale) == (0, 0):
            return
        twice = f"duplicates {self.duplicates}, stale {self.stale}"
        reasons = "\n".join([writer.explained() for writer in self._writers])
        assert self.stale == 0, f"{twice}\n{reasons}"
        assert any(writer.rebuilds() for writer in self._writers), (
            f"{twice}, and no writer resent anything\n{reasons}"
        )
        print(f"{twice}: resent after a rebuild of the producer\n{reasons}")
