"""Work is done once for all who asked before it began."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.virtualtime import virtual
from watchrelay.core.errors import TopicRefused
from watchrelay.core.joined import Joined


class Work:
    """Takes a second. Its result is how often it was begun; `continued`: on from which results."""

    def __init__(self, *, refused: bool = False) -> None:
        self.begun, self._refused = 0, refused
        self.continued: list[int | None] = []
        self.joined = Joined(self._do)

    async def _do(self, key: str, before: int | None) -> int:
        self.begun += 1
        self.continued.append(before)
        number = self.begun
        await asyncio.sleep(1.0)
        if self._refused:
            raise TopicRefused(f"{key} {number}")
        return number


@virtual
async def test_all_who_ask_while_one_runs_share_the_next_one() -> None:
    work = Work()
    async with asyncio.TaskGroup() as tasks:
        asking = [
            tasks.create_task(work.joined.result("t"), name=f"asks {number}")
            for number in range(1000)
        ]
    # the first began before the others had asked
    assert [each.result() for each in asking] == [1] + [2] * 999
    assert await work.joined.result("t") == 3
    assert work.continued == [None, 1, None], "on from what is known while one asks"
    assert work.joined._places == {}


@virtual
async def test_keys_do_not_wait_for_each_other() -> None:
    work, now_s = Work(), asyncio.get_running_loop().time
    began_s = now_s()
    async with asyncio.TaskGroup() as tasks:
        for number in range(9):
            tasks.create_task(work.joined.result(f"t{number}"), name=f"asks {number}")
    assert now_s() - began_s == 1.0


@virtual
async def test_an_error_is_that_of_all_who_asked_before() -> None:
    work = Work(refused=True)
    found: list[str] = []

    async def ask() -> None:
        try:
            await work.joined.result("t")
        except TopicRefused as error:
            found.append(str(error))

    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(ask(), name=f"asks {number}")
    assert found == ["t 1"] + ["t 2"] * 4
    assert work.continued == [None, None]
    with pytest.raises(TopicRefused, match="t 3"):
        await work.joined.result("t")


@virtual
async def test_where_one_is_cancelled_the_next_one_does_the_work() -> None:
    work = Work()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(work.joined.result("t"), name="first")
        second = tasks.create_task(work.joined.result("t"), name="second")
        await asyncio.sleep(0.5)
        first.cancel()
    assert second.result() == 2
