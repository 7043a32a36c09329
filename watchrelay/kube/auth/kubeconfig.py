"""Kubeconfig files, read, merged and checked.

A mistake is a `ConfigError` of one line that names the file and the key; it never contains the
value of a credential.
Source: kubernetes.io "Organizing Cluster Access Using kubeconfig Files"; client-go tools/clientcmd
(loader, validation).
"""

from __future__ import annotations

import base64
import difflib
import os
import re
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn, TypeVar

from watchrelay.config.tree import Path as Place
from watchrelay.config.tree import read_yaml
from watchrelay.core.errors import ConfigError
from watchrelay.core.files import read_bounded
from watchrelay.kube.auth.proxy import check_host

_HEADER_KEY = frozenset((string.ascii_letters + string.digits + "!#$&'*+-.^_`|~").encode())
"""RFC 7230 token characters, less "%": it escapes the others."""
EXEC_EXTENSION = "client.authentication.k8s.io/exec"
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
FILE_BYTES_MAX = 8 << 20
"""Some thousand clusters with their authorities and certificates."""
WRITER_S = 1.0
"""For a named pipe's writer to come: nothing else turns in the daemon while a file is read."""
_INDEX = re.compile(r"[0-9]{1,9}")
"""Of a list, in the path of a key; a superscript is a digit, too, but no number."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CredentialData:
    """Bytes of a file, or of the kubeconfig itself (`data`, which wins); both None: not given."""

    file: Path | None = None
    data: bytes | None = field(default=None, repr=False)

    def __bool__(self) -> bool:
        return self.file is not None or self.data is not None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The `cluster` part of an entry. `exec_config`: the extension for plugins."""

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
    """The `exec` part of a user: which program gives credentials, and how it is called."""

    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    api_version: str = EXEC_VERSIONS[0]
    install_hint: str = ""
    provide_cluster_info: bool = False
    where: str = ""


@dataclass(frozen=True, slots=True)
class User:
    """The `user` part of an entry. At most one of token/token_file, basic, exec is used."""

    token: str = field(default="", repr=False)
    token_file: Path | None = None
    certificate: CredentialData = CredentialData()
    key: CredentialData = CredentialData()
    username: str = ""
    password: str = field(default="", repr=False)
    exec_plugin: ExecPlugin | None = None
    impersonation: tuple[tuple[str, str], ...] = ()
    """The Impersonate-* headers."""
    where: str = ""


@dataclass(frozen=True, slots=True)
class _Section:
    """One mapping of a kubeconfig file; `at` is its place in `lines`, `path` the same for
    messages."""

    values: Mapping[str, object]
    file: Path
    path: str = ""
    lines: Mapping[Place, int] = field(default_factory=dict)
    at: Place = ()

    def refuse(self, key: str, message: str, hint: str = "") -> NoReturn:
        raise ConfigError.of(message, self._inner(key), str(self.file), self.line(key), hint)

    @property
    def where(self) -> str:
        """The file, line and path, for messages."""
        line = self.line()
        return f"{self.file}: {self.path}" if line is None else f"{self.file}:{line}: {self.path}"

    def line(self, key: str = "") -> int | None:
        """The line of `key`, else of the enclosing mapping."""
        steps = [step for step in key.replace("[", ".").replace("]", "").split(".") if step]
        at = (*self.at, *(int(step) if _INDEX.fullmatch(step) else step for step in steps))
        while at and at not in self.lines:
            at = at[:-1]
        return self.lines.get(at)

    def _value(self, key: str, kind: type[T], wanted: str, hint: str = "") -> T | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, kind):
            self.refuse(key, f"must be {wanted}, not {_kind(value)}", hint)
        return value

    def text(self, key: str) -> str:
        return self._value(key, str, "a string", "put it in quotes") or ""

    def flag(self, key: str) -> bool:
        return self._value(key, bool, "true or false") or False

    def texts(self, key: str) -> tuple[str, ...]:
        value = [] if self.values.get(key) is None else self.values[key]
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.refuse(key, "must be a list of strings")
        return tuple(value)

    def section(self, key: str) -> _Section | None:
        value = self.values.get(key)
        return None if value is None else self.within(key, value, key)

    def sections(self, key: str) -> list[_Section]:
        listed = self._value(key, list, "a list") or []
        return [self.within(f"{key}[{i}]", item, key, i) for i, item in enumerate(listed)]

    def within(self, key: str, value: object, *at: str | int) -> _Section:
        """The mapping `value` of `key`, `at` that place below this one."""
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            self.refuse(key, f"must be a mapping, not {_kind(value)}")
        return _Section(value, self.file, self._inner(key), self.lines, (*self.at, *at))

    def _inner(self, key: str) -> str:
        return ".".join(part for part in (self.path, key) if part)

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
        except ValueError:
            self.refuse(f"{key}-data", "is not base64")


def _kind(value: object) -> str:
    names = {dict: "a mapping", list: "a list", str: "a string", bool: "true or false"}
    numbers = {int: "a number", float: "a number", type(None): "empty"}
    return (names | numbers).get(type(value), "a date")


class Kubeconfig:
    """Several files as one: of two entries with one name the first file's counts, whole.

    Raises: ConfigError for a file that cannot be read or is not a kubeconfig."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = tuple(files)
        self._current_context = ""
        self._entries: dict[str, dict[str, _Section]] = {
            singular: {} for singular in ("cluster", "user", "context")
        }
        for file in self._files:
            root = _read(file)
            self._current_context = self._current_context or root.text("current-context")
            for singular, entries in self._entries.items():
                for name, section in _named_entries(root, singular).items():
                    entries.setdefault(name, section)

    def resolve(self, context: str | None) -> tuple[Cluster, User]:
        """The cluster and the user of `context`, or of the current one. Raises: ConfigError."""
        name, contexts = context or self._current_context, self._entries["context"]
        where = ", ".join(str(file) for file in self._files)
        if not name:
            if not contexts:
                raise ConfigError.of(
                    "holds no context at all", source=where, hint="is this the kubeconfig?"
                )
            known = f"no context is selected; known: {', '.join(contexts)}"
            raise ConfigError.of(known, "current-context", where, hint="set kubernetes.context")
        path = "contexts" if context else "current-context"
        chosen = self._entry("context", name, path, where)
        cluster = self._member(chosen, "cluster")
        user = self._member(chosen, "user") if chosen.text("user") else None
        return _cluster(cluster), (_user(user) if user else User())

    def _member(self, context: _Section, key: str) -> _Section:
        name = context.text(key)
        if not name:
            context.refuse(key, "is missing")
        path = f"{context.path}.{key}"
        return self._entry(key, name, path, str(context.file), context.line(key))

    def _entry(
        self, kind: str, name: str, path: str, source: str, line: int | None = None
    ) -> _Section:
        entries = self._entries[kind]
        if found := entries.get(name):
            return found
        near = difflib.get_close_matches(name, entries, n=1)
        hint = f"known: {', '.join(entries)}" if entries else f"there is no {kind} at all"
        if near:
            hint = f'did you mean "{near[0]}"?'
        raise ConfigError.of(f'{kind} "{name}" does not exist', path, source, line, hint)


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
        what = f"is not a kubeconfig: the file is {_kind(content)}, not a mapping"
        raise ConfigError.of(what, source=str(file))
    return _Section({}, file, lines=tree.lines).within("", content)


def _named_entries(root: _Section, singular: str) -> dict[str, _Section]:
    found: dict[str, _Section] = {}
    for item in root.sections(f"{singular}s"):
        name = item.text("name")
        if not name:
            item.refuse("name", "is missing")
        if name in found:
            item.refuse("name", f'"{name}" is defined twice in this file')
        value = item.values.get(singular)
        section = item.within(singular, {} if value is None else value, singular)
        found[name] = replace(section, path=f"{singular}s[{name}].{singular}")
    return found


def _cluster(section: _Section) -> Cluster:
    server = section.text("server").rstrip("/")
    if not server:
        section.refuse("server", "is missing")
    authority = section.secret("certificate-authority")
    insecure = section.flag("insecure-skip-tls-verify")
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
        what = f'"{name}" is a kind of login that Kubernetes 1.26 removed'
        cure = "use an exec plugin instead: gke-gcloud-auth-plugin, kubelogin"
        section.refuse("auth-provider", what, cure)
    certificate, key = section.secret("client-certificate"), section.secret("client-key")
    if bool(certificate) != bool(key):
        missing = "client-key" if certificate else "client-certificate"
        section.refuse(missing, "is missing: a certificate and its key come together")
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
        what = f'"{version}" is not supported' if version else "is missing"
        section.refuse("apiVersion", what, f"use {' or '.join(EXEC_VERSIONS)}")
    mode = section.text("interactiveMode")
    if not mode and version == EXEC_VERSIONS[0]:
        what = f"is missing; {version} requires it"
        section.refuse("interactiveMode", what, "Never or IfAvailable")
    if mode == "Always":
        what, cure = "is Always, but a daemon has no terminal", "use a plugin that can do without"
        section.refuse("interactiveMode", what, cure)
    if mode not in {"", "Never", "IfAvailable"}:
        section.refuse("interactiveMode", f'"{mode}" is unknown', "Never, IfAvailable or Always")
    args = section.texts("args")
    env = tuple((item.text("name"), item.text("value")) for item in section.sections("env"))
    if not all(name for name, _ in env):
        section.refuse("env", "has an entry without a name")
    if any("=" in name for name, _ in env):
        what, cure = "has an entry with a = in its name", "name and value are keys of their own"
        section.refuse("env", what, cure)
    pairs = tuple(name + value for name, value in env)
    for key, texts in (("command", (command,)), ("args", args), ("env", pairs)):
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


def _impersonation(section: _Section) -> tuple[tuple[str, str], ...]:
    user, groups, uid = section.text("as"), section.texts("as-groups"), section.text("as-uid")
    extras = section.section("as-user-extra")
    extra = [(key, text) for key in extras.values for text in extras.texts(key)] if extras else []
    if not user:
        if groups or uid or (extras and extras.values):
            section.refuse("as", "is missing: groups, uid and extra need a user to act as")
        return ()
    for value in (user, uid, *groups, *(text for _, text in extra)):
        if not value.isprintable():
            section.refuse(
                "as", "or one of its groups, uid or extra values holds a control character"
            )
    return (
        ("Impersonate-User", user),
        *([("Impersonate-Uid", uid)] if uid else []),
        *(("Impersonate-Group", group) for group in groups),
        *((f"Impersonate-Extra-{_escaped(key)}", text) for key, text in extra),
    )


def _escaped(key: str) -> str:
    """As client-go does (transport/round_trippers.go headerKeyEscape)."""
    return "".join(chr(byte) if byte in _HEADER_KEY else f"%{byte:02X}" for byte in key.encode())
