"""An API server that is killed under 200 watches and comes back: how the relay stays away, and how
it returns.

Input: a rig with real parts. Output: connection attempts while the server was away, by the path
between them; lists and watches after its return, by the server's own audit log; how long it took
until the last watch was accepted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any

from tests.bench.rig import Relay, Rig, wait_for
from tests.bench.table import Row
from tests.support.daemon import command
from tests.support.faultproxy import FaultProxy
from tests.support.pace import measure_for
from tests.support.process import PartError
from tests.support.realparts import ControlPlane
from watchrelay.watch.admission import LIST_SLOTS

STREAMS = 200
AWAY_S = 20.0
_QUIET = ("--feature-gates=APIServerIdentity=false,UnknownVersionInteroperabilityProxy=false",)
"""Without it the server writes a lease every 10 s, which moves the history on: after a restart it
has none from before its first list."""
CLOSES_S = 0.5
"""Within this the streams have noticed, and the gate is closed: what some had on the way until then
is not counted."""


def returning(rig: Rig) -> list[Row]:
    """Twice: the history is still there; and other objects have changed since, so that nobody's
    version is good any more."""
    if not rig.real:
        raise PartError(
            "an API server that is killed must be a real one: build the real parts with `make real`"
        )
    rows: list[Row] = []
    with (
        ControlPlane(apiserver_flags=_QUIET, audit=True) as cluster,
        FaultProxy(cluster.port) as path,
    ):
        namespaces = [f"ns-{number}" for number in range(STREAMS)]
        for name in namespaces:
            cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        kubeconfig = cluster.write_kubeconfig("through", server=f"https://127.0.0.1:{path.port}")
        # In pages, for the audit log tells the end of these lists; streaming ones go on as watches.
        resources = [{"resource": "configmaps", "namespaces": namespaces, "initialList": "paged"}]
        with Relay(rig, kubeconfig, resources=resources) as relay:
            relay.await_snapshots(STREAMS)
            for history in (True, False):
                relay.settle()
                rows += _absence(cluster, path, relay, history=history)
            verdict = command("verify", "-c", relay.daemon.file, "--cluster", timeout_s=120.0)
        if verdict.code != 0:
            raise PartError(
                "verify after the restarts: exit "
                f"{verdict.code}\n{verdict.stdout[-2000:]}{verdict.stderr[-2000:]}"
            )
    return rows


@dataclass(frozen=True, slots=True)
class Asked:
    """What the relay's streams asked of the returned server, by its audit log.

    Units: seconds since 1970; `watched_s` by namespace, `lists` begin and end of each.
    """

    watched_s: Mapping[str, float]
    lists: Sequence[tuple[float, float]]

    @property
    def lists_at_once(self) -> int:
        """Most lists that were being answered at the same time."""
        return max(
            (
                sum(began_s <= at_s < ended_s for began_s, ended_s in self.lists)
                for at_s, _ in self.lists
            ),
            default=0,
        )

    @classmethod
    def of(cls, entries: Iterable[dict[str, Any]]) -> Asked:
        """A watch counts from its first answer, once per namespace."""
        watched_s: dict[str, float] = {}
        lists: list[tuple[float, float]] = []
        for entry in entries:
            if entry.get("objectRef", {}).get("resource") != "configmaps" or not entry.get(
                "userAgent", ""
            ).startswith("watchrelay/"):
                continue
            received_s, answered_s = (
                datetime.fromisoformat(entry[name]).timestamp()
                for name in ("requestReceivedTimestamp", "stageTimestamp")
            )
            if entry["verb"] == "list":
                lists.append((received_s, answered_s))
            elif (
                entry["stage"] == "ResponseStarted"
                and entry["responseStatus"]["code"] == HTTPStatus.OK
            ):
                watched_s[entry["objectRef"]["namespace"]] = answered_s
        return cls(watched_s, lists)


def _absence(cluster: ControlPlane, path: FaultProxy, relay: Relay, *, history: bool) -> list[Row]:
    if not history:
        cluster.request(
            "PATCH", "/api/v1/namespaces/default", {"metadata": {"labels": {"bench": "moved-on"}}}
        )
    audited = len(cluster.audit_entries())
    cpu_s = relay.used().cpu_s
    cluster.kill_apiserver()
    killed_s = time.monotonic()
    measure_for(AWAY_S)
    away = [at_s - killed_s for at_s in path.accepted_s if at_s >= killed_s]
    cluster.restart_apiserver()
    back_s, gone_s = time.time(), time.monotonic() - killed_s

    def asked() -> Asked:
        return Asked.of(cluster.audit_entries()[audited:])

    def live() -> bool:
        rows = relay.daemon.api_streams().values()
        return len(asked().watched_s) == STREAMS and all(row["state"] == "watching" for row in rows)

    wait_for("every stream watches again", live, deadline_s=180.0)
    seen, cpu_s = asked(), relay.used().cpu_s - cpu_s
    after = [at_s for at_s in away if at_s > CLOSES_S]  # those before showed it to the streams
    most = max((sum(at_s <= other_s < at_s + 1 for other_s in after) for at_s in after), default=0)
    what = (
        f"API server away for {gone_s:.0f} s, {STREAMS} watches, history "
        f"{'still there' if history else 'gone'}"
    )
    return [
        Row(
            f"{what}: connection attempts while it was away, per second",
            len(after) / (AWAY_S - CLOSES_S),
            "/s",
            goal=1.0,
        ),
        Row(f"{what}: most connection attempts in any one second", most, "", goal=1.0),
        Row(f"{what}: lists", len(seen.lists), "", goal=0.0 if history else None),
        Row(f"{what}: most lists at once", seen.lists_at_once, "", goal=float(LIST_SLOTS)),
        Row(
            f"{what}: from its return until the last watch was accepted",
            max(seen.watched_s.values()) - back_s,
            "s",
            goal=10.0,
        ),
        Row(f"{what}: CPU of the relay, from the kill on", cpu_s, "s"),
    ]
