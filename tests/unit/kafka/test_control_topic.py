"""A control topic in memory that is lost and recreated: what is written again, and how epochs go
on."""

import asyncio
from types import SimpleNamespace

import pytest

from tests.support.memorycontrol import DESCRIBED, MemoryControl
from tests.support.virtualtime import virtual
from watchrelay.contract.control import EPOCH_BASE_MAX, Value, control_value
from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core.errors import TopicLost, TopicRefused
from watchrelay.kafka.log_scan import no_epoch_left

INDEX: Value = {"snapshot": "9-1", "epoch": 0, "partitions": [{"partition": 0, "begin": 7}]}


@virtual
async def test_the_records_of_a_lost_topic_are_written_again_and_the_next_claim_goes_on_from_the_same_snapshot() -> (
    None
):
    topic = MemoryControl()
    assert not await topic.control.restore(), "nothing was lost"
    for _ in range(3):
        epoch = await topic.claim()
    await topic.control.write("snapshot", "pods", {**INDEX, "epoch": epoch})
    topic.lose()
    assert topic.control.described("pods") == {**DESCRIBED, "epochBase": 1}, (
        "until then the lost one is believed"
    )
    assert not topic.control.superseded("pods", epoch)
    topic.begin()
    assert await topic.control.restore()
    assert topic.records == [
        ("stream/pods", {**DESCRIBED, "epochBase": epoch + 1}),
        ("snapshot/pods", {**INDEX, "epoch": epoch}),
    ]
    assert await topic.claim() > epoch
    claim = topic.records[-1][1]
    assert claim is not None
    assert claim["from"] == {"snapshot": "9-1", "begin": [7]}
    assert await topic.control.read_starting_point("pods", 1) == claim["from"], (
        "the index is of a former epoch"
    )
    assert not await topic.control.restore()


@virtual
async def test_what_others_wrote_on_the_new_topic_is_kept() -> None:
    topic = MemoryControl()
    epoch = await topic.claim()
    await topic.claim("nodes")
    topic.lose()
    topic.begin()
    records: list[tuple[str, Value]] = [
        ("stream", {**DESCRIBED, "epochBase": 50}),
        ("claim", {"instance": "x", "from": None}),
    ]
    for kind, value in records:
        topic.control.take(
            SimpleNamespace(
                offset=len(topic.records),
                key=f"{kind}/pods".encode(),
                value=control_value(value),
                headers=(),
            )
        )
        topic.records.append((f"{kind}/pods", value))
    await topic.control.restore()
    assert [key for key, _ in topic.records] == ["stream/pods", "claim/pods", "stream/nodes"]
    assert topic.control.superseded("pods", epoch), "somebody else took it over"


@virtual
async def test_a_stream_that_was_retired_is_not_brought_back() -> None:
    topic = MemoryControl()
    await topic.claim()
    await topic.control.forget("pods")
    topic.lose()
    topic.begin()
    assert await topic.control.restore()
    assert topic.records == []


@virtual
async def test_a_stream_without_epochs_above_its_last_is_not_described_under_a_base_that_is_refused() -> (
    None
):
    topic = MemoryControl()
    await topic.control.write("stream", "pods", {**DESCRIBED, "epochBase": EPOCH_BASE_MAX})
    assert await topic.claim() > EPOCH_BASE_MAX
    topic.lose()
    topic.begin()
    assert await topic.control.restore()
    assert topic.records == []
    assert no_epoch_left("t", "pods", EPOCH_BASE_MAX)
    assert not no_epoch_left("t", "pods", EPOCH_BASE_MAX - 1)


@virtual
async def test_a_topic_lost_again_before_it_was_restored_is_restored_from_the_first() -> None:
    topic = MemoryControl()
    epoch = await topic.claim()
    topic.lose()
    topic.lose()
    topic.begin()
    await topic.control.restore()
    assert topic.records == [("stream/pods", {**DESCRIBED, "epochBase": epoch + 1})]
    topic.lose()
    topic.begin()
    await topic.control.restore()
    assert topic.records == [("stream/pods", {**DESCRIBED, "epochBase": epoch + 1})]


@virtual
async def test_a_claim_that_a_loss_overtakes_fails_with_the_reason() -> None:
    topic = MemoryControl()
    await topic.claim()
    topic.deaf = True

    async def lost() -> None:
        with pytest.raises(TopicLost, match="was recreated before offset 2 was read"):
            await topic.claim()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lost())
        await asyncio.sleep(1)
        topic.lose()


@virtual
async def test_a_claim_that_lands_on_a_topic_whose_loss_nobody_noticed_yet_fails_with_the_reason() -> (
    None
):
    topic = MemoryControl()
    await topic.claim()
    topic.records.clear()
    topic.deaf = True
    with pytest.raises(TopicLost, match="a claim got offset 0, and 2 were read before it"):
        await topic.claim()


@virtual
async def test_a_release_is_waited_for_and_is_of_its_epoch_or_a_later_one() -> None:
    topic, loop = MemoryControl(), asyncio.get_running_loop()
    epoch = await topic.claim()
    assert topic.control.newest_claims("pods") == {"pods": epoch}
    began_s = loop.time()
    assert not await topic.control.released({"pods": epoch}, within_s=1.0)
    assert loop.time() == began_s + 1.0
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(topic.control.released({"pods": epoch}, within_s=1.0))
        await asyncio.sleep(0.2)
        await topic.control.write("release", "pods", {"epoch": epoch})
    assert waiting.result()
    assert loop.time() < began_s + 1.5
    assert await topic.control.released({"pods": epoch - 1}, within_s=1.0)
    await topic.control.forget("pods")
    assert ("release/pods", None) in topic.records


@virtual
async def test_a_stream_that_was_never_handed_over_is_forgotten_without_a_release() -> None:
    topic = MemoryControl()
    await topic.claim()
    await topic.control.forget("pods")
    assert [key for key, value in topic.records if value is None] == [
        "snapshot/pods",
        "claim/pods",
        "stream/pods",
    ]


@virtual
async def test_a_claim_hands_on_the_transactional_ids_of_the_claims_before() -> None:
    topic = MemoryControl()

    def named() -> object:
        claim = topic.records[-1][1]
        assert claim is not None
        return claim.get("ids")

    await topic.claim()
    assert named() is None
    for own, ids in (("a", ["a"]), ("b", ["a", "b"]), ("", ["a", "b"])):
        await topic.claim(transactional_id=own)
        assert named() == ids
    topic.lose()
    topic.begin()
    assert await topic.control.restore()
    await topic.claim(transactional_id="c")
    assert named() == ["a", "b", "c"], "also when the topic was lost"
    assert topic.control.former_ids("pods", "c") == ["a", "b"]


# ---- parts ---------------------------------------------------------------------------------------

SPLIT: dict[str, object] = {"topic": "t", "partitions": 4}


async def claim_part(topic: MemoryControl, stream: str, *, transactional_id: str = "") -> int:
    origin = await topic.control.read_starting_point(stream, 4)
    return await topic.control.claim(
        stream,
        SPLIT,
        starting_point=origin,
        highest_epoch=topic.nothing,
        transactional_id=transactional_id,
    )


@virtual
async def test_parts_claim_their_partitions_and_the_last_one_puts_a_claim_of_none_behind() -> None:
    topic = MemoryControl()
    whole = await claim_part(topic, "pods")
    first = await claim_part(topic, "pods%0/2")
    assert topic.control.superseded("pods", whole), "of two of its partitions"
    assert [key for key, _ in topic.records] == ["stream/pods", "claim/pods", "claim/pods%0/2"]
    second = await claim_part(topic, "pods%1/2")
    assert whole < first < second
    assert not topic.control.superseded("pods%0/2", first)
    assert not topic.control.superseded("pods%1/2", second)
    claims = [(key, value) for key, value in topic.records if key.startswith("claim/")]
    assert [(key, (value or {}).get("partitions", "all")) for key, value in claims] == [
        ("claim/pods", "all"),
        ("claim/pods%0/2", [0, 1]),
        ("claim/pods%1/2", [2, 3]),
        ("claim/pods", []),
    ]
    await claim_part(topic, "pods%0/2")
    assert topic.records[-1][0] == "claim/pods%0/2", "once is enough"


@virtual
async def test_a_part_that_is_first_claimed_while_another_looks_for_epochs_is_not_superseded() -> (
    None
):
    topic, first = MemoryControl(), 0

    async def highest_epoch() -> int:
        nonlocal first
        first = await claim_part(topic, "pods%0/2")
        return first  # its claim markers are on the topic by now

    second = await topic.control.claim(
        "pods%1/2",
        {"topic": "t", "partitions": 4},
        starting_point=None,
        highest_epoch=highest_epoch,
    )
    assert second > first
    assert not topic.control.superseded("pods%0/2", first)
    assert [key for key, _ in topic.records].count("stream/pods") == 1


@virtual
async def test_a_claim_of_another_layout_or_of_the_whole_ends_a_part() -> None:
    topic = MemoryControl()
    halves = {name: await claim_part(topic, name) for name in ("pods%0/2", "pods%1/2")}
    await claim_part(topic, "pods%1/4")
    assert topic.control.superseded("pods%0/2", halves["pods%0/2"])
    assert not topic.control.superseded("pods%1/2", halves["pods%1/2"])
    retired = await claim_part(topic, "pods")
    assert topic.control.superseded("pods%1/2", halves["pods%1/2"])
    assert topic.control.newest_claims("pods%1/2") == {"pods": retired}


@virtual
async def test_a_part_of_a_stream_that_was_never_split_waits_for_the_release_of_the_whole() -> None:
    topic = MemoryControl()
    whole = await claim_part(topic, "pods")
    for part in ("pods%0/2", "pods%1/2"):
        assert topic.control.newest_claims(part) == {"pods": whole}
        assert topic.control.holder_of(part) == topic.control.holder


@virtual
async def test_a_part_waits_for_the_release_of_each_part_whose_partitions_it_takes() -> None:
    topic = MemoryControl()
    quarters = {
        name: await claim_part(topic, name)
        for name in ("pods%0/4", "pods%1/4", "pods%2/4", "pods%3/4")
    }
    former = topic.control.newest_claims("pods%0/2")
    assert former == {name: quarters[name] for name in ("pods%0/4", "pods%1/4")}
    await topic.control.write("release", "pods%0/4", {"epoch": quarters["pods%0/4"]})
    assert not await topic.control.released(former, within_s=1.0)
    await topic.control.write("release", "pods%1/4", {"epoch": quarters["pods%1/4"]})
    assert await topic.control.released(former, within_s=1.0)


@virtual
async def test_a_part_takes_the_transactional_ids_of_all_that_wrote_its_partitions_and_of_no_other() -> (
    None
):
    topic = MemoryControl()
    await topic.claim(transactional_id="whole")
    for name in ("pods%0/4", "pods%1/4", "pods%2/4", "pods%3/4", "pods%1/2", "pods%0/4"):
        await claim_part(topic, name, transactional_id=name)
    for _ in range(2):
        control = topic.control
        assert control.former_ids("pods%0/4", "pods%0/4") == ["whole"]
        quarters = ["pods%0/4", "pods%1/4"]
        assert control.former_ids("pods%0/2", "pods%0/2") == ["whole", *quarters]
        assert control.former_ids("pods%2/4", "new") == ["whole", "pods%2/4", "pods%1/2"]
        assert len(control.former_ids("pods", "whole")) == 5
        topic.lose()
        topic.begin()
        assert await control.restore()


@virtual
async def test_a_whole_stream_claimed_just_before_the_claim_of_no_partition_is_owned_by_that_claim() -> (
    None
):
    """As by `retire`, or by a relay of another config: the last part has read its own claim, and
    not yet this one."""

    retirement = {"instance": "x", "holder": "retire", "from": None}
    claim = WireRecord(b"claim/pods", control_value(retirement), [])

    class Overtaken(MemoryControl):
        """Another writer's claim arrives between the request of the second part and its record."""

        async def deliver(self, batch: Batch) -> Receipt:
            if claims_made == 1 and batch.records[0].key == claim.key:
                await super().deliver(Batch("control", 0, [claim], "pods"))
            return await super().deliver(batch)

    topic, claims_made = Overtaken(), 0
    first = await claim_part(topic, "pods%0/2")
    claims_made = 1
    second = await claim_part(topic, "pods%1/2")
    claims = [(value or {}).get("partitions", "all") for _, value in topic.records[1:]]
    assert claims == [[0, 1], [2, 3], "all", []]
    control = topic.control
    assert control.superseded("pods%0/2", first)
    assert control.superseded("pods%1/2", second)
    (whole,) = control.newest_claims("pods").items()
    assert whole == ("pods", 1 + 3)
    assert not control.superseded(*whole)
    assert control.holder_of("pods%0/2") == "retire"


@virtual
async def test_the_claim_of_no_partition_hands_on_the_ids_of_the_whole_stream() -> None:
    topic = MemoryControl()
    await topic.claim(transactional_id="whole")
    for name in ("pods%0/2", "pods%1/2"):
        await claim_part(topic, name, transactional_id=name)
    key, claim = topic.records[-1]
    assert claim is not None
    assert (key, claim["partitions"], claim["ids"]) == ("claim/pods", [], ["whole"])


@virtual
async def test_what_is_known_of_parts_survives_a_lost_topic_and_is_forgotten_with_the_stream() -> (
    None
):
    topic = MemoryControl()
    epochs = [await claim_part(topic, name) for name in ("pods%0/2", "pods%1/2")]
    index: Value = {
        "snapshot": "9-1",
        "epoch": epochs[0],
        "partitions": [{"partition": each, "begin": 7} for each in (0, 1)],
    }
    await topic.control.write("snapshot", "pods%0/2", index)
    topic.lose()
    topic.begin()
    assert await topic.control.restore()
    assert topic.records[1] == ("snapshot/pods%0/2", index)
    assert await claim_part(topic, "pods%0/2") > max(epochs)
    claim = topic.records[-1][1]
    assert claim is not None
    begun = {"snapshot": {"0": "9-1", "1": "9-1"}, "begin": {"0": 7, "1": 7}}
    assert claim["from"] == begun
    await claim_part(topic, "pods%1/2")
    assert await topic.control.read_starting_point("pods%0/2", 4) == begun, "claimed again or not"
    topic.lose()
    topic.begin()
    assert await topic.control.restore()
    await claim_part(topic, "pods%1/2")
    assert await topic.control.read_starting_point("pods%0/2", 4) == begun
    await topic.control.forget("pods")
    assert {key for key, value in topic.records if value is None} >= {
        "snapshot/pods%0/2",
        "claim/pods%0/2",
        "claim/pods",
        "stream/pods",
    }


def large_index(epoch: int, partitions: int) -> Value:
    """The index record of a stream with many partitions, of a snapshot that was requested."""
    each = {"begin": 7, "end": 9, "count": 3, "digest": "0" * 16}
    shares = [{"partition": partition, **each} for partition in range(partitions)]
    return {"snapshot": "9-1", "epoch": epoch, "requests": ["r" * 200] * 500, "partitions": shares}


@virtual
async def test_an_index_record_that_does_not_fit_is_written_without_requests_or_left_out() -> None:
    topic = MemoryControl()
    epoch = await topic.claim()
    await topic.control.write("snapshot", "pods", {**INDEX, "epoch": epoch})
    topic.limit = topic.grown = 10_000
    await topic.control.write("snapshot", "pods", large_index(epoch, 50))
    assert topic.records[-1] == ("snapshot/pods", large_index(epoch, 50) | {"requests": []})
    written = len(topic.records)
    await topic.control.write("snapshot", "pods", large_index(epoch, 500))
    assert len(topic.records) == written
    assert topic.problems["index pods"].message.endswith(
        "is over its max.message.bytes; mend it with: kafka-configs.sh --bootstrap-server "
        "nowhere:1 --alter --entity-type topics --entity-name control --add-config "
        "max.message.bytes=4194304"
    )
    # as soon as it fits
    topic.grown = 1 << 20
    await topic.control.write("snapshot", "pods", large_index(epoch, 500))
    assert topic.records[-1] == ("snapshot/pods", large_index(epoch, 500))
    assert topic.problems == {}


@pytest.mark.parametrize(
    ("setting", "cure"), [("max.message.bytes", 4 << 20), ("segment.bytes", 1 << 30)]
)
@virtual
async def test_a_claim_that_does_not_fit_is_refused_by_name_until_it_does(
    setting: str, cure: int
) -> None:
    topic = MemoryControl()
    topic.limit = topic.grown = 100
    topic.bounded_by = setting
    what = rf"record claim/pods of \d+ bytes is over its {setting};.*{setting}={cure}"
    with pytest.raises(TopicRefused, match=what):
        await topic.claim()
    topic.grown = 1 << 20
    assert await topic.claim() > 0


@virtual
async def test_a_topic_that_is_lost_is_restored_without_what_does_not_fit() -> None:
    topic = MemoryControl()
    epoch = await topic.claim()
    await topic.control.write("snapshot", "pods", large_index(epoch, 500))
    topic.lose()
    topic.limit = topic.grown = 1000
    topic.begin()
    assert await topic.control.restore()
    assert [key for key, _ in topic.records] == ["stream/pods"]
    topic.lose()
    topic.limit = topic.grown = 10
    topic.begin()
    assert await topic.control.restore()
    assert topic.records == []


@virtual
async def test_a_claim_names_the_newest_transactional_ids_and_its_own_last() -> None:
    topic = MemoryControl()
    for number in range(200):
        await topic.claim(transactional_id=f"id-{number}")
    await topic.claim(transactional_id="id-160")
    claim = topic.records[-1][1]
    assert claim is not None
    ids = claim["ids"]
    assert ids == [*(f"id-{each}" for each in range(150, 200) if each != 160), "id-160"]
    assert len(ids) == 50
    assert topic.control.former_ids("pods", "id-160") == ids[:-1]


def test_a_claim_of_a_release_that_names_any_number_of_ids_is_read_to_the_same_end() -> None:
    topic = MemoryControl()
    ids = [f"id-{number}" for number in range(500)]
    value = control_value({"instance": "x", "from": None, "ids": ids})
    topic.control.take(SimpleNamespace(offset=0, key=b"claim/pods", value=value, headers=()))
    assert topic.control.former_ids("pods", "mine") == ids[-50:]


@virtual
async def test_after_a_topic_lost_its_newest_records_alone_epochs_go_on_above_all_that_were_read() -> (
    None
):
    """An unclean election: the description is there with its former base, the newest claims are
    not, and others were written in their place."""

    topic = MemoryControl()
    for _ in range(8):
        epoch = await topic.claim()
    kept = topic.records[:3]
    topic.lose()
    for offset, (key, value) in enumerate(kept):
        assert value is not None
        record = SimpleNamespace(
            offset=offset, key=key.encode(), value=control_value(value), headers=()
        )
        topic.control.take(record)
    topic.records += kept
    topic.begin()
    assert not topic.control.superseded("pods", epoch)
    assert await topic.control.restore()
    assert topic.records[3:] == [("stream/pods", {**DESCRIBED, "epochBase": epoch + 1})]
    assert await topic.claim() > epoch


@virtual
async def test_a_topic_that_has_grown_over_what_it_lost_is_described_as_it_is() -> None:
    topic = MemoryControl()
    epoch = await topic.claim()
    topic.lose()
    newer = ("claim/pods", {"instance": "x", "holder": "x", "from": None})
    for offset, (key, value) in (
        (0, ("stream/pods", {**DESCRIBED, "epochBase": 1})),
        (9, newer),
    ):
        record = SimpleNamespace(
            offset=offset, key=key.encode(), value=control_value(value), headers=()
        )
        topic.control.take(record)
        topic.records.append((key, value))
    topic.begin()
    assert topic.control.superseded("pods", epoch)
    assert await topic.control.restore()
    assert len(topic.records) == 2, "its claims are above all before"


@virtual
async def test_the_problem_of_an_index_record_leaves_with_its_stream() -> None:
    topic = MemoryControl()
    for stream in ("pods", "nodes"):
        epoch = await topic.claim(stream)
        topic.statuses.open(stream)
        topic.limit = topic.grown = 1000
        await topic.control.write("snapshot", stream, large_index(epoch, 500))
        topic.limit = topic.grown = 1 << 20
    assert {*topic.problems} == {"index pods", "index nodes"}
    topic.statuses.close("pods")
    assert {*topic.problems} == {"index nodes"}


@virtual
async def test_a_record_of_one_stream_has_the_owners_of_no_other_looked_for_again() -> None:
    topic = MemoryControl()
    for stream in ("pods%0/2", "pods%1/2"):
        await claim_part(topic, stream)
    held = topic.control._state.of("pods")
    assert topic.control.holder_of("pods") == "h"
    owners = held.owners(4)
    for number in range(3):
        key = f"release/other{number}".encode()
        record = SimpleNamespace(offset=90 + number, key=key, value=b'{"epoch":1}', headers=())
        topic.control.take(record)
    assert held.owners(4) is owners
    await claim_part(topic, "pods%0/2")
    assert held.owners(4) is not owners
