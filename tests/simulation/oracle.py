"""What must be true when a run is over.

Input: a world in which nothing is pending. Output: every promise that was broken, as one line each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.apiserver import selects
from tests.simulation.readers import counted
from watchrelay.contract.control_state import Origin

if TYPE_CHECKING:
    from tests.simulation.world import World

State = dict[bytes, tuple[str, int, int | None]]
"""uid, body and noise by record key."""


def wanted(world: World) -> State:
    """What the server holds, as far as the config follows it."""
    config = world.config
    return {
        f"n/{name}".encode(): (each.uid, each.body, each.noise if config.shows_noise else None)
        for name, each in world.server.objects.items()
        if selects(config.selector, each)
    }


def judge(world: World) -> list[str]:
    """Every promise that was broken. Readers that start now are added to those of the world,
    and all read to the end."""
    fresh = world.kinds.reader("fresh", [Origin()] * world.shape.partitions)
    booted = world.kinds.reader("booted", world.origins())
    table = world.kinds.table("late table", world.shape.partitions)
    world.late += [fresh, booted]
    world.tables.append(table)
    for _ in range(50):
        if not world.pull(10**6):
            break
    state = wanted(world)
    _judge_readers(world, state)
    if not world.lost & {"truth", "reading"}:
        _judge_tables(world, state)
        _judge_course(world)
    return world.broken


def watch_over(world: World) -> None:
    """What must be true at any moment: memory is bounded by the objects there are, whatever comes
    and goes while Kafka is away."""
    for life in world.running:
        if not life.over and life.number not in world.grown and (overdue := life.overdue()):
            world.grown.add(life.number)
            world.broken.append(
                f"life {life.number}: of {overdue} nothing is held or published, and it waits to "
                "be published"
            )


def _judge_readers(world: World, state: State) -> None:
    broken = world.broken
    for reader in (world.lived, world.lossy, *world.late):
        if not reader.proven:
            broken.append(f"{reader.name} is not proven at the end")
        broken += reader.back
        held = {key: counted(value, world.config) for key, value in reader.held().items()}
        if held != state:
            broken.append(f"{reader.name} holds {held}, the server {state}")


def _judge_tables(world: World, state: State) -> None:
    broken, config = world.broken, world.config
    for each in world.tables:
        if each.rows.keys() != state.keys():
            broken.append(
                f"{each.name} has rows {sorted(each.rows)}, the server objects {sorted(state)}"
            )
        elif (
            world.shape.form == "cloudevents"
            and (rows := {key: counted(value, config) for key, value in each.rows.items()}) != state
        ):
            broken.append(f"{each.name} holds {rows}, the server {state}")


def _judge_course(world: World) -> None:
    """What was published on the way, and whether a reader reported a problem without a reason. A
    writer that rejects its log makes its readers report one."""
    broken = world.broken
    for life in world.lives:
        if life.doubted and not life.why_doubted:
            broken.append(f"life {life.number} did not accept a log of which nothing was lost")
    doubted = {life.epoch for life in world.lives if life.doubted}
    if "claim" not in world.lost:
        broken += [alarm for epoch, alarm in world.lived.alarms if epoch not in doubted]
    broken += world.lossy.lied
    for history in world.histories:
        broken += history.broken
    for freshness in world.freshness:
        broken += freshness.broken
