"""`watchrelay completion`: what each shell offers, asked of the shell itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from watchrelay.cli.main import build_parser, main

Captured = pytest.CaptureFixture[str]

_BASH = """
source "$1"
words=("${@:2}")
COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1)) COMP_LINE="${words[*]}" COMP_POINT=${#COMP_LINE}
[[ $(complete -p watchrelay) =~ -F\\ ([^ ]+) ]]
"${BASH_REMATCH[1]}" watchrelay "${words[-1]}" "${words[-2]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
_FISH = """
source $argv[1]
complete --do-complete "$argv[2]" | string split --fields 1 \\t
"""


@pytest.fixture
def script(request: pytest.FixtureRequest, tmp_path: Path, capsys: Captured) -> Path:
    """What is printed for the shell `request.param`, in a file."""
    assert main(["completion", request.param]) == 0
    out, err = capsys.readouterr()
    assert (err, out != "") == ("", True)
    file = tmp_path / f"watchrelay.{request.param}"
    file.write_text(out)
    return file


def installed(shell: str) -> str:
    """Its path; without it the test that asks is skipped."""
    if (path := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed")
    return path


def run(*argv: str | Path) -> set[str]:
    done = subprocess.run(
        [*map(str, argv)], capture_output=True, text=True, timeout=30.0, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return set(done.stdout.split())


def commands() -> set[str]:
    """Every verb that --help lists."""
    (choices,) = [action.choices for action in build_parser()._actions if action.dest == "command"]
    assert choices is not None
    return set(choices)


OFFERS: list[tuple[list[str], set[str]]] = [
    (["watchrelay", "ver"], {"verify", "version"}),
    (["watchrelay", "tail", "--m"], {"--markers"}),
    (["watchrelay", "tail", "pods", "--from"], {"--from-beginning"}),
    (["watchrelay", "tail", "--output", ""], {"text", "json", "yaml", "name"}),
    (["watchrelay", "tail", "--type", "he"], {"heartbeat"}),
    (["watchrelay", "verify", "--part"], {"--partitions"}),
    (["watchrelay", "snapshot", "--output", "j"], {"json"}),
    (["watchrelay", "completion", ""], {"bash", "zsh", "fish"}),
]


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_offers_commands_options_values_and_files(script: Path, tmp_path: Path) -> None:
    bash = installed("bash")

    def offered(*words: str) -> set[str]:
        return run(bash, "--norc", "-c", _BASH, "bash", script, *words)

    assert offered("watchrelay", "") == commands()
    assert {tuple(words): offered(*words) for words, _ in OFFERS} == {
        tuple(words): found for words, found in OFFERS
    }
    (tmp_path / "some.yaml").touch()
    assert offered("watchrelay", "verify", "-c", f"{tmp_path}/so") == {f"{tmp_path}/some.yaml"}


@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_offers_the_same(script: Path) -> None:
    fish = installed("fish")

    def offered(*words: str) -> set[str]:
        return run(fish, "--no-config", "-c", _FISH, script, " ".join(words))

    assert offered("watchrelay", "") == commands()
    assert {tuple(words): offered(*words) for words, _ in OFFERS} == {
        tuple(words): found for words, found in OFFERS
    }


@pytest.mark.parametrize(
    ("script", "shell"), [("zsh", "zsh"), ("fish", "fish"), ("bash", "bash")], indirect=["script"]
)
def test_each_shell_takes_its_script(script: Path, shell: str) -> None:
    assert run(installed(shell), "-n", script) == set()


@pytest.mark.parametrize("script", ["zsh", "fish", "bash"], indirect=True)
def test_every_command_and_option_is_in_the_script(script: Path) -> None:
    text = script.read_text()
    (choices,) = [action.choices for action in build_parser()._actions if action.dest == "command"]
    assert isinstance(choices, dict)
    options = {
        option
        for each in choices.values()
        for action in each._actions
        for option in action.option_strings
    }
    assert {name for name in choices if name not in text} == set()
    assert {option for option in options if option.lstrip("-") not in text} == set()


def test_a_shell_that_is_not_known_is_wrong_usage(capsys: Captured) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
