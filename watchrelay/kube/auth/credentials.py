"""The credentials of one cluster and user, kept fresh: tokens, client certificates and CAs are read
again as they rotate, exec plugins run again as their credentials expire.

Source: docs/watch-facts.md 7; client-go rest/config.go, transport/, tools/clientcmd.
"""

from __future__ import annotations

import base64
import logging
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from watchrelay.core import clock
from watchrelay.core.errors import ConfigError
from watchrelay.core.files import may_exist, read_bounded
from watchrelay.kube.auth.exec_plugin import TIMEOUT_S, ExecCredentials
from watchrelay.kube.auth.kubeconfig import (
    FILE_BYTES_MAX,
    WRITER_S,
    Cluster,
    CredentialData,
    Kubeconfig,
    User,
)
from watchrelay.kube.auth.proxy import check_host, choose_proxy
from watchrelay.kube.auth.tls import (
    ClientCertificate,
    build_context,
    check_authorities,
    check_client,
)
from watchrelay.kube.auth.transport import Endpoint

log = logging.getLogger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# a minute, less the 10 s of leeway that client-go takes: a rotated token is used within 60 s
TOKEN_INTERVAL_S = 50.0
CERTIFICATE_INTERVAL_S = 300.0

T = TypeVar("T")


class Reread(Generic[T]):
    """A value read from files, again when it is older than `interval_s`; if that fails, the former
    stays.

    Raises: ConfigError from the constructor, which names `file`, or the `key` of the kubeconfig."""

    def __init__(
        self,
        load: Callable[[], T],
        key: str,
        file: Path | None,
        where: str,
        interval_s: float,
        now_s: Callable[[], float],
    ) -> None:
        self._load, self._what = load, key
        self._interval_s, self._now_s = interval_s, now_s
        self._failing = False
        self._read_s = now_s()
        self._due_s = self._read_s + interval_s
        try:
            self._value = load()
        except OSError as error:
            reason = f"{error.filename or file}: {error.strerror or 'cannot be read'}"
            raise ConfigError.of(reason, key if file else f"{key}-data", where) from None
        except ValueError as error:
            if file:
                raise ConfigError.of(f"{file}: {error}", key, where) from None
            raise ConfigError.of(str(error), f"{key}-data", where) from None

    def current(self) -> T:
        """The value; reads the files, of a few KB, if it is time to."""
        now_s = self._now_s()
        if now_s >= self._due_s:
            self._due_s, self._read_s = now_s + self._interval_s, now_s
            self._refresh()
        return self._value

    def expire(self, asked_s: float) -> None:
        """The value of a request at `asked_s` was refused: read the files again, unless
        read since then."""
        if self._read_s <= asked_s:
            self._due_s = float("-inf")

    def _refresh(self) -> None:
        try:
            self._value = self._load()
        except (OSError, ValueError) as error:
            if not self._failing:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                log.warning(
                    "credential file unusable; keeping the previous one",
                    extra={"what": self._what, "reason": reason},
                )
            self._failing = True
            return
        if self._failing:
            log.info("credential file usable again", extra={"what": self._what})
        self._failing = False


class ClusterCredentials:
    """The credentials of one cluster and user; file contents are never logged. Raises:
    ConfigError from the constructor for files that are missing or unusable."""

    def __init__(
        self,
        cluster: Cluster,
        user: User,
        *,
        environ: Mapping[str, str],
        now_s: Callable[[], float] = clock.now_s,
        wall_ms: Callable[[], int] = clock.wall_ms,
        exec_timeout_s: float = TIMEOUT_S,
    ) -> None:
        proxy = choose_proxy(
            cluster.server, proxy_url=cluster.proxy_url, environ=environ, where=cluster.where
        )
        # the connector has no place for it
        if cluster.tls_server_name and proxy is not None and proxy.startswith("socks"):
            cure = "give server the name that its certificate carries: the proxy resolves it"
            raise ConfigError.of(
                "cannot be used through a socks5 proxy", "tls-server-name", cluster.where, hint=cure
            )
        self.endpoint = Endpoint(
            cluster.server, cluster.tls_server_name, proxy, not cluster.disable_compression
        )
        self._cluster, self._user = cluster, user
        self._authorities = Reread(
            lambda: _read_authorities(cluster.authority),
            "certificate-authority",
            cluster.authority.file,
            cluster.where,
            CERTIFICATE_INTERVAL_S,
            now_s,
        )
        self._client = user.certificate and Reread(
            lambda: check_client(ClientCertificate(_content(user.certificate), _content(user.key))),
            "client-certificate",
            user.certificate.file or user.key.file,
            user.where,
            CERTIFICATE_INTERVAL_S,
            now_s,
        )
        token_file = user.token_file
        self._token = token_file and Reread(
            lambda: _read_token(token_file),
            "tokenFile",
            token_file,
            user.where,
            TOKEN_INTERVAL_S,
            now_s,
        )
        # what is written in the kubeconfig has priority over a plugin (client-go, exec round
        # tripper)
        written = user.token_file or user.token or user.username
        self._exec = (
            None
            if written or user.exec_plugin is None
            else ExecCredentials(
                user.exec_plugin,
                cluster,
                authorities=lambda: self._authorities.current() or None,
                environ=environ,
                now_s=now_s,
                wall_ms=wall_ms,
                timeout_s=exec_timeout_s,
            )
        )
        self._context: tuple[bytes | None, ClientCertificate | None, ssl.SSLContext] | None = None

    async def headers(self) -> list[tuple[str, str]]:
        """Authorization and Impersonate-* headers of the next request, some of which may repeat.

        Raises: Misconfigured when a plugin gives no credential; retry slowly, a person must act."""
        user, token = self._user, ""
        if self._token:
            token = self._token.current()
        elif user.token:
            token = user.token
        elif user.username:
            basic = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
            return [("Authorization", f"Basic {basic}"), *user.impersonation]
        elif self._exec:
            token = (await self._exec.current()).token
        bearer = [("Authorization", f"Bearer {token}")] if token else []
        return [*bearer, *user.impersonation]

    async def tls(self) -> ssl.SSLContext | None:
        """The context of the next connection, another object exactly when a certificate changed;
        None: plain http. Raises: Misconfigured when a plugin gives no certificate."""
        if not self._cluster.server.startswith("https:"):
            return None
        authorities = self._authorities.current()
        client = self._client.current() if self._client else None
        if self._exec:
            client = (await self._exec.current()).client or client
        held = self._context
        if held is None or held[:2] != (authorities, client):
            context = build_context(
                authorities=authorities or None, insecure=self._cluster.insecure, client=client
            )
            self._context = held = (authorities, client, context)
        return held[2]

    async def rejected(self, asked_s: float) -> None:
        """The server answered 401: with the next request files are read and the plugin is run
        again, once. `asked_s`: when the refused request got its credentials, monotonic."""
        self.distrusted(asked_s)
        for source in (self._token, self._client):
            if source:
                source.expire(asked_s)
        if self._exec:
            self._exec.rejected(asked_s)

    def distrusted(self, asked_s: float) -> None:
        """The server's certificate did not verify: read the CA again before the next connection."""
        self._authorities.expire(asked_s)


def load_credentials(
    kubeconfig: str | None,
    context: str | None,
    *,
    environ: Mapping[str, str],
    service_account: Path = SERVICE_ACCOUNT,
    now_s: Callable[[], float] = clock.now_s,
    wall_ms: Callable[[], int] = clock.wall_ms,
    exec_timeout_s: float = TIMEOUT_S,
    act_as: str = "",
) -> ClusterCredentials:
    """The credentials: `kubeconfig` if given, else in-cluster, then $KUBECONFIG, then
    ~/.kube/config. With a `context`, a place in a kubeconfig, the in-cluster account is not
    looked for; `act_as` names a user to impersonate.

    Raises: ConfigError, one line, that names the file and the key."""
    cluster, user = _choose(kubeconfig, context, environ, service_account)
    if act_as:
        user = replace(user, impersonation=(("Impersonate-User", act_as),))
    return ClusterCredentials(
        _with_scheme(cluster, user),
        user,
        environ=environ,
        now_s=now_s,
        wall_ms=wall_ms,
        exec_timeout_s=exec_timeout_s,
    )


def _choose(
    kubeconfig: str | None, context: str | None, environ: Mapping[str, str], account: Path
) -> tuple[Cluster, User]:
    if kubeconfig:
        return Kubeconfig([_expanded(kubeconfig)]).resolve(context)
    if not context and environ.get("KUBERNETES_SERVICE_HOST") and may_exist(account / "token"):
        return _in_cluster(environ, account)
    if listed := environ.get("KUBECONFIG"):
        named = [Path(part) for part in listed.split(os.pathsep) if part]
        # client-go passes over the missing ones, too
        if files := [file for file in named if may_exist(file)]:
            return Kubeconfig(files).resolve(context)
        missing = f"no such file: {', '.join(map(str, named))}"
        raise ConfigError.of(missing, "$KUBECONFIG", "environment")
    home = _expanded(f"{environ.get('HOME') or '~'}/.kube/config")
    if may_exist(home):
        return Kubeconfig([home]).resolve(context)
    raise ConfigError.of(
        f"cannot load Kubernetes credentials: there is no service account at {account}, "
        f"$KUBECONFIG is not set, and {home} does not exist",
        "kubernetes",
        hint="set kubernetes.kubeconfig",
    )


def _expanded(path: str) -> Path:
    """`path` with `~` or `~NAME` expanded, where there is a home directory."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _in_cluster(environ: Mapping[str, str], account: Path) -> tuple[Cluster, User]:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT") or "443"
    authority = account / "ca.crt"
    cluster = Cluster(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        # Without the file the system's authorities are trusted, as client-go does.
        authority=CredentialData(file=authority) if may_exist(authority) else CredentialData(),
        where=str(account),
    )
    return cluster, User(token_file=account / "token", where=str(account))


def _with_scheme(cluster: Cluster, user: User) -> Cluster:
    """`host:port` alone means https where TLS is configured, else http, as client-go reads it."""
    server, hint = cluster.server, "https://host:6443"
    if "://" not in server:
        secure = cluster.authority or cluster.insecure or user.certificate
        server = f"{'https' if secure else 'http'}://{server}"
    try:
        parts = urlsplit(server)
        fits = parts.scheme in {"http", "https"} and parts.port != 0 and not parts.query
        usable = fits and bool(parts.hostname) and server.isprintable() and " " not in server
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError.of("is not the URL of an API server", "server", cluster.where, hint=hint)
    try:
        check_host(parts.hostname or "")
    except ValueError as error:
        raise ConfigError.of(str(error), "server", cluster.where, hint=hint) from None
    # a scheme may be written in capitals
    return replace(cluster, server=parts.scheme + server[len(parts.scheme) :])


def _content(secret: CredentialData) -> bytes:
    if secret.data is not None:
        return secret.data
    assert secret.file is not None, "asked only for secrets that are given"
    return _read(secret.file)


def _read(file: Path) -> bytes:
    """All of a credential's file. One without end (`/dev/zero`) must not fill the memory."""
    content = read_bounded(file, FILE_BYTES_MAX + 1, writer_s=WRITER_S)
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"is larger than {FILE_BYTES_MAX >> 20} MiB")
    return content


def _read_token(file: Path) -> str:
    try:
        token = _read(file).decode("ascii").strip()
    except UnicodeDecodeError:
        raise ValueError("holds something other than a token") from None
    if not token:
        raise ValueError("is empty")
    if not token.isprintable():
        raise ValueError("holds more than one line")
    return token


def _read_authorities(authority: CredentialData) -> bytes:
    """The CA bundle; b"" where none is configured."""
    return check_authorities(_content(authority)) if authority else b""
