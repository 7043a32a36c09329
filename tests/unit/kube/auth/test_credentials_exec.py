"""Exec plugins as real programs: claims T66 to T68 and T73 about what programs hand us."""

import asyncio
import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.pki import Ca
from tests.support.process import wait_until
from tests.unit.kube.auth.kubeconfigs import Clock, b64, load, write_kubeconfig
from watchrelay.core.errors import ConfigError, Misconfigured
from watchrelay.kube.auth.credentials import ClusterCredentials
from watchrelay.kube.auth.exec_plugin import ExecCredentials, parse_credential
from watchrelay.kube.auth.kubeconfig import EXEC_VERSIONS, Cluster, ExecPlugin

V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"


class Plugin:
    """A shell script that counts its runs and answers what `answer` was last given."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "bin" / "plugin"
        self.path.parent.mkdir(parents=True)
        self.script()

    def script(self, extra: str = "") -> None:
        self.path.write_text(
            f"#!/bin/sh\ncd {self.directory}\necho run >> runs\n{extra}\ncat answer\n"
        )
        self.path.chmod(0o755)

    def answer(self, *, version: str = V1, **status: Any) -> None:
        content = {"kind": "ExecCredential", "apiVersion": version, "status": status}
        (self.directory / "answer").write_text(json.dumps(content))

    @property
    def runs(self) -> int:
        file = self.directory / "runs"
        return len(file.read_text().split()) if file.exists() else 0

    def pid(self, name: str) -> int:
        """What the script wrote to this file; 0 before it did."""
        file = self.directory / name
        return int(file.read_text().strip() or "0") if file.exists() else 0

    def credentials(
        self,
        *,
        clock: Clock | None = None,
        cluster: Any = None,
        timeout_s: float = 60.0,
        **options: Any,
    ) -> ClusterCredentials:
        plugin = {
            "apiVersion": V1,
            "command": str(self.path),
            "interactiveMode": "IfAvailable",
            **options,
        }
        config = write_kubeconfig(self.directory / "config", cluster=cluster, user={"exec": plugin})
        return load(
            config, clock=clock, exec_timeout_s=timeout_s, environ={"FROM_OS": "os", "BOTH": "os"}
        )


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


async def token(credentials: ClusterCredentials) -> str:
    return dict(await credentials.headers())["Authorization"].removeprefix("Bearer ")


async def refusal(credentials: ClusterCredentials) -> str:
    with pytest.raises(Misconfigured) as caught:
        await credentials.headers()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def at(clock: Clock, seconds: float) -> str:
    return (
        datetime.fromtimestamp(clock.wall_ms() / 1000 + seconds, UTC)
        .isoformat()
        .replace("+00:00", "Z")
    )


# ---- T66 -----------------------------------------------------------------------------------------


async def test_T66_a_credential_is_renewed_10_s_before_it_expires(plugin: Plugin) -> None:
    clock = Clock()
    plugin.answer(token="one", expirationTimestamp=at(clock, 100))
    credentials = plugin.credentials(clock=clock)
    assert await token(credentials) == "one"
    plugin.answer(token="two", expirationTimestamp=at(clock, 1000))
    clock.advance(89)
    assert await token(credentials) == "one"
    clock.advance(1)
    assert await token(credentials) == "two"
    assert plugin.runs == 2


async def test_T66_while_renewal_fails_the_former_credential_serves_until_it_has_expired(
    plugin: Plugin,
) -> None:
    clock = Clock()
    plugin.answer(token="one", expirationTimestamp=at(clock, 100))
    credentials = plugin.credentials(clock=clock)
    await token(credentials)
    plugin.script("exit 3")
    clock.advance(95)
    assert await token(credentials) == "one"
    clock.advance(5)
    assert "failed with exit code 3" in await refusal(credentials)


async def test_T66_without_expiry_a_credential_serves_until_a_401(plugin: Plugin) -> None:
    clock = Clock()
    plugin.answer(token="one")
    credentials = plugin.credentials(clock=clock)
    assert await token(credentials) == "one"
    plugin.answer(token="two")
    clock.advance(100_000)
    assert await token(credentials) == "one"
    await credentials.rejected(clock.now_s())
    assert await token(credentials) == "two"
    assert plugin.runs == 2


async def test_T66_many_callers_and_many_401s_run_the_plugin_once(plugin: Plugin) -> None:
    clock = Clock()
    plugin.answer(token="one")
    credentials = plugin.credentials(clock=clock)
    for expected in (1, 2):
        async with asyncio.TaskGroup() as callers:
            tasks = [callers.create_task(token(credentials), name=f"caller {i}") for i in range(20)]
        assert {task.result() for task in tasks} == {"one"}
        assert plugin.runs == expected
        clock.advance(60)
        for _ in range(20):
            await credentials.rejected(clock.now_s())
    await token(credentials)
    # a late answer to a request that carried the credential before
    await credentials.rejected(clock.now_s())
    await token(credentials)
    assert plugin.runs == 3


async def test_T66_a_credential_that_is_refused_right_after_the_run_is_replaced_at_once(
    plugin: Plugin,
) -> None:
    clock = Clock()
    plugin.answer(token="revoked")
    credentials = plugin.credentials(clock=clock)
    assert await token(credentials) == "revoked"
    clock.advance(0.1)
    await credentials.rejected(clock.now_s())
    plugin.answer(token="two")
    assert await token(credentials) == "two"
    clock.advance(1)  # a server that refuses every credential has the plugin run each 5 s at most
    await credentials.rejected(clock.now_s())
    assert await token(credentials) == "two"
    clock.advance(5)
    await credentials.rejected(clock.now_s())
    plugin.answer(token="three")
    assert await token(credentials) == "three"
    assert plugin.runs == 3


async def test_T66_callers_who_waited_share_a_failure(plugin: Plugin) -> None:
    plugin.script("exit 1")
    credentials = plugin.credentials()
    async with asyncio.TaskGroup() as callers:
        for i in range(10):
            callers.create_task(refusal(credentials), name=f"caller {i}")
    assert plugin.runs == 1


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until_dead(pid: int) -> None:
    """Returns when the process has ended, reaped or not."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(60):
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def test_T66_a_plugin_that_hangs_is_killed_with_its_children(plugin: Plugin) -> None:
    plugin.script("sleep 1000 & echo $! > child; echo $$ > self; wait")
    message = await refusal(plugin.credentials(timeout_s=5, installHint="get it\nhere"))
    assert message.endswith(
        f'the plugin "{plugin.path}" gave no answer within 5 s and was killed (get it here)'
    )
    for name in ("self", "child"):
        await until_dead(plugin.pid(name))


async def test_T66_a_cancelled_caller_leaves_no_plugin_behind_and_the_next_one_runs_it(
    plugin: Plugin,
) -> None:
    plugin.script("echo $$ > self; exec sleep 1000")
    credentials = plugin.credentials()
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(credentials.headers(), name="asking")
        await asyncio.to_thread(wait_until, "it runs", lambda: plugin.pid("self"))
        asking.cancel()
    assert asking.cancelled()
    await until_dead(plugin.pid("self"))
    plugin.script()
    plugin.answer(token="one")
    assert await token(credentials) == "one"


async def test_T66_a_helper_that_the_plugin_leaves_running_does_not_hold_us_up(
    plugin: Plugin,
) -> None:
    plugin.script("sleep 1000 & echo $! > child")
    plugin.answer(token="one")
    assert await token(plugin.credentials()) == "one"
    child = plugin.pid("child")
    assert alive(child), "it is the plugin's own affair"
    os.kill(child, 9)


async def test_an_expired_answer_is_no_credential(plugin: Plugin) -> None:
    clock = Clock()
    plugin.answer(token="one", expirationTimestamp=at(clock, -1))
    refused = await refusal(plugin.credentials(clock=clock))
    assert "has expired already (check this machine's clock)" in refused
    assert f"it ended at {at(clock, -1)[:10]}" in refused
    assert "and the clock shows" in refused


# ---- T67 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interactiveMode": "Always"}, "interactiveMode: is Always, but a daemon has no terminal"),
        ({"interactiveMode": None}, f"interactiveMode: is missing; {V1} requires it"),
        ({"interactiveMode": "never"}, 'interactiveMode: "never" is unknown'),
        (
            {"apiVersion": "client.authentication.k8s.io/v1alpha1"},
            'apiVersion: "client.authentication.k8s.io/v1alpha1" is not supported',
        ),
        ({"apiVersion": None}, "apiVersion: is missing"),
        ({"command": ""}, "command: is missing"),
        ({"env": [{"value": "x"}]}, "env: has an entry without a name"),
        (
            {"env": [{"name": "A=hunter2", "value": ""}]},
            "env: has an entry with a = in its name (name and value are keys of their own)",
        ),
        ({"env": [{"name": "A", "value": "hunter2\0"}]}, "env: holds a NUL character, which no program can be given"),
        ({"args": ["hunter2", "\0"]}, "args: holds a NUL character, which no program can be given"),
        ({"command": "plu\0gin"}, "command: holds a NUL character, which no program can be given"),
    ],
)  # fmt: skip
def test_T67_a_plugin_that_cannot_be_used_is_refused_at_the_start(
    plugin: Plugin, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plugin.credentials(**options)
    assert f"users[prod].user.exec.{message}" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [{"args": ("hunter2\0",)}, {"env": (("A=hunter2", ""),)}, {"env": (("A", "hunter2\0"),)}],
)
async def test_T67_what_no_program_can_be_given_is_a_refusal(given: dict[str, Any]) -> None:
    clock = Clock()
    exec_plugin = ExecPlugin("true", where="users[prod].user.exec", **given)
    nothing, environ = Cluster("https://api:6443"), {"PATH": "/usr/bin:/bin"}
    held = ExecCredentials(
        exec_plugin,
        nothing,
        authorities=lambda: None,
        environ=environ,
        now_s=clock.now_s,
        wall_ms=clock.wall_ms,
    )
    with pytest.raises(
        Misconfigured,
        match='"true" cannot be started: its args or env hold what no program can be given',
    ) as caught:
        await held.current()
    assert "hunter2" not in str(caught.value)


async def test_T67_stdin_is_empty_and_the_environment_is_ours_and_the_configs(
    plugin: Plugin,
) -> None:
    plugin.script(
        'echo "$FROM_OS $BOTH $OWN $1 $KUBERNETES_EXEC_INFO" > seen; readlink /proc/self/fd/0 > '
        "stdin"
    )
    plugin.answer(token="one", version=V1BETA1)
    env = [{"name": "OWN", "value": "config"}, {"name": "BOTH", "value": "config"}]
    await token(plugin.credentials(apiVersion=V1BETA1, interactiveMode=None, args=["arg"], env=env))
    words = (plugin.directory / "seen").read_text().split(maxsplit=4)
    assert words[:4] == ["os", "config", "config", "arg"]
    assert json.loads(words[4]) == {
        "kind": "ExecCredential",
        "apiVersion": V1BETA1,
        "spec": {"interactive": False},
    }
    assert (plugin.directory / "stdin").read_text().strip() == "/dev/null"


async def test_T67_provide_cluster_info_tells_the_plugin_its_cluster(plugin: Plugin) -> None:
    plugin.script('echo "$KUBERNETES_EXEC_INFO" > seen')
    plugin.answer(token="one")
    ca = Ca()
    (plugin.directory / "ca.crt").write_bytes(ca.pem)
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    cluster = {
        "server": "https://api:6443",
        "tls-server-name": "api.internal",
        "certificate-authority": "ca.crt",
        "proxy-url": "http://proxy:1",
        "disable-compression": True,
        "extensions": [extension],
    }
    await token(plugin.credentials(provideClusterInfo=True, cluster=cluster))
    assert json.loads((plugin.directory / "seen").read_text())["spec"] == {
        "interactive": False,
        "cluster": {
            "server": "https://api:6443",
            "tls-server-name": "api.internal",
            "certificate-authority-data": b64(ca.pem),
            "proxy-url": "http://proxy:1",
            "disable-compression": True,
            "config": {"audience": "x"},
        },
    }


async def test_T67_a_command_with_a_separator_is_relative_to_the_kubeconfig_and_a_bare_one_is_looked_up(
    plugin: Plugin,
) -> None:
    plugin.answer(token="one")
    assert await token(plugin.credentials(command="bin/plugin")) == "one"
    assert (
        await token(
            plugin.credentials(
                command="plugin",
                env=[{"name": "PATH", "value": f"{plugin.path.parent}:/usr/bin:/bin"}],
            )
        )
        == "one"
    )
    message = await refusal(
        plugin.credentials(command="no-such-plugin", installHint="apt install it")
    )
    assert message == (
        f'{plugin.directory}/config:1: users[prod].user.exec: the plugin "no-such-plugin" was '
        "not found in $PATH (apt install it)"
    )


# ---- T68 -----------------------------------------------------------------------------------------


async def test_T68_a_certificate_and_key_are_used_and_a_new_pair_makes_a_new_context(
    plugin: Plugin,
) -> None:
    clock, ca = Clock(), Ca()
    pair = ca.issue("one")
    plugin.answer(clientCertificateData=pair.certificate.decode(), clientKeyData=pair.key.decode())
    credentials = plugin.credentials(clock=clock)
    first = await credentials.tls()
    assert await credentials.headers() == []
    clock.advance(60)
    await credentials.rejected(clock.now_s())
    assert await credentials.tls() is first, "the same certificate keeps its connections"
    pair = ca.issue("two")
    plugin.answer(
        clientCertificateData=pair.certificate.decode(), clientKeyData=pair.key.decode(), token="t"
    )
    clock.advance(60)
    await credentials.rejected(clock.now_s())
    assert await credentials.tls() is not first
    assert await token(credentials) == "t"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"clientCertificateData": "x"}, "answered with only one of clientCertificateData and clientKeyData"),
        ({"clientKeyData": "x", "token": "t"}, "answered with only one of clientCertificateData and clientKeyData"),
        ({"clientCertificateData": "x", "clientKeyData": "y"}, "unusable client certificate: is not a PEM certificate and key"),
        ({}, "answered with neither a token nor a client certificate"),
        ({"token": 5}, "answered with a status.token that is not a string"),
        ({"token": "a\nb"}, "answered with a status.token that no header can carry"),
        ({"token": "t", "expirationTimestamp": "tomorrow"}, "answered with an expirationTimestamp that is not RFC 3339"),
        ({"token": "t", "version": V1BETA1}, f"answered with another apiVersion than {V1}"),
    ],
)  # fmt: skip
async def test_T68_a_wrong_answer_says_what_is_wrong(
    plugin: Plugin, answer: dict[str, Any], message: str
) -> None:
    plugin.answer(**answer)
    assert message in await refusal(plugin.credentials())


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("", "did not write JSON"),
        ("[]", "did not write an ExecCredential"),
        ('{"kind": "Status"}', "did not write an ExecCredential"),
    ],
)
async def test_T68_output_that_is_no_credential_says_so(
    plugin: Plugin, output: str, message: str
) -> None:
    (plugin.directory / "answer").write_text(output)
    assert message in await refusal(plugin.credentials())


async def test_T68_a_flood_on_stderr_does_not_stop_the_plugin(plugin: Plugin) -> None:
    plugin.script("head -c 1048576 /dev/zero >&2")
    plugin.answer(token="x" * 200_000)
    assert len(await token(plugin.credentials())) == 200_000


async def test_T68_a_flood_on_stdout_is_no_credential(plugin: Plugin) -> None:
    plugin.script("head -c 6000000 /dev/zero")
    plugin.answer(token="x")
    assert "wrote far more than a credential to stdout" in await refusal(plugin.credentials())


async def test_T68_what_is_not_a_program_says_so(plugin: Plugin) -> None:
    plugin.path.write_bytes(b"\x7fELF garbage")
    assert "cannot be started: Exec format error" in await refusal(plugin.credentials())
    plugin.path.chmod(0o644)
    assert "may not be executed, or is no program" in await refusal(plugin.credentials())
    plugin.path.unlink()
    assert "was not found" in await refusal(plugin.credentials())


async def test_T68_a_plugin_that_a_signal_ends_has_no_exit_code(plugin: Plugin) -> None:
    plugin.script("kill -9 $$")
    assert "was ended by signal 9" in await refusal(plugin.credentials())


async def test_T73_nothing_that_a_plugin_writes_is_logged_or_repeated(
    plugin: Plugin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    clock = Clock()
    plugin.script("echo hunter2 >&2")
    plugin.answer(token="hunter2", expirationTimestamp=at(clock, 100))
    credentials = plugin.credentials(clock=clock)
    await token(credentials)
    plugin.script("echo hunter2 >&2; echo hunter2; exit 1")
    clock.advance(95)
    await token(credentials)
    clock.advance(10)
    assert "hunter2" not in await refusal(credentials)
    records = [record for record in caplog.records if record.name.startswith("watchrelay")]
    assert records, "the failed renewal is logged"
    assert all("hunter2" not in str(record.__dict__) for record in records)


def test_T73_an_answer_that_is_shown_hides_its_token() -> None:
    answer = {
        "kind": "ExecCredential",
        "apiVersion": EXEC_VERSIONS[0],
        "status": {"token": "hunter2"},
    }
    held = parse_credential(json.dumps(answer).encode(), ExecPlugin("plugin"))
    assert held.token == "hunter2"
    assert "hunter2" not in repr(held) + str(held)
