"""`Step`: every step that keeps a Secret's payload or a credential from leaving, to be taken out
one by one."""

from __future__ import annotations

from tests.mutations.step import Step

_SECRETS = ("tests/unit/test_canary.py",)
_CREDENTIALS = ("tests/unit/test_no_credential_is_shown.py",)
_CONFIG = ("tests/unit/config/test_secrets_not_repeated.py",)
_EXEC = ("tests/unit/kube/auth/test_credentials_exec.py",)

_TRANSFORM = "watchrelay/store/transform.py"
_STATUS = "watchrelay/kube/status.py"
_CLIENT = "watchrelay/kube/client.py"
_KUBECONFIG = "watchrelay/kube/auth/kubeconfig.py"
_PLUGIN = "watchrelay/kube/auth/exec_plugin.py"


def _of(tests: tuple[str, ...], file: str, rows: dict[str, tuple[str, str]]) -> tuple[Step, ...]:
    return tuple(
        Step(f"{file}: {name}", tests, ((file, old, new),)) for name, (old, new) in rows.items()
    )


_PAYLOADS = (
    *_of(
        _SECRETS,
        _TRANSFORM,
        {
            "secrets are guarded": (
                'guarded = (resource.group, resource.plural) == ("", "secrets") and',
                "guarded = False and",
            ),
            "data is hidden": ('sealed=("data", "stringData") if', 'sealed=("stringData",) if'),
            "stringData is hidden": ('sealed=("data", "stringData") if', 'sealed=("data",) if'),
            "last-applied goes whatever is kept": (
                "drop_last_applied = guarded or not",
                "drop_last_applied = not",
            ),
            "last-applied goes": (
                "split.pop(LAST_APPLIED, None) is not None",
                "split.get(LAST_APPLIED) is None",
            ),
            "an escaped key is looked at": (
                "return _LAST_APPLIED_MARK in annotations or _ESCAPE in annotations",
                "return _LAST_APPLIED_MARK in annotations",
            ),
            "annotations that cannot be read": (
                "        return REDACTED\n    return split if",
                "        return annotations\n    return split if",
            ),
            "a value is replaced": (
                '    if node.do == "redact":\n        return REDACTED\n',
                '    if node.do == "redact":\n        return value\n',
            ),
            "a payload that is no map": (
                "return REDACTED if node.sealed and bytes(value) != _NULL else value",
                "return value",
            ),
            "a payload that is a list": (
                "node.items is not None and not node.sealed",
                "node.items is not None",
            ),
            "a payload that cannot be read": (
                "        return REDACTED\n    return REDACTED if",
                "        return value\n    return REDACTED if",
            ),
            "a path of the config keeps the seal": (
                "sealed=left.sealed or right.sealed",
                "sealed=left.sealed and right.sealed",
            ),
            "a path of the config keeps the payload hidden": (
                "other=_merge(left.other, right.other),\n        items",
                "other=left.other and right.other,\n        items",
            ),
            "a key of the config stays hidden": (
                "_merge(left.keys.get(key, left.other), right.keys.get(key, right.other))",
                "_merge(left.keys.get(key), right.keys.get(key))",
            ),
        },
    ),
    Step(
        "metadata only, by reader and transform (either is enough)",
        _SECRETS,
        (
            (
                _TRANSFORM,
                "_metadata_only=metadata_only,\n            _takes",
                "_metadata_only=False,\n            _takes",
            ),
            (
                "watchrelay/kube/frame.py",
                "        self._metadata_only = metadata_only\n",
                "        self._metadata_only = False\n",
            ),
        ),
    ),
    *_of(
        _SECRETS,
        _STATUS,
        {
            "what holds a brace is not quoted": (
                'if b"{" in body or b\'":\' in body:',
                "if b'\":' in body:",
            ),
            "what holds a key is not quoted": (
                'if b"{" in body or b\'":\' in body:',
                'if b"{" in body:',
            ),
            "text alone is quoted": (
                'if kind == "text/plain" or (not kind and body.isascii()):',
                "if True:",
            ),
            "what is no text is not quoted": (
                'return line if line.isprintable() else ""',
                "return line",
            ),
            "markup is not quoted": (
                'if kind == "text/html" or body.lstrip()[:1] == b"<":',
                'if kind == "text/html":',
            ),
            "an answer's message ends where it quotes": (
                "        return _words(status.message) or _clean(status.reason)\n",
                "        return _clean(status.message) or _clean(status.reason)\n",
            ),
            "a stream's message ends where it quotes": (
                "reason = _words(status.message) or",
                "reason = _clean(status.message) or",
            ),
            "JSON in a message": ("r'\\{|\":\\S|", "r'\":\\S|"),
            "an excerpt of JSON in a message": ("\\.\\.\\.\\||", ""),
            "a map of Go in a message": ("|map\\[", ""),
        },
    ),
)

_KUBE = (
    *_of(
        _CREDENTIALS,
        _CLIENT,
        {
            "what a complaint repeats of Authorization": (
                "        yield sent.encode()\n",
                "        pass\n",
            ),
            "what a complaint repeats of the proxy's user": (
                "        yield b64encode(f\"{URL(proxy).user or ''}:{password}\".encode())\n",
                "        pass\n",
            ),
            "what a complaint repeats of the proxy's password": (
                "        yield password.encode()\n",
                "        pass\n",
            ),
            "the server is named by host and port": (
                'return f"{url.host}:{url.port}" if url.host else "the API server"',
                "return str(url)",
            ),
        },
    ),
    *_of(
        ("tests/unit/kube/test_client_lists.py",),
        _CLIENT,
        {
            "a header that cannot be sent": (
                'contains control "\n                    "characters"',
                'contains control "\n                    f"characters: {value}"',
            )
        },
    ),
    *_of(
        _CREDENTIALS,
        _KUBECONFIG,
        {
            "token in repr": ('token: str = field(default="", repr=False)', 'token: str = ""'),
            "password in repr": (
                'password: str = field(default="", repr=False)',
                'password: str = ""',
            ),
            "data in repr": (
                "data: bytes | None = field(default=None, repr=False)",
                "data: bytes | None = None",
            ),
            "environment in repr": (
                "env: tuple[tuple[str, str], ...] = field(default=(), repr=False)",
                "env: tuple[tuple[str, str], ...] = ()",
            ),
            "arguments in repr": (
                "args: tuple[str, ...] = field(default=(), repr=False)",
                "args: tuple[str, ...] = ()",
            ),
            "the server's user in repr": (
                "server: str = field(repr=False)",
                "server: str = field()",
            ),
            "the proxy's user in repr": (
                "proxy_url: str | None = field(default=None, repr=False)",
                "proxy_url: str | None = None",
            ),
            "the extension in repr": (
                "exec_config: object = field(default=None, repr=False)",
                "exec_config: object = None",
            ),
        },
    ),
    *_of(
        _CREDENTIALS,
        "watchrelay/kube/auth/transport.py",
        {
            "the server's user in repr": ("url: str = field(repr=False)", "url: str = field()"),
            "the proxy's user in repr": (
                "proxy: str | None = field(default=None, repr=False)",
                "proxy: str | None = None",
            ),
        },
    ),
    *_of(
        _CREDENTIALS,
        "watchrelay/kube/auth/tls.py",
        {"the key in repr": ("key: bytes = field(repr=False)", "key: bytes = field()")},
    ),
    *_of(
        _CREDENTIALS,
        _PLUGIN,
        {"the token in repr": ("token: str = field(repr=False)", "token: str = field()")},
    ),
    *_of(
        (*_CREDENTIALS, *_EXEC),
        _PLUGIN,
        {
            "what a plugin that fails printed": (
                'how = f"failed with exit code {code}" if',
                'how = f"failed with exit code {code}: {output!r}" if',
            ),
            "what a plugin printed that is no JSON": (
                '"did not write JSON to stdout"',
                'f"did not write JSON to stdout: {output!r}"',
            ),
            "a token that no header can carry": (
                '"answered with a status.token that no header can carry"',
                'f"answered with a status.token that no header can carry: {text}"',
            ),
            "an answer that is none": (
                '"answered without a status"',
                'f"answered without a status: {answer}"',
            ),
        },
    ),
    *_of(
        _CONFIG,
        _KUBECONFIG,
        {
            "a value of another kind": (
                "must be {wanted}, not {_kind(value)}",
                "must be {wanted}, not {value!r}",
            ),
            "a mapping of another kind": (
                "must be a mapping, not {_kind(value)}",
                "must be a mapping, not {value!r}",
            ),
            "data that is no base64": ('"is not base64"', 'f"is not base64: {text}"'),
            "a list of texts": (
                '"must be a list of strings"',
                'f"must be a list of strings: {value}"',
            ),
            "a token of several lines": (
                '"holds more than one line, or a control character"',
                'f"holds more than one line: {token}"',
            ),
        },
    ),
)

_OF_CONFIG = (
    *_of(
        _CONFIG,
        "watchrelay/config/tree.py",
        {
            "an alias is not named": (
                '"a word begins with *, which',
                'f"{event.anchor} begins with *, which',
            ),
            "a tag is not named": (
                'tagged = "begins with !,',
                'tagged = f"{node.tag} begins with !,',
            ),
            "a key that holds the value, too": (
                'name = f"{part[: found.start()]}..." if found else part',
                "name = part",
            ),
        },
    ),
    *_of(
        _CONFIG,
        "watchrelay/config/messages.py",
        {
            "a secret of another kind": ("if type_at(path) is SecretStr:", "if False:"),
            "a single value in place of a list": (
                'if kind in ("tuple_type", "model_type", "model_attributes_type"):',
                "if False:",
            ),
        },
    ),
    *_of(
        _CONFIG,
        "watchrelay/config/sources.py",
        {
            "a --set that is none": (
                """f'"{found[0] if found else ""}..." is not""",
                """f'"{text}" is not""",
            )
        },
    ),
    *_of(
        _CONFIG,
        "watchrelay/cli/options.py",
        {
            "an argument that nobody knows": (
                'if message.startswith("unrecognized arguments"):',
                "if False:",
            )
        },
    ),
    *_of(
        _CONFIG,
        "watchrelay/config/values.py",
        {"a server with a user": ('    if "@" in text:', "    if False:")},
    ),
    *_of(
        _CREDENTIALS,
        "watchrelay/config/settings.py",
        {
            "the password is a secret": (
                "password: SecretStr | None = Field",
                "password: Text | None = Field",
            )
        },
    ),
    *_of(
        _CREDENTIALS,
        "watchrelay/config/values.py",
        {"pydantic hides what it was given": ("        hide_input_in_errors=True,\n", "")},
    ),
)

_KAFKA = (
    *_of(
        _CREDENTIALS,
        "watchrelay/kafka/client/client_log.py",
        {
            "what a broker repeats, in the client's log": (
                'without_secrets(" ".join(record.getMessage().split()))',
                '" ".join(record.getMessage().split())',
            ),
            "what a broker repeats": (
                '        line = line.replace(secret, "<redacted>")\n',
                "        pass\n",
            ),
        },
    ),
    *_of(
        _CREDENTIALS,
        "watchrelay/kafka/client/connection.py",
        {
            "what a broker repeats of a password": ("        hide(password)\n", ""),
        },
    ),
    *_of(
        _CREDENTIALS,
        "watchrelay/kafka/client/failures.py",
        {
            "what a broker repeats, in the client's error": (
                "without_secrets(error_text(why))",
                "error_text(why)",
            ),
        },
    ),
    *_of(
        _CREDENTIALS,
        "watchrelay/kafka/client/connection.py",
        {
            "the password in repr": (
                "password: str | None = field(default=None, repr=False)",
                "password: str | None = None",
            ),
            "the token command in repr": (
                "token_command: tuple[str, ...] = field(default=(), repr=False)",
                "token_command: tuple[str, ...] = ()",
            ),
        },
    ),
    *_of(
        _CREDENTIALS,
        "watchrelay/kafka/client/tokens.py",
        {
            "long words of a token command's complaint": (
                (
                    "            last = _LONG_WORD.sub(\n                "
                    '"...", "".join(complaint.decode(errors="replace").strip().splitlines()[-1:])\n            )'
                ),
                '            last = "".join(complaint.decode(errors="replace").strip().splitlines()[-1:])',
            ),
            "what a broker repeats of a token": ("                    hide(self._token)\n", ""),
            "the token command by its name alone": (
                "        name = self._command[0]\n",
                '        name = " ".join(self._command)\n',
            ),
        },
    ),
)

CANARIES: tuple[Step, ...] = (*_PAYLOADS, *_KUBE, *_OF_CONFIG, *_KAFKA)
