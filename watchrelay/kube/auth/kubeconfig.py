"""Kubeconfig files, read, merged and checked.

A mistake is a `ConfigError` of one line that names the file and the key; it never contains the
value of a credential.
Source: kubernetes.io "Organizing Cluster Access Using kubeconfig Files"; client-go tools/clientcmd
(loader, validation).
"""

from __future__ import annotations

import base64
import binascii
import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NoReturn, cast

from watchrelay.config.tree import Path as Place
from watchrelay.config.tree import read_yaml
from watchrelay.core.errors import ConfigError
from watchrelay.core.files import read_bounded
from watchrelay.kube.auth.proxy import check_host

EXEC_EXTENSION = "client.authentication.k8s.io/exec"
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
FILE_BYTES_MAX = 8 << 20
"""Some thousand clusters with their authorities and certificates."""
WRITER_S = 1.0
"""For a named pipe's writer to come: nothing else turns in the daemon while a file is read."""
_INDEX = re.compile(r"[0-9]{1,9}")
"""Of a list, in the path of a key; a superscript is a digit, too, but no number."""


@dataclass(frozen=True, slots=True)
class CredentialData:
    """Bytes from a file or from the kubeconfig itself (`data`, which wins). Both None: not given.
    Never shown."""

    file: Path | None = None
    data: bytes | None = field(default=None, repr=False)

    def __bool__(self) -> bool:
        return self.file is not None or self.data is not None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The `cluster` part of a kubeconfig entry. `exec_config` is the extension that plugins asking
    for cluster info are given."""

    server: str = field(repr=False)  # may hold a user and a password
    authority: CredentialData = CredentialData()
    insecure: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = field(default=None, repr=False)
    disable_compression: bool = False
    exec_config: object = field(default=None, repr=False)
    where: str = ""


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """The `exec` part of a user: which program gives us credentials, and how it wants to be
    called."""

    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    api_version: str = EXEC_VERSIONS[0]
    install_hint: str = ""
    provide_cluster_info: bool = False
    where: str = ""


@dataclass(frozen=True, slots=True)
class Impersonation:
    """The user to impersonate. `extra` keeps the file's order; keys as written, not yet escaped."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class User:
    """The `user` part of a kubeconfig entry. At most one of token/token_file, basic, exec decides
    the Authorization header."""

    token: str = field(default="", repr=False)
    token_file: Path | None = None
    certificate: CredentialData = CredentialData()
    key: CredentialData = CredentialData()
    username: str = ""
    password: str = field(default="", repr=False)
    exec_plugin: ExecPlugin | None = None
    impersonation: Impersonation | None = None
    where: str = ""


@dataclass(frozen=True, slots=True)
class _Section:
    """One mapping of a kubeconfig file, with the place to name when something in it is wrong."""

    values: Mapping[str, object]
    file: Path
    path: str
    lines: Mapping[Place, int] = field(default_factory=dict)
    at: Place = ()
    """The place of the mapping in the file, as a key of `lines`; `path` is the same for messages.
    """

    def refuse(self, key: str, message: str, hint: str = "") -> NoReturn:
        path = ".".join(part for part in (self.path, key) if part)
        raise ConfigError.of(
            message, path=path, source=str(self.file), line=self.line(key), hint=hint
        )

    @property
    def where(self) -> str:
        """The file, line and path, for messages."""
        line = self.line()
        return f"{self.file}: {self.path}" if line is None else f"{self.file}:{line}: {self.path}"

    def line(self, key: str = "") -> int | None:
        """The line of `key`, else of the enclosing mapping."""
        steps = key.replace("[", ".").replace("]", "").split(".")
        at = (
            *self.at,
            *((int(part) if _INDEX.fullmatch(part) else part) for part in steps if part),
        )
        return next(
            (
                self.lines[at[:length]]
                for length in range(len(at), -1, -1)
                if at[:length] in self.lines
            ),
            None,
        )

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            self.refuse(key, f"must be a string, not {_kind(value)}", "put it in quotes")
        return value

    def flag(self, key: str) -> bool:
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            self.refuse(key, f"must be true or false, not {_kind(value)}")
        return bool(value)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.refuse(key, "must be a list of strings")
        return tuple(value)

    def section(self, key: str) -> _Section | None:
        value = self.values.get(key)
        if value is None:
            return None
        return _Section(
            self.mapping(key, value), self.file, self._inner(key), self.lines, (*self.at, key)
        )

    def sections(self, key: str) -> list[_Section]:
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.refuse(key, f"must be a list, not {_kind(value)}")
        return [
            _Section(
                self.mapping(f"{key}[{i}]", item),
                self.file,
                self._inner(f"{key}[{i}]"),
                self.lines,
                (*self.at, key, i),
            )
            for i, item in enumerate(value)
        ]

    def _inner(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def mapping(self, key: str, value: object) -> Mapping[str, object]:
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            self.refuse(key, f"must be a mapping, not {_kind(value)}")
        return cast("dict[str, object]", value)

    def local(self, key: str) -> Path | None:
        """A path as the file means it: relative to the directory of the kubeconfig file."""
        text = self.text(key)
        return self.file.absolute().parent / text if text else None

    def secret(self, key: str) -> CredentialData:
        text = self.text(f"{key}-data")
        if not text:
            return CredentialData(file=self.local(key))
        try:
            return CredentialData(data=base64.b64decode("".join(text.split()), validate=True))
        except (binascii.Error, ValueError):
            self.refuse(f"{key}-data", "is not base64")


def _kind(value: object) -> str:
    names = {
        dict: "a mapping",
        list: "a list",
        str: "a string",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return "empty" if value is None else names.get(type(value), "a date")


@dataclass(slots=True)
class Kubeconfig:
    """Several files as one: of two entries with one name the first file's counts, whole; so does
    the first current-context."""

    files: tuple[Path, ...]
    current_context: str = ""
    clusters: dict[str, _Section] = field(default_factory=dict)
    users: dict[str, _Section] = field(default_factory=dict)
    contexts: dict[str, _Section] = field(default_factory=dict)

    def resolve(self, context: str | None) -> tuple[Cluster, User]:
        """The cluster and the user of `context`, or of the current one. Raises: ConfigError, with
        the known names."""
        name = context or self.current_context
        where = ", ".join(str(file) for file in self.files)
        if not name:
            if not self.contexts:
                raise ConfigError.of(
                    "holds no context at all", source=where, hint="is this the kubeconfig?"
                )
            known = f"no context is selected; known: {', '.join(self.contexts)}"
            raise ConfigError.of(known, "current-context", where, hint="set kubernetes.context")
        chosen = _named(
            self.contexts,
            name,
            what="context",
            path="current-context" if not context else "contexts",
            source=where,
        )
        cluster = self._member(chosen, "cluster", self.clusters)
        user = self._member(chosen, "user", self.users) if chosen.text("user") else None
        return _cluster(cluster), (_user(user) if user else User())

    def _member(self, context: _Section, key: str, entries: Mapping[str, _Section]) -> _Section:
        name = context.text(key)
        if not name:
            context.refuse(key, "is missing")
        return _named(
            entries,
            name,
            what=key,
            path=f"{context.path}.{key}",
            source=str(context.file),
            line=context.line(key),
        )


def read_kubeconfig(files: Iterable[Path]) -> Kubeconfig:
    """The files merged, in the order given. Raises: ConfigError for a file that cannot be read or
    is not a kubeconfig."""
    merged = Kubeconfig(tuple(files))
    for file in merged.files:
        root = _read(file)
        merged.current_context = merged.current_context or root.text("current-context")
        for plural, entries in (
            ("clusters", merged.clusters),
            ("users", merged.users),
            ("contexts", merged.contexts),
        ):
            for name, section in _entries(root, plural).items():
                entries.setdefault(name, section)
    return merged


def _read(file: Path) -> _Section:
    try:
        raw = read_bounded(file, FILE_BYTES_MAX + 1, writer_s=WRITER_S)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError.of(f"the kubeconfig cannot be read: {reason}", source=str(file)) from None
    if len(raw) > FILE_BYTES_MAX:
        raise ConfigError.of(
            f"is larger than {FILE_BYTES_MAX >> 20} MiB",
            source=str(file),
            hint="is this the kubeconfig?",
        )
    try:
        tree = read_yaml(raw.decode("utf-8-sig"), str(file))
    except UnicodeDecodeError:
        raise ConfigError.of("is not UTF-8", source=str(file)) from None
    if tree.problems:
        raise ConfigError(tree.problems)
    content = {} if tree.value is None else tree.value
    if not isinstance(content, dict):
        raise ConfigError.of(
            f"is not a kubeconfig: the file is {_kind(content)}, not a mapping",
            source=str(file),
        )
    root = _Section({}, file, "")
    return _Section(root.mapping("", content), file, "", tree.lines)


def _entries(root: _Section, plural: str) -> dict[str, _Section]:
    singular = plural.removesuffix("s")
    found: dict[str, _Section] = {}
    for item in root.sections(plural):
        name = item.text("name")
        if not name:
            item.refuse("name", "is missing")
        if name in found:
            item.refuse("name", f'"{name}" is defined twice in this file')
        path = f"{plural}[{name}].{singular}"
        values = item.values.get(singular)
        found[name] = _Section(
            item.mapping(singular, values if values is not None else {}),
            root.file,
            path,
            item.lines,
            (*item.at, singular),
        )
    return found


def _named(
    entries: Mapping[str, _Section],
    name: str,
    *,
    what: str,
    path: str,
    source: str,
    line: int | None = None,
) -> _Section:
    if found := entries.get(name):
        return found
    near = difflib.get_close_matches(name, entries, n=1)
    hint = (
        f'did you mean "{near[0]}"?'
        if near
        else f"known: {', '.join(entries)}"
        if entries
        else f"there is no {what} at all"
    )
    raise ConfigError.of(f'{what} "{name}" does not exist', path, source, line, hint)


def _cluster(section: _Section) -> Cluster:
    server = section.text("server").rstrip("/")
    if not server:
        section.refuse("server", "is missing")
    authority, insecure = (
        section.secret("certificate-authority"),
        section.flag("insecure-skip-tls-verify"),
    )
    if authority and insecure:
        section.refuse(
            "insecure-skip-tls-verify",
            "cannot be true together with a certificate-authority",
            "remove one of them",
        )
    server_name = section.text("tls-server-name")
    try:
        check_host(server_name)
    except ValueError as error:
        section.refuse(
            "tls-server-name", str(error), "write the name that the server's certificate carries"
        )
    extensions = {
        item.text("name"): item.values.get("extension") for item in section.sections("extensions")
    }
    return Cluster(
        server=server,
        authority=authority,
        insecure=insecure,
        tls_server_name=server_name or None,
        proxy_url=section.text("proxy-url") or None,
        disable_compression=section.flag("disable-compression"),
        exec_config=extensions.get(EXEC_EXTENSION),
        where=section.where,
    )


def _user(section: _Section) -> User:
    if section.values.get("auth-provider") is not None:
        provider = section.section("auth-provider")
        name = provider.text("name") if provider else ""
        section.refuse(
            "auth-provider",
            f'"{name}" is a kind of login that Kubernetes 1.26 removed',
            "use an exec plugin instead: gke-gcloud-auth-plugin, kubelogin",
        )
    certificate, key = section.secret("client-certificate"), section.secret("client-key")
    if bool(certificate) != bool(key):
        section.refuse(
            "client-key" if certificate else "client-certificate",
            "is missing: a certificate and its key come together",
        )
    token, token_file = section.text("token").strip(), section.local("tokenFile")
    if not token.isprintable():
        section.refuse(
            "token", "holds more than one line, or a control character", "write the token alone"
        )
    if section.text("username") and (token or token_file):
        section.refuse("username", "cannot be given together with a token", "remove one of them")
    plugin = section.section("exec")
    return User(
        token=token,
        token_file=token_file,
        certificate=certificate,
        key=key,
        username=section.text("username"),
        password=section.text("password"),
        exec_plugin=_exec(plugin) if plugin else None,
        impersonation=_impersonation(section),
        where=section.where,
    )


def _exec(section: _Section) -> ExecPlugin:
    command, version = section.text("command"), section.text("apiVersion")
    if not command:
        section.refuse("command", "is missing")
    if version not in EXEC_VERSIONS:
        known = " or ".join(EXEC_VERSIONS)
        section.refuse(
            "apiVersion",
            f'"{version}" is not supported' if version else "is missing",
            f"use {known}",
        )
    mode = section.text("interactiveMode")
    if not mode and version == EXEC_VERSIONS[0]:
        section.refuse(
            "interactiveMode", f"is missing; {version} requires it", "Never or IfAvailable"
        )
    if mode == "Always":
        section.refuse(
            "interactiveMode",
            "is Always, but a daemon has no terminal",
            "use a plugin that can do without",
        )
    if mode not in {"", "Never", "IfAvailable"}:
        section.refuse("interactiveMode", f'"{mode}" is unknown', "Never, IfAvailable or Always")
    args, env = (
        section.texts("args"),
        tuple((item.text("name"), item.text("value")) for item in section.sections("env")),
    )
    if not all(name for name, _ in env):
        section.refuse("env", "has an entry without a name")
    if any("=" in name for name, _ in env):
        section.refuse(
            "env", "has an entry with a = in its name", "name and value are keys of their own"
        )
    for key, texts in (
        ("command", (command,)),
        ("args", args),
        ("env", tuple(chain.from_iterable(env))),
    ):
        if any("\0" in text for text in texts):
            section.refuse(key, "holds a NUL character, which no program can be given")
    # A bare name is looked up in $PATH; anything with a separator is a path, relative to the
    # kubeconfig file (client-go does so).
    local = str(section.local("command")) if os.sep in command else command
    return ExecPlugin(
        command=local,
        args=args,
        env=env,
        api_version=version,
        install_hint=" ".join(section.text("installHint").split()),
        provide_cluster_info=section.flag("provideClusterInfo"),
        where=section.where,
    )


def _impersonation(section: _Section) -> Impersonation | None:
    user, groups, uid = section.text("as"), section.texts("as-groups"), section.text("as-uid")
    extras = section.section("as-user-extra")
    extra = tuple((key, extras.texts(key)) for key in extras.values) if extras else ()
    if not user:
        if groups or uid or extra:
            section.refuse("as", "is missing: groups, uid and extra need a user to act as")
        return None
    for value in (user, uid, *groups, *(value for _, values in extra for value in values)):
        if not value.isprintable():
            section.refuse(
                "as", "or one of its groups, uid or extra values holds a control character"
            )
    return Impersonation(user, groups, uid, extra)
