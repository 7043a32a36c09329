"""Credentials from exec plugins, cached until they expire or are refused.

Source: client.authentication.k8s.io/v1 and v1beta1; client-go plugin/pkg/client/auth/exec/exec.go.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from watchrelay.core.errors import Misconfigured
from watchrelay.core.programs import run_program
from watchrelay.core.timestamps import parse_timestamp, rfc3339
from watchrelay.kube.auth.kubeconfig import Cluster, ExecPlugin
from watchrelay.kube.auth.tls import ClientCertificate, check_client

log = logging.getLogger(__name__)

TIMEOUT_S = 60.0
LEEWAY_MS = 10_000
SETTLED_S = 5.0
"""The plugin is run for refusals at most this often."""
STDOUT_BYTES_MAX = 256 * 1024
"""A credential with a chain of certificates has some tens of kilobytes. 4 MiB of certificates took
a second to read."""


@dataclass(frozen=True, slots=True)
class ExecCredential:
    """The plugin's answer. `expires_ms` is wall time; None: good until the server refuses it."""

    token: str = field(repr=False)
    client: ClientCertificate | None
    expires_ms: int | None


class ExecCredentials:
    """One plugin's newest answer; `current` runs it when there is none, or 10 s before it
    expires."""

    def __init__(
        self,
        plugin: ExecPlugin,
        cluster: Cluster,
        *,
        authorities: Callable[[], bytes | None],
        environ: Mapping[str, str],
        now_s: Callable[[], float],
        wall_ms: Callable[[], int],
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._plugin = plugin
        self._cluster = cluster
        self._authorities = authorities
        self._environ = environ
        self._now_s = now_s
        self._wall_ms = wall_ms
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()
        self._runs = 0
        self._held: ExecCredential | None = None
        self._held_since_s = self._dropped_s = float("-inf")
        self._failure: Misconfigured | None = None

    async def current(self) -> ExecCredential:
        """A credential that has not expired. Raises: Misconfigured when none is left."""
        if self._fresh(LEEWAY_MS):
            assert self._held is not None
            return self._held
        runs_seen = self._runs
        async with self._lock:
            # All that waited for the lock share the outcome of the run that ended meanwhile, good
            # or bad.
            if self._runs == runs_seen:
                await self._run()
            if self._held is not None and self._fresh(0):
                return self._held
            raise self._failure or self._expired()

    def _expired(self) -> Misconfigured:
        """Of the credential that the plugin just gave."""
        assert self._held is not None, "without a failure there is one"
        assert self._held.expires_ms is not None, "without an expiry it is fresh"
        ended, now = rfc3339(self._held.expires_ms), rfc3339(self._wall_ms())
        how = "gave a credential that has expired already"
        refusal = _refusal(self._plugin, how, "check this machine's clock")
        return Misconfigured(f"{refusal}: it ended at {ended}, and the clock shows {now}")

    def rejected(self, asked_s: float) -> None:
        """The server refused the credential of a request that got it at `asked_s`, monotonic: run
        the plugin again, unless it has run since, or the server refuses new ones as well."""
        now_s = self._now_s()
        if self._held_since_s < asked_s and now_s - self._dropped_s >= SETTLED_S:
            self._held, self._dropped_s = None, now_s

    def _fresh(self, leeway_ms: int) -> bool:
        held = self._held
        return held is not None and (
            held.expires_ms is None or self._wall_ms() + leeway_ms < held.expires_ms
        )

    async def _run(self) -> None:
        try:
            self._held, self._failure = parse_credential(await self._output(), self._plugin), None
            self._held_since_s = self._now_s()
        except Misconfigured as failure:
            self._failure = failure
            if self._fresh(0):
                log.warning(
                    "exec plugin failed, the former credential is used until it expires",
                    extra={"plugin": self._plugin.where},
                )
        # Not reached when we are cancelled: then there is no outcome to share, and the next caller
        # runs the plugin.
        self._runs += 1

    async def _output(self) -> bytes:
        plugin = self._plugin
        env = {**self._environ, **dict(plugin.env)}
        program = shutil.which(plugin.command, path=env.get("PATH", ""))
        if program is None:
            if shutil.which(plugin.command, mode=os.F_OK, path=env.get("PATH", "")):
                raise _refusal(plugin, "may not be executed, or is no program", plugin.install_hint)
            where = "" if Path(plugin.command).is_absolute() else " in $PATH"
            raise _refusal(plugin, f"was not found{where}", plugin.install_hint)
        env["KUBERNETES_EXEC_INFO"] = exec_info(plugin, self._cluster, self._authorities())
        hint = plugin.install_hint
        try:
            code, output, _ = await run_program(
                [program, *plugin.args],
                timeout_s=self._timeout_s,
                stdout_bytes_max=STDOUT_BYTES_MAX,
                env=env,
            )
        except TimeoutError:
            how = f"gave no answer within {self._timeout_s:g} s and was killed"
        except OSError as error:
            how = f"cannot be started: {error.strerror}"
        except ValueError:  # its text may quote the environment
            how, hint = "cannot be started: its args or env hold what no program can be given", ""
        else:
            if output is None:
                raise _refusal(plugin, "wrote far more than a credential to stdout", hint)
            if code == 0:
                return output
            how = f"failed with exit code {code}" if code > 0 else f"was ended by signal {-code}"
            hint = hint or "run it by hand to see why"
        raise _refusal(plugin, how, hint)


def exec_info(plugin: ExecPlugin, cluster: Cluster, authorities: bytes | None) -> str:
    """The JSON of KUBERNETES_EXEC_INFO; the cluster's part only where the plugin asked for it."""
    spec: dict[str, object] = {"interactive": False}
    if plugin.provide_cluster_info:
        facts = {
            "server": cluster.server,
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure,
            "certificate-authority-data": base64.b64encode(authorities or b"").decode(),
            "proxy-url": cluster.proxy_url,
            "disable-compression": cluster.disable_compression,
            "config": cluster.exec_config,
        }
        spec["cluster"] = {name: value for name, value in facts.items() if value}
    return json.dumps(
        {"kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec}, default=str
    )


def parse_credential(output: bytes, plugin: ExecPlugin) -> ExecCredential:
    """The answer of a plugin, checked. Raises: Misconfigured, without anything of its
    credentials."""
    try:
        answer = json.loads(output)
    except (ValueError, RecursionError):
        raise _refusal(plugin, "did not write JSON to stdout") from None
    if not isinstance(answer, dict) or answer.get("kind") != "ExecCredential":
        raise _refusal(plugin, "did not write an ExecCredential to stdout")
    if answer.get("apiVersion") != plugin.api_version:
        raise _refusal(
            plugin,
            f"answered with another apiVersion than {plugin.api_version}",
            "correct exec.apiVersion, or the plugin",
        )
    status = answer.get("status")
    if not isinstance(status, dict):
        raise _refusal(plugin, "answered without a status")
    token, certificate, key = (
        _text(status, name, plugin) for name in ("token", "clientCertificateData", "clientKeyData")
    )
    if bool(certificate) != bool(key):
        raise _refusal(plugin, "answered with only one of clientCertificateData and clientKeyData")
    if not token and not certificate:
        raise _refusal(plugin, "answered with neither a token nor a client certificate")
    client = None
    if certificate:
        try:
            client = check_client(ClientCertificate(certificate.encode(), key.encode()))
        except ValueError as error:
            how = f"answered with an unusable client certificate: {error}"
            raise _refusal(plugin, how) from None
    return ExecCredential(
        token, client, _expiry(_text(status, "expirationTimestamp", plugin), plugin)
    )


def _text(status: Mapping[str, object], name: str, plugin: ExecPlugin) -> str:
    value = status.get(name)
    if value is not None and not isinstance(value, str):
        raise _refusal(plugin, f"answered with a status.{name} that is not a string")
    text = (value or "").strip()
    if name == "token" and not (text.isascii() and text.isprintable()):
        raise _refusal(plugin, "answered with a status.token that no header can carry")
    return text


def _expiry(text: str, plugin: ExecPlugin) -> int | None:
    try:
        return parse_timestamp(text.encode()) if text else None
    except ValueError:
        how = "answered with an expirationTimestamp that is not RFC 3339"
        raise _refusal(plugin, how) from None


def _refusal(plugin: ExecPlugin, what: str, hint: str = "") -> Misconfigured:
    cure = f" ({hint})" if hint else ""
    return Misconfigured(f'{plugin.where}: the plugin "{plugin.command}" {what}{cure}')
