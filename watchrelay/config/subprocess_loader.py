"""Settings read by a process of its own, so that the daemon never holds what reads them.

Room: config. In: the command line's `-c` and `--set`; for an edit, the settings in force. Out:
`Settings` as plain values, or every reason why not.
pydantic and the rules of the config take 12 of the idle daemon's 63 MB, which no event ever needs:
so a child reads the config while its parent imports the rooms, and hands over values that look the
same and hold nothing else. It costs no right and no file: it is the same program, environment and
working directory. Where no process can be started, the parent reads the config itself.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, cast

from watchrelay.core.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from watchrelay.config.settings import Settings

_log = logging.getLogger(__name__)

_LONG_S = 10.0
"""Reading takes half a second: from here on, a file that hangs is said to."""

_DEADLINE_S = 60.0
"""From here on the child is not believed to answer: it is ended, and its work is done here."""

_ANSWER = b"\0watchrelay settings\0"
"""Stands before the answer; what stands before it was printed by somebody else (a sitecustomize
that talks)."""

_CHILD = """\
import json, sys
asked, sys.path[:] = json.loads(sys.argv[1])
from watchrelay.config import apart
apart.answer(*asked)
"""
"""What the child runs: it finds its modules where its parent does, and nowhere else."""


class Values:
    """A section of the settings after it was checked: the same attributes, no pydantic. Frozen;
    equal to one with the same values."""

    def __init__(self, **values: object) -> None:
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"settings are frozen: {name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Values) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.items()))

    def __repr__(self) -> str:
        return f"Values({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"


class Secret:
    """A value that no log or message shows, as pydantic's SecretStr."""

    def __init__(self, value: str) -> None:
        self._value = value

    def get_secret_value(self) -> str:
        """The value itself."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return "Secret('**********')"


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit that can be taken.

    Shape: `kept` are the keys that were edited and need a restart, as people write them; `places`
    say where each entry of `resources` stands, for whoever has something against it.
    """

    settings: Settings
    kept: tuple[str, ...]
    places: tuple[ConfigProblem, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be read. Shape: `held`, given for an edit alone, are the settings in force,
    `connected` with what they name or not yet."""

    config: str | None
    sets: Sequence[str]
    environ: Mapping[str, str] | None = None
    held: Settings | None = None
    connected: bool = False


class ConfigReader:
    """The child at work. Use: make one, do something else, ask for its `settings()` or its `edit()`
    once."""

    def __init__(self, process: subprocess.Popen[bytes] | None, asked: Asked) -> None:
        self._process = process
        self._asked = asked

    @classmethod
    def start(cls, asked: Asked, *, executable: str | None = sys.executable) -> Self:
        """Start reading. Shape: `executable` is the Python to run."""
        words = json.dumps(
            [
                [asked.config, list(asked.sets), asked.held is not None, asked.connected],
                [str(place) for place in sys.path],
            ]
        )
        try:
            # Whatever was open for this program (`-c <(generate)` is /dev/fd/63) is open for its
            # child too.
            process = subprocess.Popen(
                [executable or "", *_flags(), "-c", _CHILD, words],
                stdin=None if asked.held is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                close_fds=False,
                env=asked.environ,
            )
        except (OSError, ValueError) as error:
            _log.debug("no process for the config", extra={"error": repr(error)})
            process = None
        return cls(process, asked)

    def close(self) -> None:
        """End the child, should it still read."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def settings(self) -> Settings:
        """The settings; `sections` are `Values`.

        Raises: ConfigError with every problem found.
        """
        return self.edit().settings

    def edit(self) -> Edit:
        """What to put in force in place of the settings held.

        Raises: ConfigError with every problem found.
        """
        try:
            said = self._answer() or _read(self._asked)
        finally:
            self.close()
        if isinstance(said, Edit):
            return said
        raise ConfigError(said)

    def _answer(self) -> Edit | list[ConfigProblem] | None:
        """What the child says; None when it can say nothing."""
        if self._process is None:
            return None
        try:
            out = self._output(self._process)
        except subprocess.TimeoutExpired:
            return None
        answer = out.partition(_ANSWER)[2]
        if self._process.returncode or not answer:
            _log.debug(
                "the process that reads the config failed", extra={"code": self._process.returncode}
            )
            return None
        return cast("Edit | list[ConfigProblem]", pickle.loads(answer))  # noqa: S301  # written by our own child, over a pipe

    def _output(self, process: subprocess.Popen[bytes]) -> bytes:
        held = None if self._asked.held is None else pickle.dumps(self._asked.held)
        try:
            return process.communicate(held, timeout=_LONG_S)[0]
        except subprocess.TimeoutExpired:
            file = self._asked.config or "the config"
            print(
                f"watchrelay: still reading {file}: does its file system hang, or is it a pipe "
                "that nobody writes to?",
                file=sys.stderr,
            )
            return process.communicate(timeout=_DEADLINE_S - _LONG_S)[0]


def _flags() -> list[str]:
    """The options of this Python that decide what another one reads and how; never the working
    directory as a place of modules."""
    environment = "-I" if sys.flags.isolated else "-E" if sys.flags.ignore_environment else "-P"
    return [environment, "-P", "-X", f"utf8={sys.flags.utf8_mode}"]


def plain(value: Any) -> Any:
    """Checked settings, or a part of them, without pydantic."""
    from pydantic import BaseModel, SecretStr  # only where settings are read

    if isinstance(value, BaseModel):
        return Values(**{name: plain(getattr(value, name)) for name in type(value).model_fields})
    if isinstance(value, SecretStr):
        return Secret(value.get_secret_value())
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    return value


def _read(asked: Asked) -> Edit | list[ConfigProblem]:
    from watchrelay.config.edits import read_edit  # brings all that the daemon does without
    from watchrelay.config.loading import load_settings

    try:
        if asked.held is None:
            return Edit(
                plain(load_settings(asked.config, asked.sets, environ=asked.environ)), (), ()
            )
        edit = read_edit(
            asked.config, asked.sets, asked.held, connected=asked.connected, environ=asked.environ
        )
        return replace(edit, settings=plain(edit.settings))
    except ConfigError as refused:
        return list(refused.problems)


def answer(config: str | None, sets: Sequence[str], edited: bool, connected: bool) -> None:
    """In the child: read, and write the answer to standard output, a pickle of an `Edit`, or of the
    list of problems."""
    gc.disable()  # it lives for a moment
    held = pickle.load(sys.stdin.buffer) if edited else None  # noqa: S301  # written by our own parent, over a pipe
    out = memoryview(
        _ANSWER + pickle.dumps(_read(Asked(config, sets, held=held, connected=connected)))
    )
    while out:
        out = out[os.write(1, out) :]
