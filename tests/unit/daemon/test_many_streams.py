"""Hundreds of streams start, are planned again and leave in pieces: other work has its turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.turns import TurnLoop, held_by
from tests.unit.daemon.conftest import settings_of, until
from tests.unit.daemon.supervising import supervised

MANY = 500


def test_no_turn_of_the_event_loop_grows_with_the_number_of_streams_squared(
    tmp_path: Path,
) -> None:
    namespaces = [f"ns-{number}" for number in range(MANY)]
    entries = [{"resource": "configmaps", "namespaces": [each]} for each in namespaces]

    edited, emptied = settings_of([*entries[1:], {"resource": "pods"}]), settings_of(["pods"])

    async def main(_: TurnLoop) -> None:
        async with supervised(tmp_path, *entries) as rig:
            await until("all are known", lambda: len(rig.topics) == MANY)
            assert rig.supervisor.objections(edited) == []
            await asyncio.sleep(0)
            rig.supervisor.adopt(edited)
            await until("one came", lambda: "pods" in rig.topics)
            rig.supervisor.adopt(emptied)
            await until("the others left", lambda: len(rig.topics) == 1)

    assert not (wrong := held_by(main)), wrong
