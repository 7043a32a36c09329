"""One replica that shares streams by the group and runs none: a program, to be killed and frozen.

`python -m tests.support.groupmember BOOTSTRAP GROUP NAME SESSION_S [INSTANCE]` prints a line of
JSON at each assignment, loss and doubt; SIGTERM makes it leave.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.support.process import Process, wait_until
from tests.support.troubles import problem_of
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry
from watchrelay.replicas.assignor import (
    MemberAssignment,
    MemberMetadata,
    assign_streams,
    decode_assignment,
    decode_metadata,
    encode,
)
from watchrelay.replicas.group import GroupMember

STREAMS = {f"s{number}": "plan" for number in range(6)}


class GroupProcess:
    """The program, started; `events` are the lines that it has printed."""

    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        group: str,
        name: str,
        *,
        session_s: float = 6.0,
        instance: str = "",
    ) -> None:
        self.name = name
        log = directory / f"{name}-{time.monotonic_ns()}.log"
        arguments = [bootstrap, group, name, str(session_s), *([instance] if instance else [])]
        program = [sys.executable, "-m", "tests.support.groupmember"]
        self.process = Process(name, [*program, *arguments], log=log)

    def __enter__(self) -> Self:
        self.process.launch()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()

    @property
    def events(self) -> list[dict[str, Any]]:
        if not self.process.log.exists():
            return []
        lines = self.process.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    @property
    def own(self) -> list[str]:
        """What its newest event leaves it."""
        last = [each for each in self.events if each["event"] in {"assigned", "lost"}][-1:]
        return list(last[0].get("own", [])) if last else []

    def await_event(
        self, kind: str, number: int = 1, *, deadline_s: float = 60.0
    ) -> dict[str, Any]:
        """Its event of that kind, counted from 1."""
        wait_until(
            f"{self.name}: {kind} {number}",
            lambda: len(self.of(kind)) >= number,
            deadline_s=deadline_s,
        )
        return self.of(kind)[number - 1]


class AssignedMember:
    """What a member reports and decides by the real assignor; it takes over at once what it is
    assigned."""

    def __init__(self, name: str, streams: Mapping[str, str]) -> None:
        self.name, self.counter = name, 0
        self.assignment, self.generation = MemberAssignment(), -1
        self._streams = dict(streams)

    def balances(self) -> bool:
        return True

    def metadata(self) -> bytes:
        self.counter += 1
        own = dict.fromkeys(self.assignment.own, self.generation)
        return encode(
            MemberMetadata(
                self.name, plans=self._streams, assigned=own, writing=own, counter=self.counter
            )
        )

    def assign(self, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        known = {member: decode_metadata(data) for member, data in members.items()}
        found, _ = assign_streams(
            {member: metadata for member, metadata in known.items() if metadata is not None},
            weights={},
            standbys=1,
            now_ms=0,
            balance=self.balances(),
        )
        return {member: encode(assignment) for member, assignment in found.items()}

    def assigned(self, generation: int, data: bytes) -> None:
        assignment = decode_assignment(data)
        assert assignment is not None
        self.assignment, self.generation = assignment, generation

    def lost(self) -> None:
        self.assignment = MemberAssignment()


class _Program(AssignedMember):
    def tell(self, event: str, **more: object) -> None:
        print(json.dumps({"event": event, "at_s": time.time(), **more}), flush=True)

    def assigned(self, generation: int, data: bytes) -> None:
        super().assigned(generation, data)
        self.tell("assigned", generation=generation, own=[*self.assignment.own])

    def lost(self) -> None:
        super().lost()
        self.tell("lost")


async def _main(bootstrap: str, group: str, name: str, session: str, instance: str = "") -> None:
    program, statuses = _Program(name, STREAMS), StatusRegistry()
    member = GroupMember(
        KafkaConnection(bootstrap_servers=(bootstrap,)),
        group,
        program,
        session_s=float(session),
        instance=instance,
        metrics=Metrics(),
        statuses=statuses,
    )

    async def watch() -> None:
        """Tell of doubt and problems."""
        was_doubtful, problem = True, ""
        while True:
            await asyncio.sleep(0.05)
            if member.doubtful != was_doubtful:
                was_doubtful = member.doubtful
                program.tell("doubtful" if was_doubtful else "certain", id=member.member_id)
            if problem_of(statuses, "group") != problem:
                problem = problem_of(statuses, "group")
                program.tell("problem", message=problem)

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(work(), name="part") for work in (member.run, watch)]

        def end() -> None:
            for task in running:
                task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
    await member.leave(within_s=2.0)
    program.tell("left")


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
