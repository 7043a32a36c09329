"""A password in a config that is wrong about it, however it is wrong and wherever it is written: no
message repeats it.

Input: clumsy files, variables and command lines, each with the canary in it. Output: what is
printed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.kube.auth.kubeconfigs import load
from watchrelay.cli.main import main
from watchrelay.core.errors import ConfigError

CANARY = "canary0fap4ssword"
NUMBER = "86753098675309"
FORMS = (CANARY, NUMBER, str(float(NUMBER)), str(int(NUMBER, 16)))

WRITTEN = [
    f"password: {NUMBER}",
    f"password: {NUMBER}.5",
    f"password: *{CANARY}",
    f"password: &{CANARY} *{CANARY}",
    f"password: &{CANARY} [*{CANARY}]",
    f"password: !{CANARY} x",
    f"password: !!{CANARY} x",
    f"password: !{CANARY} {{a: b}}",
    f"password: !e!{CANARY} x",
    f"password: @{CANARY}",
    f"password: %{CANARY}",
    f"password: `{CANARY}",
    f'password: "{CANARY}',
    f'password: "{CANARY}\\q"',
    f"password: '{CANARY}' x",
    f"password: {CANARY}: x",
    f"password: [{CANARY}]",
    f"password: {{a: {CANARY}}}",
    f"password: {{{CANARY}",
    f"password: |{CANARY}",
    f"password: >{CANARY}",
    f"password:{CANARY}",
    f'"password:{CANARY}": x',  # as {password:...} without a space is read,
    f'"password {CANARY}": x',  # and without a colon
    f"pasword: {CANARY}",
    f"password: x\n    password: {CANARY}",
    f"tokenCommand: [{CANARY}, 1]",
    f"tokenCommand: x '{CANARY}",
]
"""Under kafka.security, each a way to get it wrong."""


def config(line: str, *, servers: str = "[k:9092]") -> str:
    head = (
        f"cluster: c\nkafka:\n  bootstrapServers: {servers}\n  security:\n    protocol: "
        "SASL_SSL\n    mechanism: PLAIN\n    username: u\n"
    )
    return f"{head}    {line}\nresources: [{{resource: pods}}]\n"


def validate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, *arguments: str
) -> tuple[int, str]:
    (tmp_path / "c.yaml").write_text(text)
    code = main(["validate", "-c", str(tmp_path / "c.yaml"), *arguments])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def shown(text: str) -> list[str]:
    return [form for form in FORMS if form in text]


@pytest.mark.parametrize("line", WRITTEN)
def test_what_is_wrong_about_a_password_is_reported_without_it(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = validate(tmp_path, capsys, config(line))
    assert code == 78
    assert f"{tmp_path}/c.yaml:" in printed
    assert shown(printed) == []


@pytest.mark.parametrize("servers", [f"[u:{CANARY}@k:9092]", f"['http://u:{CANARY}@k:9092']"])
def test_a_password_among_the_servers_is_reported_by_its_place(
    servers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = validate(tmp_path, capsys, config("password: x", servers=servers))
    assert code == 78
    assert "c.yaml:3: kafka.bootstrapServers[0]: has an @: write host:port alone" in printed
    assert shown(printed) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WATCHRELAY_KAFKA__SECURITY", f'{{"password": {NUMBER}}}'),
        ("WATCHRELAY_KAFKA__SECURITY", f'{{"password": ["{CANARY}"]}}'),
        ("WATCHRELAY_KAFKA__SECURITY", f'{{"password": "{CANARY}"'),
        ("WATCHRELAY_KAFKA__SECURITY", CANARY),
        ("WATCHRELAY_KAFKA", f'{{"security": "{CANARY}"}}'),
        ("WATCHRELAY_KAFKA__SECURITY__PASSWORT", CANARY),
    ],
)
def test_a_variable_that_is_wrong_is_reported_without_its_value(
    name: str,
    value: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(name, value)
    code, printed = validate(tmp_path, capsys, config("password: x"))
    assert (code, name in printed, shown(printed)) == (78, True, [])


KEY = "kafka.security.password"


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (78, ("--set", f"kafka.security={{password: {NUMBER}}}")),
        (78, ("--set", f"kafka.security={{password: *{CANARY}}}")),
        (78, ("--set", f"kafka.security={{password: !{CANARY} x}}")),
        (78, ("--set", f"kafka.security={{password: {CANARY}")),
        (78, ("--set", f"{KEY}.x={CANARY}")),
        (2, ("--set", f"{KEY}:{CANARY}")),
        (2, ("--set", f"{KEY}:{CANARY}=")),
        (2, ("--set", f"{KEY} {CANARY}")),
        (2, (f"{KEY}={CANARY}",)),
        (2, (f"--password={CANARY}",)),
    ],
)
def test_an_argument_that_is_wrong_is_reported_without_the_password(
    code: int, arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, printed = validate(tmp_path, capsys, config("password: x"), *arguments)
    assert (found, shown(printed)) == (code, [])
    assert "password" in printed or "kafka.security" in printed


def test_an_empty_password_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As of a script's variable that was not set: the broker would be asked with it forever."""
    code, printed = validate(tmp_path, capsys, config('password: ""'))
    assert code == 78
    assert "mechanism PLAIN needs password or passwordFile" in printed


PLUGIN = "apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never"
USERS = [
    f"{{token: {NUMBER}}}",
    f"{{token: *{CANARY}}}",
    f"{{token: !{CANARY} x}}",
    f'{{token: "{CANARY}\\nx"}}',
    f"{{token: [{CANARY}]}}",
    f"{{token: {{{CANARY}: x}}}}",
    f"{{token: x, token: {CANARY}}}",
    f"{{username: u, password: {NUMBER}}}",
    f"{{client-certificate-data: aGk=, client-key-data: {CANARY}!}}",
    f"{{client-certificate-data: aGk=, client-key-data: {CANARY}===}}",
    f"{{exec: {{command: x, {PLUGIN}, env: {{PASSWORD: {CANARY}}}}}}}",
    f"{{exec: {{command: x, {PLUGIN}, args: --secret={CANARY}}}}}",
    f"{{auth-provider: {{name: oidc, config: {{id-token: {CANARY}}}}}}}",
    CANARY,
]


@pytest.mark.parametrize("user", USERS)
def test_what_is_wrong_about_a_users_credential_is_reported_without_it(
    user: str, tmp_path: Path
) -> None:
    file = tmp_path / "config"
    file.write_text(
        "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n"
        "clusters: [{name: k, cluster: {server: https://h:1}}]\nusers:\n- name: u\n  "
        f"user: {user}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert shown(str(caught.value) + repr(caught.value)) == []
    assert str(file) in str(caught.value)
