"""The credentials of one cluster and user, kept fresh: tokens, client certificates and CAs are read
again as they rotate, exec plugins run again as their credentials expire.

Source: docs/watch-facts.md 7; client-go rest/config.go, transport/, tools/clientcmd.
"""

from __future__ import annotations

import base64
import logging
import os
import ssl
import string
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from watchrelay.core import clock
from watchrelay.core.errors import ConfigError
from watchrelay.core.files import read_bounded
from watchrelay.kube.auth.exec_plugin import TIMEOUT_S, ExecCredentials
from watchrelay.kube.auth.kubeconfig import (
    FILE_BYTES_MAX,
    WRITER_S,
    Cluster,
    CredentialData,
    Impersonation,
    User,
    read_kubeconfig,
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

# RFC 7230 token characters, less "%": it escapes the others. Source: client-go
# transport/round_trippers.go headerKeyEscape.
_HEADER_KEY = frozenset((string.ascii_letters + string.digits + "!#$&'*+-.^_`|~").encode())

T = TypeVar("T")


class Reread(Generic[T]):
    """A value read from files, read again when it is older than `interval_s`.

    Raises: whatever `load` raises (OSError, ValueError), but only while there is no value yet.
    """

    def __init__(
        self, load: Callable[[], T], *, what: str, interval_s: float, now_s: Callable[[], float]
    ) -> None:
        self._load = load
        self._what = what
        self._interval_s = interval_s
        self._now_s = now_s
        self._value: T | None = None
        self._due_s = self._read_s = float("-inf")
        self._failing = False

    def current(self) -> T:
        """The value; reads the files if it is time to. Blocks for a small read: these are files of
        a few KB."""
        now_s = self._now_s()
        if now_s >= self._due_s or self._value is None:
            self._due_s, self._read_s = now_s + self._interval_s, now_s
            self._refresh()
        assert self._value is not None, "a failed first read raises"
        return self._value

    def expire(self, asked_s: float) -> None:
        """The value that a request carried at `asked_s` was refused: the next `current` reads the
        files, unless they were read since then."""
        if self._read_s <= asked_s:
            self._due_s = float("-inf")

    def _refresh(self) -> None:
        try:
            value = self._load()
        except (OSError, ValueError) as error:
            if self._value is None:
                raise
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
        self._value = value


class ClusterCredentials:
    """The credentials of one cluster and user. File contents are never logged or shown.

    Raises: ConfigError from the constructor for files that are missing or unusable at the start.
    """

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
                "cannot be used through a socks5 proxy",
                "tls-server-name",
                cluster.where,
                hint=cure,
            )
        self._endpoint = Endpoint(
            cluster.server, cluster.tls_server_name, proxy, not cluster.disable_compression
        )
        self._cluster = cluster
        self._user = user
        self._secure = urlsplit(cluster.server).scheme == "https"
        self._now_s = now_s
        self._token = (
            self._reread(lambda: _read_token(user), "token file", TOKEN_INTERVAL_S)
            if user.token_file
            else None
        )
        self._authorities = self._reread(
            lambda: _read_authorities(cluster.authority),
            "certificate authority",
            CERTIFICATE_INTERVAL_S,
        )
        self._client = (
            self._reread(lambda: _read_client(user), "client certificate", CERTIFICATE_INTERVAL_S)
            if user.certificate
            else None
        )
        self._impersonation = impersonation_headers(user.impersonation)
        self._exec = self._plugin(environ, wall_ms, exec_timeout_s)
        self._context: tuple[bytes | None, ClientCertificate | None, ssl.SSLContext] | None = None
        self._read_all()

    @property
    def endpoint(self) -> Endpoint:
        """Where to go; constant for this object."""
        return self._endpoint

    async def headers(self) -> list[tuple[str, str]]:
        """Authorization and Impersonate-* headers of the next request; Impersonate-Group and
        -Extra-* may repeat.

        Raises: Misconfigured when a plugin gives no credential; retry slowly, a person must act.
        """
        authorization = await self._authorization()
        return (
            [("Authorization", authorization), *self._impersonation]
            if authorization
            else list(self._impersonation)
        )

    async def tls(self) -> ssl.SSLContext | None:
        """The context of the next connection; another object exactly when a CA or client
        certificate changed. None: plain http.

        Raises: Misconfigured when a plugin gives no certificate.
        """
        if not self._secure:
            return None
        authorities = self._authorities.current()
        client = self._client.current() if self._client else None
        if self._exec:
            client = (await self._exec.current()).client or client
        held = self._context
        if held is None or (held[0], held[1]) != (authorities, client):
            context = build_context(
                authorities=authorities or None, insecure=self._cluster.insecure, client=client
            )
            self._context = held = (authorities, client, context)
        return held[2]

    async def rejected(self, asked_s: float) -> None:
        """The server answered 401: files are read, and the plugin is run, again with the next
        request; once, however many call.

        Units: `asked_s` is when the refused request got its credentials, monotonic: what was read
        since then it did not have.
        """
        self.distrusted(asked_s)
        for source in (self._token, self._client):
            if source is not None:
                source.expire(asked_s)
        if self._exec:
            self._exec.rejected()

    def distrusted(self, asked_s: float) -> None:
        """The server's certificate did not verify: the CA may have been replaced, read it again
        before the next connection."""
        self._authorities.expire(asked_s)

    async def _authorization(self) -> str:
        user = self._user
        if self._token is not None:
            return f"Bearer {self._token.current()}"
        if user.token:
            return f"Bearer {user.token}"
        if user.username:
            return "Basic " + base64.b64encode(f"{user.username}:{user.password}".encode()).decode(
                "ascii"
            )
        if self._exec:
            token = (await self._exec.current()).token
            return f"Bearer {token}" if token else ""
        return ""

    def _plugin(
        self, environ: Mapping[str, str], wall_ms: Callable[[], int], timeout_s: float
    ) -> ExecCredentials | None:
        user = self._user
        if user.exec_plugin is None or self._token or user.token or user.username:
            # what is written in the kubeconfig has priority over a plugin (client-go, exec
            # round tripper)
            return None
        return ExecCredentials(
            user.exec_plugin,
            self._cluster,
            authorities=lambda: self._authorities.current() or None,
            environ=environ,
            now_s=self._now_s,
            wall_ms=wall_ms,
            timeout_s=timeout_s,
        )

    def _reread(self, load: Callable[[], T], what: str, interval_s: float) -> Reread[T]:
        return Reread(load, what=what, interval_s=interval_s, now_s=self._now_s)

    def _read_all(self) -> None:
        """Reads every file once, so that mistakes are reported at the start."""
        user, cluster = self._user, self._cluster
        _first_read(
            self._authorities, "certificate-authority", cluster.authority.file, cluster.where
        )
        if self._client:
            _first_read(
                self._client,
                "client-certificate",
                user.certificate.file or user.key.file,
                user.where,
            )
        if self._token:
            _first_read(self._token, "tokenFile", user.token_file, user.where)


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
    """The credentials to use: `kubeconfig` if given, else in-cluster, then $KUBECONFIG, then
    ~/.kube/config.

    `act_as` names a user to impersonate, in place of one that the kubeconfig names.

    A `context` names a place in a kubeconfig, so with one the in-cluster account is not looked for.
    Raises: ConfigError, one line, that names the file and the key.
    """
    cluster, user = _choose(kubeconfig, context, environ, service_account)
    if act_as:
        user = replace(user, impersonation=Impersonation(act_as))
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
        return read_kubeconfig([_expanded(kubeconfig)]).resolve(context)
    if not context and environ.get("KUBERNETES_SERVICE_HOST") and (account / "token").exists():
        return _in_cluster(environ, account)
    if listed := environ.get("KUBECONFIG"):
        named = [Path(part) for part in listed.split(os.pathsep) if part]
        # client-go passes over the missing ones, too
        if files := [file for file in named if file.exists()]:
            return read_kubeconfig(files).resolve(context)
        raise ConfigError.of(
            f"no such file: {', '.join(map(str, named))}",
            path="$KUBECONFIG",
            source="environment",
        )
    home = _expanded(f"{environ.get('HOME') or '~'}/.kube/config")
    if home.exists():
        return read_kubeconfig([home]).resolve(context)
    tried = (
        f"there is no service account at {account}, $KUBECONFIG is not set, and {home} does "
        "not exist"
    )
    raise ConfigError.of(
        f"cannot load Kubernetes credentials: {tried}",
        path="kubernetes",
        hint="set kubernetes.kubeconfig",
    )


def _expanded(path: str) -> Path:
    """`path` with `~` or `~NAME` expanded; unchanged where there is no home directory, such as for
    a container's uid."""
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
        authority=CredentialData(file=authority) if authority.exists() else CredentialData(),
        where=str(account),
    )
    return cluster, User(token_file=account / "token", where=str(account))


def _with_scheme(cluster: Cluster, user: User) -> Cluster:
    """`host:port` alone means https where TLS is configured, else http, as client-go reads it."""
    server = cluster.server
    if "://" not in server:
        server = f"{'https' if cluster.authority or cluster.insecure or user.certificate else 'http'}://{server}"
    try:
        parts = urlsplit(server)
        usable = (
            parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and parts.port != 0
            and not parts.query
        )
        usable = usable and server.isprintable() and " " not in server
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError.of(
            "is not the URL of an API server",
            "server",
            cluster.where,
            hint="https://host:6443",
        )
    try:
        check_host(parts.hostname or "")
    except ValueError as error:
        raise ConfigError.of(
            str(error), "server", cluster.where, hint="https://host:6443"
        ) from None
    return replace(cluster, server=server)


def impersonation_headers(impersonation: Impersonation | None) -> list[tuple[str, str]]:
    """The Impersonate-* headers, in the order user, uid, groups, extra; keys of extra escaped as
    client-go does."""
    if impersonation is None:
        return []
    headers = [("Impersonate-User", impersonation.user)]
    if impersonation.uid:
        headers.append(("Impersonate-Uid", impersonation.uid))
    headers += [("Impersonate-Group", group) for group in impersonation.groups]
    headers += [
        (f"Impersonate-Extra-{_escaped(key)}", value)
        for key, values in impersonation.extra
        for value in values
    ]
    return headers


def _escaped(key: str) -> str:
    return "".join(chr(byte) if byte in _HEADER_KEY else f"%{byte:02X}" for byte in key.encode())


def _first_read(source: Reread[T], key: str, file: Path | None, where: str) -> None:
    path = f"{key}-data" if file is None and key != "tokenFile" else key
    named = f"{file}: " if file is not None else ""
    try:
        source.current()
    except OSError as error:
        missing = error.filename or file
        raise ConfigError.of(
            f"{missing}: {error.strerror or 'cannot be read'}", path, where
        ) from None
    except ValueError as error:
        raise ConfigError.of(f"{named}{error}", path, where) from None


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


def _read_token(user: User) -> str:
    assert user.token_file is not None, "asked only for users with a token file"
    try:
        token = _read(user.token_file).decode("ascii").strip()
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


def _read_client(user: User) -> ClientCertificate:
    return check_client(ClientCertificate(_content(user.certificate), _content(user.key)))
