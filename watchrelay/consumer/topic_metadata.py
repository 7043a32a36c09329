"""Compares the streams that the control topic describes with the topics and partitions that
exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from watchrelay.consumer.changes import LaneState
from watchrelay.consumer.origin import DescribedStream
from watchrelay.core.text import counted, printable

TopicPartitions = Mapping[str, frozenset[int]]
"""The partitions of each topic that may be seen."""


def what_is_missing(
    described: Mapping[str, DescribedStream], there: TopicPartitions, *, control: str, servers: str
) -> dict[str, str]:
    """By stream: which part of its topic is not there, who says that there should be more, and the
    cure."""
    missing: dict[str, str] = {}
    for stream, each in described.items():
        topic, found = printable(each.topic), len(there.get(each.topic, ()))
        if not found:
            missing[stream] = (
                f"topic {topic} of stream {stream} is described on {control} and not there, "
                "or may not be seen: start the relay, which "
                "makes it where kafka.createTopics allows, or grant READ and DESCRIBE on it; "
                "if nobody is to write the stream any more, "
                f"retire it: watchrelay retire {printable(stream)}"
            )
        elif found < each.partitions:
            missing[stream] = (
                f"topic {topic} of stream {stream} has {counted(found, 'partition')}, the "
                f"description on {control} says {each.partitions}: "
                f"kafka-topics.sh --bootstrap-server {servers} --alter --topic {topic} "
                f"--partitions {each.partitions}"
            )
    return missing


def what_is_unproven(
    lanes: Sequence[LaneState], expected: Mapping[str, int], missing: Mapping[str, str]
) -> str:
    """Which streams and partitions wait for their proof. `expected` partitions by stream; of
    `missing` ones the words are known."""
    found = Counter(lane.stream for lane in lanes)
    waits = [f"{lane.stream}/{lane.partition}" for lane in lanes if not lane.proven]
    waits += [
        f"{stream} ({found[stream]} of {counted(partitions, 'partition')} found)"
        for stream, partitions in sorted(expected.items())
        if stream not in missing and found[stream] < partitions
    ]
    return (
        "; ".join([", ".join(waits)] * bool(waits) + list(missing.values()))
        or "no stream was found"
    )
