"""A stream whose resource went while no relay ran, of which only the control topic tells."""

from __future__ import annotations

import pytest

from tests.unit.daemon.conftest import GROUP, World, running, until

_WIDGETS = f"widgets.{GROUP}"


@pytest.mark.parametrize("entry", [_WIDGETS, f"*.{GROUP}"])
async def test_it_runs_and_finds_that_its_resource_is_not_served(world: World, entry: str) -> None:
    world.make_topic(f"{GROUP}.widgets")
    world.cluster.open_shop()
    world.define("widgets")
    for name in ("one", "two"):
        body = {"apiVersion": f"{GROUP}/v1", "kind": "Widget"}
        world.cluster.registry.create(
            _WIDGETS, {**body, "metadata": {"name": name, "namespace": "shop"}}
        )
    settings = world.settings(entry)
    async with running(settings) as relay:
        await until("it is whole", lambda: relay.row(_WIDGETS) and relay.row(_WIDGETS).complete)
    world.cluster.registry.delete("customresourcedefinitions.apiextensions.k8s.io", "", _WIDGETS)
    async with running(settings) as relay:

        def waits() -> bool:
            row = relay.row(_WIDGETS)
            return row is not None and row.objects == 2 and "404" in (row.waits_for or "")

        await until("its objects are read back, and its watch waits", waits)
        assert list(relay.daemon.statuses.streams) == [_WIDGETS]
        assert relay.daemon.readiness.check()[0]
