"""The version of a resource that a stream was started with, of which the control topic tells."""

from __future__ import annotations

import pytest

from tests.unit.daemon.conftest import GROUP, World, definition, running, settings_of, until
from watchrelay.cli.audits import check_streams
from watchrelay.config.streams import control_topic
from watchrelay.kafka.log_scan import descriptions
from watchrelay.kube.discovery.catalog import ApiCatalog, ApiGroup, Version
from watchrelay.kube.discovery.resolve import Found, resolve
from watchrelay.model.resources import Resource, ServedResource
from watchrelay.plan.described import in_versions_described
from watchrelay.plan.kafka import kafka_connection
from watchrelay.plan.streams import plan_streams

_WIDGETS = f"widgets.{GROUP}"


def catalog(*versions: str, stale: str = "") -> ApiCatalog:
    """Of a server that serves widgets in these versions, the preferred one first."""

    def served(version: str) -> tuple[ServedResource, ...]:
        resource = Resource(GROUP, version, "widgets", "Widget", namespaced=True)
        return (ServedResource(resource, "widget", ("wd",), watchable=True),)

    return ApiCatalog(
        (
            ApiGroup(
                GROUP,
                tuple(
                    Version(each, each != stale, () if each == stale else served(each))
                    for each in versions
                ),
            ),
        )
    )


@pytest.mark.parametrize(
    ("resource", "versions", "stale", "kept"),
    [
        (_WIDGETS, ["v2", "v1"], "", "v1"),
        ("wd", ["v2", "v1"], "", "v1"),
        (f"*.{GROUP}", ["v2", "v1"], "", "v1"),
        (_WIDGETS, ["v2", "v1"], "v1", "v1"),  # a server that does not answer: unknown
        (_WIDGETS, ["v3", "v2"], "", "v3"),  # served no longer
        (f"{_WIDGETS}/v2", ["v2", "v1"], "", "v2"),  # named
        (f"*.{GROUP}/v2", ["v2", "v1"], "", "v2"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"id": "mine"}, {"namespaces": ["shop"]}])
def test_a_stream_keeps_its_version_while_that_is_served_and_no_other_is_named(
    resource: str, versions: list[str], stale: str, kept: str, more: dict[str, object]
) -> None:
    settings = settings_of([{"resource": resource, **more}])
    (entry,) = settings.resources
    former = Resource(GROUP, "v1", "widgets", "Widget", namespaced=True)
    (stream,) = plan_streams(settings, entry, former, prefixed=False)
    described = {stream.spec.id: {**stream.spec.description, "epochBase": 1}, "other": {}}
    served = catalog(*versions, stale=stale)
    resolution = resolve(resource, served)
    found = in_versions_described(entry, resolution, described, served)
    assert isinstance(found, Found)
    assert [each.version for each in found.resources] == [kept]
    assert in_versions_described(
        entry, resolution, {"other": described[stream.spec.id]}, served
    ) == (resolution), "the description of another stream"


async def test_a_restart_keeps_the_version_that_consumers_see_until_it_is_served_no_longer(
    world: World,
) -> None:
    """It is in each record (apiVersion, ce_apiversion) and in the description: another one makes
    every object a changed one."""
    world.make_topic(f"{GROUP}.widgets")
    world.cluster.open_shop()
    world.define("widgets")
    body = {"apiVersion": f"{GROUP}/v1", "kind": "Widget"}
    world.cluster.registry.create(
        _WIDGETS, {**body, "metadata": {"name": "one", "namespace": "shop"}}
    )
    settings = world.settings(_WIDGETS)

    def serve(*versions: str) -> None:
        world.cluster.registry.catalog.define(definition("widgets", *versions))

    async def runs(version: str) -> None:
        async with running(settings) as relay:

            def whole() -> bool:
                row = relay.row(_WIDGETS)
                return row is not None and row.complete and row.state == "watching"

            await until("it is whole", whole)
            connection = kafka_connection(settings, client_id="test")
            described = await descriptions(connection, control_topic(settings))
            assert described[_WIDGETS]["resource"] == f"{_WIDGETS}/{version}"
            checked = await check_streams(settings, [], cluster=True, each=False, as_json=True)
            assert checked == 0, "`verify --cluster` lists that version too"
            relay.daemon.stop()
            assert await relay.ended() == 0

    await runs("v1")
    before = len(world.asked(_WIDGETS))
    serve("v2", "v1")
    await runs("v1")
    again = world.asked(_WIDGETS)[before:]
    assert again == ["watch", "list"], "the list is that of `verify`"
    serve("v2")
    await runs("v2")
