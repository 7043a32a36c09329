"""A version that a stream is published in, and that the API server serves no longer: the objects are
there, in another version or in none that this release serves."""

from __future__ import annotations

import pytest

from tests.support.extent import few
from tests.unit.daemon.conftest import GROUP, Relay, World, running, until
from watchrelay.cli.audits import check_streams
from watchrelay.config import Settings

_WIDGETS = f"widgets.{GROUP}"
_HPAS = "horizontalpodautoscalers.autoscaling"


def prepare(world: World, stream: str, *versions: str) -> None:
    """Two objects of a resource that is served in these versions."""
    world.cluster.open_shop()
    if stream == _WIDGETS:
        world.define("widgets")
    plural, _, group = stream.partition(".")
    world.make_topic(f"{group}.{plural}")
    for name in ("one", "two"):
        metadata = {"name": name, "namespace": "shop"}
        world.cluster.registry.create(stream, {"metadata": metadata, "spec": {"replicas": 1}})
    serve(world, stream, *versions)


def serve(world: World, stream: str, *versions: str) -> None:
    """Another release of the API server, or of the CRD, serves the resource."""
    world.cluster.registry.catalog.serve(stream, *versions)
    world.cluster.server.end_watches("clean", stream)


def change(world: World, stream: str) -> None:
    held = world.cluster.registry.get(stream, "shop", "one")
    assert held is not None
    held["spec"]["replicas"] += 1
    world.cluster.registry.replace(stream, held)


async def whole(relay: Relay, stream: str) -> None:
    def is_whole() -> bool:
        row = relay.row(stream)
        return row is not None and row.complete and row.state == "watching"

    await until("it is whole", is_whole)


async def waits(relay: Relay, stream: str, reason: str) -> None:
    await until("it waits", lambda: (row := relay.row(stream)) and row.waits_for == reason)
    assert relay.row(stream).objects == 2
    ready = await relay.get_until("/readyz", lambda body: body["ready"])
    assert ready["streams"][stream]["reason"] == reason


async def verified(settings: Settings) -> int:
    """The exit code of `verify --cluster`."""
    return await check_streams(settings, [], cluster=True, each=False, as_json=False)


@pytest.mark.parametrize(
    ("entry", "stream", "reason"),
    few(
        [
            (f"*.{GROUP}/v1", _WIDGETS, f"{_WIDGETS} is served in v2, not as {_WIDGETS}/v1"),
            (f"{_HPAS}/v1", _HPAS, f"{_HPAS} is served in v2, not as {_HPAS}/v1"),
            (f"{_WIDGETS}/v1", _WIDGETS, f"{_WIDGETS} is served in v2, not as {_WIDGETS}/v1"),
        ],
        2,
    ),
)
async def test_its_stream_waits_with_its_objects_running_and_at_a_start_until_it_is_served_again(
    world: World, capsys: pytest.CaptureFixture[str], entry: str, stream: str, reason: str
) -> None:
    prepare(world, stream, "v2", "v1")
    if entry.startswith("*"):
        world.define("gadgets")  # so that the group is there in v1 all the time
        world.make_topic(f"{GROUP}.gadgets")
    settings = world.settings(entry)
    async with running(settings) as relay:
        await whole(relay, stream)
        assert await verified(settings) == 0
        serve(world, stream, "v2")
        await waits(relay, stream, reason)
        capsys.readouterr()
        assert await verified(settings) == 1
        printed = capsys.readouterr()
        assert f"stream {stream}: not compared with the cluster" in printed.err
        assert "the topic holds 2 objects of it" in printed.err
        assert "1 stream was not compared with the cluster" in printed.out
    async with running(settings) as relay:
        await waits(relay, stream, reason)
        change(world, stream)
        serve(world, stream, "v2", "v1")
        await whole(relay, stream)
        assert relay.row(stream).waits_for == ""
        assert relay.row(stream).objects == 2
        assert await verified(settings) == 0


async def test_a_resource_of_kubernetes_itself_that_no_version_serves_keeps_its_objects(
    world: World,
) -> None:
    prepare(world, _HPAS, "v1")
    settings = world.settings(f"{_HPAS}/v1")
    reason = (
        f"{_HPAS} is served in no version: this release of Kubernetes has dropped it, and its "
        "objects are kept"
    )
    async with running(settings) as relay:
        await whole(relay, _HPAS)
        serve(world, _HPAS)
        await waits(relay, _HPAS, reason)
    async with running(settings) as relay:
        await waits(relay, _HPAS, reason)
        assert await verified(settings) == 1
