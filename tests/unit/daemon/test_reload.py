"""The config file under editors, kubelets and mistakes. Virtual time; the relay is one that only
remembers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import virtualtime
from tests.support.mount import Mount
from watchrelay.config import Settings, load
from watchrelay.config.edits import Edit
from watchrelay.daemon.reload import ConfigSource, Objection, Reloader, describe
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

WITHIN_S = 15.0
"""So late at most an edit is taken. Source: the exact meanings of reload."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The config of a relay of pods."""
    file = tmp_path / "watchrelay.yaml"
    file.write_text(config("pods"))
    return file


def config(*resources: str, **more: Any) -> str:
    raw = {
        "cluster": "test",
        "kafka": {"bootstrapServers": ["a:1"]},
        "resources": [{"resource": each} for each in resources],
        **more,
    }
    return yaml.safe_dump(raw, sort_keys=False)


class Remembers:
    """Puts everything in force that it does not object to. `adopted` are the resources of
    each adopted settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.connected = True
        self.adopted: list[list[str]] = []
        self.objects: list[Objection] = []
        self.odd = False

    def objections(self, settings: Settings) -> list[Objection]:
        if self.odd:
            raise IndexError("odd input")
        return self.objects

    def adopt(self, settings: Settings) -> None:
        self.settings = settings
        self.adopted.append([entry.resource for entry in settings.resources])


class Rig:
    """A reloader at work on `file`, and what shows of it."""

    def __init__(self, file: Path, source: type[ConfigSource]) -> None:
        self.file = file
        loaded = load(str(file), environ={})
        self.relay, self.metrics, self.statuses = (
            Remembers(loaded.settings),
            Metrics(),
            StatusRegistry(),
        )
        describe(loaded.settings, self.metrics)
        self.reloader = Reloader(
            source(str(file), (), environ={}),
            self.relay,
            metrics=self.metrics,
            statuses=self.statuses,
        )

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def take_away(self) -> None:
        self.file.unlink()

    async def edited(self, *resources: str, **more: Any) -> None:
        """The file says this, and has for so long that it must have been taken."""
        self.write(config(*resources, **more))
        await asyncio.sleep(WITHIN_S)

    def sample(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"watchrelay_{name}")

    @property
    def hashes(self) -> list[str]:
        return [
            sample.labels["hash"]
            for family in self.metrics.gauge("config_info").collect()
            for sample in family.samples
        ]


@asynccontextmanager
async def reloading(file: Path, source: type[ConfigSource] = ConfigSource) -> AsyncIterator[Rig]:
    rig = Rig(file, source)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(rig.reloader.run(), name="config")
        yield rig
        task.cancel()


def virtually(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await body()

    virtualtime.run(main())


def test_a_mounted_config_map_that_is_swapped_is_taken(tmp_path: Path) -> None:
    async def body() -> None:
        mount = Mount(tmp_path / "config.yaml", config("pods"))
        async with reloading(mount.file) as rig:
            mount.swap(config("pods", "nodes"))
            await asyncio.sleep(WITHIN_S)
            assert rig.relay.adopted == [["pods", "nodes"]]
            mount.swap(config("nodes"))
            await asyncio.sleep(WITHIN_S)
            assert rig.relay.adopted == [["pods", "nodes"], ["nodes"]]

    virtually(body)


def test_a_file_that_is_written_over_or_replaced_is_taken(file: Path) -> None:
    async def body() -> None:
        async with reloading(file) as rig:
            await rig.edited("nodes")
            assert rig.relay.adopted == [["nodes"]]
            other = file.with_name("4913~")
            other.write_text(config("pods"))
            other.rename(file)
            await asyncio.sleep(WITHIN_S)
            assert rig.relay.adopted == [["nodes"], ["pods"]]

    virtually(body)


def test_a_file_that_is_being_written_is_not_read_before_it_is_stable(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with reloading(file) as rig:
            text = config("nodes", "pods")
            for end in range(0, len(text) + 7, 7):
                rig.write(text[:end])
                await asyncio.sleep(0.9)
            assert not rig.statuses.problems
            await asyncio.sleep(WITHIN_S)
            assert rig.relay.adopted == [["nodes", "pods"]]

    with caplog.at_level(logging.ERROR):
        virtually(body)
    assert not caplog.records


def test_a_wrong_edit_keeps_the_former_config_and_is_reported_until_it_is_corrected(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with reloading(file) as rig:
            accepted = rig.sample("config_last_reload_success_timestamp_seconds")
            former = rig.hashes
            rig.write(config("pods", "pods", heartbeatInterval="5", resorces=[]))
            await asyncio.sleep(10 * WITHIN_S)
            problem = rig.statuses.problems["reload"].message
            assert f"{file}:" in problem
            for word in (
                "heartbeatInterval",
                "5s",
                "resorces",
                "did you mean resources",
                "duplicate",
            ):
                assert word in problem
            assert rig.sample("config_last_reload_successful") == 0
            assert (rig.sample("config_last_reload_success_timestamp_seconds"), rig.hashes) == (
                accepted,
                former,
            )
            await rig.edited("pods")
            assert rig.statuses.problems == {}
            assert rig.sample("config_last_reload_successful") == 1
            assert rig.relay.adopted == [], "what is there again is in force already"

    virtually(body)
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.message for record in errors] == [
        "edited config refused, keeping the previous one"
    ], "logged once, not at each check"


@pytest.mark.parametrize(
    "text",
    ["", "a: [", "\x00", "[]", "cluster: " + "x" * (1 << 20)],
    ids=["empty", "broken", "binary", "list", "huge"],
)
def test_whatever_the_file_holds_the_relay_goes_on(file: Path, text: str) -> None:
    async def body() -> None:
        async with reloading(file) as rig:
            rig.write(text)
            await asyncio.sleep(WITHIN_S)
            assert str(file) in rig.statuses.problems["reload"].message
            assert rig.relay.adopted == []

    virtually(body)


def test_a_file_that_is_removed_is_reported_and_its_return_is_applied(file: Path) -> None:
    async def body() -> None:
        async with reloading(file) as rig:
            rig.take_away()
            await asyncio.sleep(WITHIN_S)
            assert "there is no such file" in rig.statuses.problems["reload"].message
            await rig.edited("nodes")
            assert rig.statuses.problems == {}
            assert rig.relay.adopted == [["nodes"]]

    virtually(body)


def test_what_needs_a_restart_is_named_once_and_the_rest_is_taken(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with reloading(file) as rig:
            edited: dict[str, Any] = {"queueBytes": "1MiB", "observe": {"listen": "127.0.0.1:1"}}
            await rig.edited("nodes", **edited)
            assert rig.relay.adopted == [["nodes"]]
            assert list(rig.statuses.problems) == ["restart"]
            assert rig.statuses.problems["restart"].message == (
                "a restart is needed for what was edited in queueBytes, observe.listen: "
                "the former values stay in force until then"
            )
            await rig.edited("nodes", "pods", **edited)
            assert rig.relay.settings.queue_bytes == 64 << 20
            assert rig.sample("config_last_reload_successful") == 1
            await rig.edited("nodes")
            assert rig.statuses.problems == {}

    virtually(body)
    assert [record.message for record in caplog.records].count(
        "configuration change requires a restart"
    ) == 1


def test_an_edit_that_is_read_while_the_connections_are_made_changes_nothing_of_them(
    file: Path,
) -> None:
    async def body() -> None:
        class Slow(ConfigSource):
            async def read(self, held: Settings, *, connected: bool) -> Edit:
                edit = await super().read(held, connected=connected)
                rig.relay.connected = True
                return edit

        async with reloading(file, Slow) as rig:
            rig.relay.connected = False
            await rig.edited("nodes", queueBytes="1MiB")
            assert rig.relay.adopted == [["nodes"]]
            assert rig.relay.settings.queue_bytes == 64 << 20
            assert "queueBytes" in rig.statuses.problems["restart"].message

    virtually(body)


def test_what_the_running_relay_objects_to_is_refused_with_its_line(file: Path) -> None:
    async def body() -> None:
        async with reloading(file) as rig:
            rig.relay.objects = [Objection(1, "cannot be", "keep it")]
            await rig.edited("pods", "nodes")
            assert (
                f"{file}:7: resources[1]: cannot be (keep it)"
                in rig.statuses.problems["reload"].message
            )
            assert rig.relay.adopted == []

    virtually(body)


def test_a_refused_edit_is_taken_once_what_it_was_refused_for_has_passed(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after `chmod`, or an error of the disk: the file is the same."""

    async def body() -> None:
        async with reloading(file) as rig:
            rig.relay.odd = True
            await rig.edited("nodes")
            rig.relay.odd = False
            rig.relay.objects = [Objection(0, "cannot be", "keep it")]
            await asyncio.sleep(10 * WITHIN_S)
            assert "cannot be" in rig.statuses.problems["reload"].message
            rig.reloader.request()
            await asyncio.sleep(0.1)
            rig.relay.objects = []
            await asyncio.sleep(3 * WITHIN_S)
            assert rig.relay.adopted == [["nodes"]]
            assert rig.statuses.problems == {}

    virtually(body)
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 3, "each cause once, and once more when it was asked for"


def test_an_edit_that_cannot_be_checked_is_refused(file: Path) -> None:
    async def body() -> None:
        async with reloading(file) as rig:
            rig.relay.odd = True
            await rig.edited("pods", "nodes")
            assert "IndexError" in rig.statuses.problems["reload"].message
            assert rig.relay.adopted == []

    virtually(body)


def test_asked_to_it_looks_at_once_and_whatever_the_stat_says(file: Path) -> None:
    async def body() -> None:
        async with reloading(file) as rig:
            await asyncio.sleep(3.5)
            rig.write(config("nodes"))
            rig.reloader.request()
            await asyncio.sleep(0.1)
            assert rig.relay.adopted == [["nodes"]]

    virtually(body)
