"""A real API server behind a proxy that knows what it carries: what a server cannot be made to do
by itself: watches that end at once, a token refused to all at once, an event that is never sent,
lists that all come together."""

import ctypes
import itertools
import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.daemon import Daemon, assert_verified
from tests.support.listed import await_equal, difference, expected_table, list_text
from tests.support.process import wait_until
from tests.support.realparts import ControlPlane
from tests.support.testbed import Testbed
from tests.support.tlsproxy import TlsProxy, WatchEnd, most_at_once

pytestmark = pytest.mark.real

_SOON_S = 60.0
_MANY = 20


_OPEN, _CLOSE_WRITE, _CLOSE_NOWRITE = 0x20, 0x08, 0x10
_EVENT = struct.Struct("iIII")


class Reads:
    """Counts from entering on; a context manager. Opens are watched as well, since inotify
    merges equal events in a row."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor = -1
        self._count = 0

    def __enter__(self) -> Self:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        mask = _OPEN | _CLOSE_WRITE | _CLOSE_NOWRITE
        if (
            self._descriptor < 0
            or libc.inotify_add_watch(self._descriptor, os.fsencode(self._file), mask) < 0
        ):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(self._file))
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def count(self) -> int:
        """How often it was opened for reading, and closed again."""
        try:
            while events := os.read(self._descriptor, 65536):
                at = 0
                while at < len(events):
                    _, mask, _, name_bytes = _EVENT.unpack_from(events, at)
                    self._count += bool(mask & _CLOSE_NOWRITE)
                    at += _EVENT.size + name_bytes
        except BlockingIOError:
            pass
        return self._count


@pytest.fixture
def proxy(real_cluster: ControlPlane, tmp_path: Path) -> Iterator[TlsProxy]:
    with TlsProxy(real_cluster, tmp_path) as proxy:
        yield proxy


def configs(namespaces: list[str]) -> dict[str, str]:
    """The streams of config maps in these namespaces, and what each must equal."""
    return {f"configmaps@{name}": f"/api/v1/namespaces/{name}/configmaps" for name in namespaces}


def account(cluster: ControlPlane, namespace: str) -> str:
    """A token of one who may read config maps."""
    token = cluster.service_account_token(namespace, "relay")
    cluster.grant(
        namespace,
        "relay",
        [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}],
    )
    return token


def make(cluster: ControlPlane, path: str, name: str) -> None:
    cluster.request("POST", path, {"metadata": {"name": name}})


def lists_made(relay: Daemon) -> float:
    return relay.metric("watchrelay_list_total", result="success")


def watching(relay: Daemon, count: int) -> bool:
    return [row["state"] for row in relay.api_streams().values()] == ["watching"] * count


def test_T17_watches_that_end_at_once_are_requested_less_and_less_often_and_nothing_is_lost(
    testbed: Testbed, real_cluster: ControlPlane, proxy: TlsProxy
) -> None:
    ends: tuple[WatchEnd, ...] = ("head, reset", "head, end", "half a line, reset", "line, end")
    namespaces = testbed.namespaces(len(ends))
    streams = configs(namespaces)
    busy = streams[f"configmaps@{namespaces[-1]}"]
    resources = {"resource": "configmaps", "namespaces": namespaces}
    with (
        testbed.reader(testbed.topic("configmaps")) as reader,
        testbed.relay(
            resources,
            kubeconfig=proxy.kubeconfig(testbed.name, token=account(real_cluster, namespaces[0])),
        ) as relay,
    ):
        relay.await_ready()
        await_equal(real_cluster, reader, streams)
        relay.wait("all watch", lambda: watching(relay, len(ends)))
        lists = lists_made(relay)
        proxy.ends = dict(zip(streams.values(), ends, strict=True))
        cut_s = time.monotonic()
        proxy.cut()
        written = itertools.count()

        def watches(path: str) -> list[float]:
            return [each.began_s for each in proxy.of("watch", since_s=cut_s) if each.path == path]

        def ended_twice() -> bool:
            for path in list(streams.values())[2:]:  # those that want a line
                make(real_cluster, path, f"c{next(written)}")
            return all(len(watches(path)) >= 2 for path in streams.values())

        relay.wait("each was cut twice", ended_twice)
        assert relay.livez() == 200
        for stream in list(streams)[:-1]:
            assert relay.stream(stream)["lastError"], f"{stream} does not say what is wrong"
        proxy.ends = {}
        await_equal(real_cluster, reader, streams)
        relay.wait("all watch again", lambda: watching(relay, len(ends)))
        for path, end in zip(streams.values(), ends, strict=True):
            began_s = watches(path)
            gaps_s = [after_s - before_s for before_s, after_s in itertools.pairwise(began_s)]
            if path == busy:
                assert min(gaps_s) >= 0.9, f"{end}: {len(began_s)} watches, {gaps_s}"
                assert max(gaps_s) < 8.0, f"held up by those beside it: {gaps_s}"
            else:  # the first failure was the cut
                assert began_s[0] - cut_s >= 0.8, end
                assert all(gap_s >= 1.6 * 2**number for number, gap_s in enumerate(gaps_s)), (
                    f"{end}: {gaps_s}"
                )
        assert lists_made(relay) == lists, "history was there: no list"
        assert relay.metric("watchrelay_missed_changes_total") == 0
        assert_verified(relay)
        assert relay.stop() == 0
        reader.read()
    reader.assert_right(*streams)


def test_a_401_of_twenty_streams_has_the_token_read_once_and_all_go_on(
    testbed: Testbed, real_cluster: ControlPlane, proxy: TlsProxy, tmp_path: Path
) -> None:
    namespaces = testbed.namespaces(_MANY)
    streams = configs(namespaces)
    former, file = account(real_cluster, namespaces[0]), tmp_path / "token"
    file.write_text(former)
    resources = {"resource": "configmaps", "namespaces": namespaces}
    with (
        testbed.reader(testbed.topic("configmaps")) as reader,
        testbed.relay(
            resources, kubeconfig=proxy.kubeconfig(testbed.name, tokenFile=str(file))
        ) as relay,
    ):
        relay.await_ready()
        await_equal(real_cluster, reader, streams)
        relay.wait("all watch", lambda: watching(relay, _MANY))
        lists = lists_made(relay)
        proxy.hold_back(former)
        ended_s = time.monotonic()
        proxy.end_watches()
        for path in streams.values():
            make(real_cluster, path, "meanwhile")

        def held() -> int:
            return len(
                [each for each in proxy.of("watch", since_s=ended_s) if each.token == former]
            )

        wait_until("all ask with the token that is no longer good", lambda: held() == _MANY)
        file.write_text(fresh := real_cluster.service_account_token(namespaces[0], "relay"))
        with Reads(file) as reads:
            proxy.refuse_held()
            await_equal(real_cluster, reader, streams)
            relay.wait("all watch again", lambda: watching(relay, _MANY))
            assert reads.count() == 1, "the file is read once for all that were notified"
        asked = proxy.of("watch", since_s=ended_s)
        assert [each.token for each in asked].count(former) == _MANY, (
            "and nobody asks again with what was refused"
        )
        assert [each.token for each in asked].count(fresh) == _MANY
        assert lists_made(relay) == lists, "history was there: no list"
        assert not [secret for secret in (former, fresh) if secret in json.dumps(relay.lines())], (
            "a token was logged"
        )
        assert_verified(relay)
        assert relay.stop() == 0
        reader.read()
    reader.assert_right(*streams)


def test_what_a_watch_never_delivered_is_found_by_relistinterval_and_counted(
    testbed: Testbed, real_cluster: ControlPlane, proxy: TlsProxy
) -> None:
    (namespace,) = testbed.namespaces(1)
    ((stream, path),) = configs([namespace]).items()
    for name in ("gone", "changed", "kept"):
        make(real_cluster, path, name)
    resources = {"resource": "configmaps", "namespaces": [namespace], "relistInterval": "3s"}
    kubeconfig = proxy.kubeconfig(testbed.name, token=account(real_cluster, namespace))
    with (
        testbed.reader(testbed.topic("configmaps")) as reader,
        testbed.relay(resources, kubeconfig=kubeconfig) as relay,
    ):
        relay.await_ready()
        await_equal(real_cluster, reader, {stream: path})

        def withheld(line: dict[str, Any]) -> bool:
            return line["object"]["metadata"].get("name") in {"gone", "changed", "fresh"}

        def equal() -> bool:
            reader.read()
            return not difference(
                expected_table(list_text(real_cluster, path)), reader.table(stream)
            ) and reader.proven(stream)

        proxy.swallow(withheld)
        real_cluster.request("DELETE", f"{path}/gone")
        real_cluster.request("PATCH", f"{path}/changed", {"data": {"v": "1"}})
        make(real_cluster, path, "fresh")
        wait_until("the watch kept all of it to itself", lambda: len(proxy.swallowed) == 3)
        wait_until("the topic is right all the same", equal)
        # where the watch went on from before the list, this is what shows that it kept silent
        make(real_cluster, path, "later")
        relay.wait("it is counted", lambda: relay.metric("watchrelay_missed_changes_total") == 3)
        assert [
            found["missed"] for found in relay.logged("list found changes missed by the watch")
        ] == [3]
        proxy.swallow(None)
        lists = lists_made(relay)
        relay.wait("another list finds nothing more", lambda: lists_made(relay) > lists)
        assert relay.metric("watchrelay_missed_changes_total") == 3
        assert_verified(relay)
        assert relay.stop() == 0
        reader.read()
    # A bookmark confirmed the server's version: what it had not shown up to there can only be
    # published behind it.
    assert all("behind a frontier" in problem for problem in reader.problems), reader.problems

    def records(name: str) -> list[tuple[str, str]]:
        return [
            (record.type, record.headers["ce_wrreason"])
            for record in reader.about(stream, f"{namespace}/{name}")
        ]

    assert records("gone") == [("added", "snapshot"), ("deleted", "relist")]
    assert records("changed") == [("added", "snapshot"), ("modified", "relist")]
    assert records("fresh") == [("added", "relist")]
    assert records("kept") == [("added", "snapshot")]


def test_history_that_is_gone_for_twenty_streams_is_listed_three_at_a_time(
    testbed: Testbed, real_cluster: ControlPlane, proxy: TlsProxy
) -> None:
    namespaces = testbed.namespaces(_MANY)
    streams = configs(namespaces)
    resources = [
        {"resource": "configmaps", "namespaces": half, "initialList": how}
        for half, how in ((namespaces[::2], "paged"), (namespaces[1::2], "streaming"))
    ]
    with (
        testbed.reader(testbed.topic("configmaps")) as reader,
        testbed.relay(
            *resources,
            kubeconfig=proxy.kubeconfig(testbed.name, token=account(real_cluster, namespaces[0])),
        ) as relay,
    ):
        relay.await_ready()
        for path in streams.values():
            make(real_cluster, path, "gone")
        await_equal(real_cluster, reader, streams)
        proxy.close()
        for path in streams.values():
            real_cluster.request("DELETE", f"{path}/gone")
            make(real_cluster, path, "fresh")
        # its caches start again: each watch from before is answered 410
        real_cluster.restart_apiserver()
        proxy.list_s, back_s = 0.2, time.monotonic()
        proxy.open()
        await_equal(real_cluster, reader, streams, deadline_s=_SOON_S)
        relay.wait("all watch again", lambda: watching(relay, _MANY))
        lists = [each for each in proxy.of("list", since_s=back_s) if not each.look]
        assert sorted(each.path for each in lists) == sorted(streams.values()), (
            "each stream lists once"
        )
        assert most_at_once(lists) == 3, (
            "no more lists at once than there are seats, and no seat stays empty"
        )
        assert relay.metric("watchrelay_missed_changes_total") == 2 * _MANY
        assert_verified(relay)
        assert relay.stop() == 0
        reader.read()
    reader.assert_right(*streams)
