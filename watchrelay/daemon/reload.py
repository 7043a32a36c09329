"""The config file, looked at again and again while the relay runs.

Room: app. In: where the config came from, and whoever puts settings in force. Out: edits taken, or
refused and said: log, metric, board.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from watchrelay.config.locate import find_file
from watchrelay.config.subprocess_loader import Asked, ConfigReader, Edit
from watchrelay.core import clock
from watchrelay.core.errors import ConfigError, ConfigProblem
from watchrelay.core.files import Mark, mark_of
from watchrelay.daemon.plan import config_hash
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import Board

if TYPE_CHECKING:
    from watchrelay.config import Settings

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""What is found changed is read when it has stood still from one look to the next: an editor may
still be writing."""
SAID_MAX = 3
"""Mistakes that are said in full; `watchrelay validate` says all."""

Objection = tuple[int, str, str]
"""(index of an entry, message, cure): why an entry cannot be taken by a running relay."""


class ConfigSource:
    """The command line's `-c` and `--set`, the environment, and the file that they lead to."""

    def __init__(
        self, config: str | None, sets: Sequence[str], *, environ: Mapping[str, str] | None = None
    ) -> None:
        self._config, self._sets, self._environ = config, tuple(sets), environ
        self._file, _ = find_file(config, os.environ if environ is None else environ)

    def mark(self) -> Mark:
        """What is other whenever the file is; the same for ever where environment and `--set` say
        everything."""
        return () if self._file is None else mark_of(self._file)

    async def read(self, held: Settings, *, connected: bool) -> Edit:
        """The config as it is now, compared with `held`. Raises: ConfigError with every problem."""
        reader = ConfigReader.start(Asked(self._config, self._sets, self._environ, held, connected))
        return await asyncio.to_thread(reader.edit)


class InForce(Protocol):
    """Whoever runs by the settings."""

    settings: Settings

    @property
    def connected(self) -> bool:
        """True once connections stand that only a restart can change."""
        ...

    def objections(self, settings: Settings) -> list[Objection]:
        """Why `settings` cannot be put in force; empty when they can."""
        ...

    def adopt(self, settings: Settings) -> None:
        """Put `settings` in force."""
        ...


class Reloader:
    """Takes edits for as long as `run()` goes on; `ask()` looks now, whatever the file's stat
    says."""

    def __init__(
        self, source: ConfigSource, relay: InForce, *, metrics: Metrics, board: Board
    ) -> None:
        self._source, self._relay, self._metrics, self._board = source, relay, metrics, board
        self._asked = asyncio.Event()
        self._read = source.mark()
        self._seen = self._read

    def ask(self) -> None:
        """Read the config at once."""
        self._asked.set()

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._asked.wait()
            except TimeoutError:
                pass
            mark, asked = self._source.mark(), self._asked.is_set()
            self._asked.clear()
            if asked or (mark != self._read and mark == self._seen):
                self._read = mark
                await self._reload()
            self._seen = mark

    async def _reload(self) -> None:
        relay = self._relay
        try:
            edit = await self._source.read(relay.settings, connected=relay.connected)
            objections = relay.objections(edit.settings)
        except ConfigError as error:
            self._refused(error.problems)
        except Exception as error:  # whatever it is: an edit never ends a relay that works
            self._refused(
                [ConfigProblem(f"the config cannot be read or checked: {type(error).__name__}")]
            )
            log.debug("config cannot be read", exc_info=error)
        else:
            if objections:
                self._refused(
                    [
                        replace(edit.places[index], message=said, hint=cure)
                        for index, said, cure in objections
                    ]
                )
            else:
                self._taken(edit)

    def _refused(self, problems: Sequence[ConfigProblem]) -> None:
        more = len(problems) - SAID_MAX
        said = "; ".join(map(str, problems[:SAID_MAX])) + (f"; and {more} more" if more > 0 else "")
        log.error(
            "config is wrong, the former one stays in force",
            extra={"error": said, "problems": len(problems)},
        )
        self._board.problems["reload"] = (
            f"the edited config is wrong, the former one stays in force: {said}"
        )
        self._metrics.gauge("config_last_reload_successful").set(0)

    def _taken(self, edit: Edit) -> None:
        changed = edit.settings != self._relay.settings
        self._board.problems.pop("reload", None)
        if edit.kept:
            said = (
                f"a restart is needed for what was edited in {', '.join(edit.kept)}: the "
                "former values stay in force until then"
            )
            if self._board.problems.get("restart") != said:
                log.warning(
                    "config was edited in what only a restart can change",
                    extra={"keys": list(edit.kept)},
                )
            self._board.problems["restart"] = said
        else:
            self._board.problems.pop("restart", None)
        if changed:
            self._relay.adopt(edit.settings)
        describe(edit.settings, self._metrics)
        log.info(
            "config reloaded", extra={"changed": changed, "config": config_hash(edit.settings)}
        )


def describe(settings: Settings, metrics: Metrics) -> None:
    """Show that `settings` are in force."""
    gauge = metrics.gauge
    gauge("config_info").clear()
    gauge("config_info").labels(config_hash(settings)).set(1)
    gauge("config_last_reload_successful").set(1)
    gauge("config_last_reload_success_timestamp_seconds").set(clock.wall_ms() / 1000)
