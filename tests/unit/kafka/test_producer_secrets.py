"""New secrets: proven before they are used, while batches are on their way. In virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.producefake import answer_frame, batch_head, produce_request
from tests.support.producestage import (
    Stage,
    staged,
)
from tests.support.relays import until, virtual
from watchrelay.contract.wire import Receipt
from watchrelay.kafka.client.connection import KafkaConnection


@asynccontextmanager
async def with_a_password() -> AsyncIterator[tuple[Stage, asyncio.TaskGroup, Path]]:
    """A sink that runs with the password in a file, which is the right one."""
    with TemporaryDirectory() as directory:
        file = Path(directory) / "password"
        file.write_text("former")
        connection = KafkaConnection(
            bootstrap_servers=("nowhere:1",),
            protocol="SASL_PLAINTEXT",
            mechanism="PLAIN",
            username="relay",
            password_file=str(file),
        )
        async with staged(connection, password="former") as (stage, tasks):
            await asyncio.sleep(1.0)
            assert stage.reached == 1
            yield stage, tasks, file


@virtual
async def test_new_secrets_are_proven_before_batches_leave_by_new_links_and_nothing_is_cut() -> (
    None
):
    async with with_a_password() as (stage, tasks, file):
        first = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer(offset=2)
        await first
        file.write_text("the next")
        stage.password = "the next"
        await asyncio.sleep(7.5)
        held = stage.deliver(tasks, 0)
        await asyncio.sleep(2.5)
        assert stage.rebuilds("credentials") == 1
        former = stage.links[0][0]
        assert not former.is_closing(), "it is answered first"
        number, _ = produce_request(former.written[1])
        former.receive(answer_frame(number, [("t", 0, 0, 3)]))
        assert await held == Receipt([3])
        more = stage.deliver(tasks, 0)
        await asyncio.sleep(3.0)
        assert former.is_closing()
        ((_, batches),) = stage.sent()
        assert batch_head(batches[0][1])[:3] == (1, 0, 2), "the identity and its sequence go on"
        stage.answer(offset=4)
        assert await more == Receipt([4])
        assert (stage.connection.rotation.proven, dict(stage.statuses.problems)) == (1, {})


@virtual
async def test_secrets_that_came_into_use_because_the_brokers_went_are_complained_of_no_more() -> (
    None
):
    async with with_a_password() as (stage, tasks, file):
        file.write_text("the next")
        await asyncio.sleep(15.0)
        assert (
            "changed and are not usable; keeping the previous ones"
            in stage.statuses.problems["kafka"].message
        )
        stage.password = "the next"
        delivery = stage.deliver(tasks, 0)
        await until(lambda: bool(stage.links.get(0)) and bool(stage.links[0][-1].written))
        stage.answer(offset=7)
        assert await delivery == Receipt([7])
        assert "kafka" not in stage.statuses.problems
        assert stage.connection.rotation.proven == 1, "tails keep clients of the former password"
        await asyncio.sleep(60.0)
        assert stage.connection.rotation.proven == 1


@virtual
async def test_an_attempt_with_new_secrets_that_fails_after_they_came_into_use_is_no_complaint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with with_a_password() as (stage, tasks, file):
        file.write_text("the next")
        stage.password, stage.answer_s = "the next", 3.0
        await until(lambda: stage.reached == 2)
        await asyncio.sleep(0.1)
        stage.answer_s, stage.is_away = 0.0, True
        delivery = stage.deliver(tasks, 0)  # so the former brokers are left
        await asyncio.sleep(6.0)
        assert "no broker answers" in stage.statuses.problems["kafka"].message
        stage.is_away = False
        await until(lambda: stage.connection.rotation.proven == 1)
        await asyncio.sleep(1.0)
        stage.answer(offset=1)
        assert await delivery == Receipt([1])
        assert "kafka" not in stage.statuses.problems
    assert "new kafka secrets are not usable" not in caplog.text


@virtual
async def test_before_a_session_ends_batches_leave_by_a_new_link_and_nothing_is_cut() -> None:
    async with staged() as (stage, tasks):
        stage.session_s = 4.0
        first = stage.deliver(tasks, 0)
        await asyncio.sleep(3.1)
        second = stage.deliver(tasks, 2)
        await asyncio.sleep(0.3)
        third = stage.deliver(tasks, 4)
        await until(lambda: len(stage.links[0]) == 2)
        former = stage.links[0][0]
        assert [len(produce_request(each)[1]) for each in former.written] == [1, 1]
        assert not former.is_closing(), "it is answered first"
        for at, partition in enumerate((0, 2)):
            number, _ = produce_request(former.written[at])
            former.receive(answer_frame(number, [("t", partition, 0, 7)]))
        assert [(await each).offsets for each in (first, second)] == [[7], [7]]
        await until(former.is_closing)
        await until(lambda: bool(stage.sent()))
        stage.answer(offset=3)
        assert await third == Receipt([3])
        assert stage.rebuilds("watchdog") == 0
