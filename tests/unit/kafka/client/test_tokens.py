"""Programs that print tokens: when they are run, and what their failures say."""

import base64
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from aiokafka.errors import AuthenticationFailedError

from watchrelay.core import clock
from watchrelay.kafka.client.tokens import CommandTokens, MskTokens, TokenProvider, expiry_ms


def jwt(**claims: object) -> str:
    return ".".join(
        base64.urlsafe_b64encode(part).decode().rstrip("=")
        for part in (b"{}", json.dumps(claims).encode(), b"s")
    )


def program(directory: Path, body: str) -> CommandTokens:
    script = directory / "token.py"
    script.write_text(body)
    return CommandTokens((sys.executable, str(script)), timeout_s=20.0)


def counting(directory: Path, token: str) -> CommandTokens:
    return program(
        directory,
        f"import pathlib\nwith pathlib.Path({str(directory / 'runs')!r}).open('a') as f: "
        f"f.write('.')\nprint({token!r})\n",
    )


@pytest.mark.parametrize(("lives_s", "runs"), [(3600, 1), (10, 3)])
async def test_a_token_is_kept_until_shortly_before_it_ends(
    tmp_path: Path, lives_s: int, runs: int
) -> None:
    token = jwt(exp=clock.wall_ms() / 1000 + lives_s)
    provider = TokenProvider(counting(tmp_path, token))
    assert [await provider.token() for _ in range(3)] == [token] * 3
    assert len((tmp_path / "runs").read_text()) == runs


async def test_a_token_that_does_not_say_when_it_ends_is_not_kept(tmp_path: Path) -> None:
    provider = TokenProvider(counting(tmp_path, "opaque"))
    assert [await provider.token() for _ in range(2)] == ["opaque"] * 2
    assert len((tmp_path / "runs").read_text()) == 2


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("import sys; print('no login', file=sys.stderr); sys.exit(3)", "ended with status 3: no login"),
        ("pass", "must print the token and nothing else"),
        ("import sys\nwhile True: sys.stdout.write('x' * 65536)", "printed more than 65536 bytes"),
        ("import sys\nfor _ in range(999): sys.stderr.write('y ' * 9999)\nsys.exit(4)", "ended with status 4: "),
        ("print('two words')", "must print the token and nothing else"),
    ],
)  # fmt: skip
async def test_a_program_that_fails_is_reported_in_one_line(
    tmp_path: Path, body: str, expected: str
) -> None:
    with pytest.raises(AuthenticationFailedError, match=expected):
        await TokenProvider(program(tmp_path, body)).token()


async def test_a_missing_program_is_reported() -> None:
    with pytest.raises(AuthenticationFailedError, match="No such file"):
        await TokenProvider(CommandTokens(("/nowhere/token",))).token()


async def test_a_program_that_does_not_end_is_ended(tmp_path: Path) -> None:
    (tmp_path / "hang.py").write_text("import threading; threading.Event().wait()")
    tokens = CommandTokens((sys.executable, str(tmp_path / "hang.py")), timeout_s=0.2)
    with pytest.raises(AuthenticationFailedError, match=r"did not end within 0\.2 s"):
        await TokenProvider(tokens).token()


async def test_a_helper_that_a_program_leaves_running_does_not_hold_its_token_back(
    tmp_path: Path,
) -> None:
    pid = tmp_path / "pid"
    tokens = program(
        tmp_path,
        "import pathlib, subprocess\n"
        f"helper = subprocess.Popen(['sleep', '1000'])\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(helper.pid))\n"
        "print('opaque')\n",
    )
    try:
        assert await TokenProvider(tokens).token() == "opaque"
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a.b",
        "a.b.c",
        f"a.{base64.urlsafe_b64encode(b'[]').decode()}.c",
        jwt(exp="soon"),
        jwt(iat=1),
    ],
)
def test_what_is_no_jwt_with_an_end_has_none(token: str) -> None:
    assert expiry_ms(token) == 0


def test_the_end_of_a_jwt_is_read_in_milliseconds() -> None:
    assert expiry_ms(jwt(exp=1_700_000_000)) == 1_700_000_000_000


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("None.access_key", "neither environment, web identity, pod identity, profile nor node has credentials"),
        ("raise OSError('no route to the token service')", "AWS gave no identity to sign with: no route to the token service"),
    ],
)  # fmt: skip
async def test_a_signer_without_an_identity_is_reported_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, expected: str
) -> None:
    """The signer of AWS 1.0.2 looks for the key of no credentials where it finds none; tests/image
    runs the real one."""
    package = tmp_path / "aws_msk_iam_sasl_signer"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "MSKAuthTokenProvider.py").write_text(
        f"def generate_auth_token(region):\n    {body}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AuthenticationFailedError, match=expected):
        await TokenProvider(MskTokens("eu-west-1")).token()
    for name in (package.name, f"{package.name}.MSKAuthTokenProvider"):
        del sys.modules[name]
