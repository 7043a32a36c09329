"""A broker and a control topic: the consumer library's reader, in a thread."""

import asyncio
import threading
from collections.abc import Callable
from typing import Self, TypeVar

from tests.support.pod_topics import state
from watchrelay.consumer import TopicReader

T = TypeVar("T")

_ANSWER_S = 30.0


class LiveReader:
    """A `TopicReader` that is iterated forever; a context manager.

    `by_changes` is the state that its changes alone make, by stream and key; it must be that of
    the reader itself.
    """

    def __init__(self, bootstrap: str, control_topic: str) -> None:
        self._reader = TopicReader(bootstrap, control_topic=control_topic)
        self.by_changes: dict[str, dict[bytes, bytes]] = {}
        self.changes = 0
        self._failed: list[BaseException] = []
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="live reader", daemon=True)

    def _run(self) -> None:
        try:
            self._task = self._loop.create_task(self._follow(), name="follow")
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001  # raised again in the thread of the test
            self._failed.append(error)
        finally:
            self._loop.close()

    async def _follow(self) -> None:
        async with self._reader as reader:
            async for change in reader:
                self.changes += 1
                table = self.by_changes.setdefault(change.stream, {})
                if change.value is None:
                    table.pop(change.key.encode(), None)
                else:
                    table[change.key.encode()] = change.value

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive() and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(_ANSWER_S)

    def _ask(self, question: Callable[[], T]) -> T:
        if self._failed:
            raise self._failed[0]

        async def answer() -> T:
            return question()

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result(_ANSWER_S)

    def tables(self) -> dict[str, dict[bytes, bytes]]:
        """Its present state, by stream."""
        return self._ask(
            lambda: {stream: table_of(self._reader, stream) for stream in self._reader.streams}
        )

    def from_changes(self) -> dict[str, dict[bytes, bytes]]:
        """The state that its changes alone make."""
        return self._ask(lambda: {stream: dict(table) for stream, table in self.by_changes.items()})

    def proven(self) -> bool:
        """Whether every partition agreed with its newest marker."""
        return self._ask(lambda: self._reader.proven)

    def problems(self) -> list[str]:
        """What it had to complain of."""
        return self._ask(
            lambda: [
                f"{each.kind} {each.topic}/{each.partition}@{each.offset}: {each.detail}"
                for each in self._reader.problems
            ]
        )


def table_of(reader: TopicReader, stream: str) -> dict[bytes, bytes]:
    """What `reader` holds, as the other readers of the tests have it."""
    return {key.encode(): value for key, value in state(reader, stream).items()}


async def fresh_tables(
    bootstrap: str, control_topic: str
) -> tuple[dict[str, dict[bytes, bytes]], list[str]]:
    """What a reader that starts now holds once it is ready, by stream, and what it complained
    of."""
    async with TopicReader(bootstrap, control_topic=control_topic, until_end=True) as reader:
        await reader.ready()
        return {stream: table_of(reader, stream) for stream in reader.streams}, [
            each.detail for each in reader.problems
        ]
