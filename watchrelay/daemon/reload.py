"""Applies edits of the config while the relay runs, or refuses them: log, metric, problem."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from watchrelay.config import Settings, find_file
from watchrelay.config.edits import Edit, read_edit
from watchrelay.core import clock
from watchrelay.core.errors import ConfigError, ConfigProblem
from watchrelay.core.files import Mark, mark_of
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry
from watchrelay.plan.streams import config_hash

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""A change is read once two checks see the same file: an editor may still be writing."""
JUDGE_AGAIN_AFTER = 30
"""Checks between two judgements of a refused edit: what it was refused for may have passed."""
PROBLEMS_SHOWN_MAX = 3
"""Problems shown in full; `watchrelay validate` shows all."""


class Objection(NamedTuple):
    """Why a running relay cannot take an entry of the config, named by its index."""

    entry: int
    message: str
    cure: str = ""


class ConfigSource:
    """The command line's `-c` and `--set`, the environment, and the file that they lead to. Make
    it before the config is loaded: what is written from then on is an edit."""

    def __init__(
        self, config: str | None, sets: Sequence[str], *, environ: Mapping[str, str] | None = None
    ) -> None:
        self._config, self._sets, self._environ = config, tuple(sets), environ
        self._file, _ = find_file(config, os.environ if environ is None else environ)
        self.first_mark = self.mark()

    def mark(self) -> Mark:
        """A value that changes with the file; constant where there is no file."""
        return () if self._file is None else mark_of(self._file)

    async def read(self, held: Settings, *, connected: bool) -> Edit:
        """The config as it is now, compared with `held`. Raises: ConfigError with every problem."""
        return await asyncio.to_thread(
            read_edit, self._config, self._sets, held, connected=connected, environ=self._environ
        )


class Reloadable(Protocol):
    """What runs by the settings: the daemon."""

    settings: Settings

    @property
    def connected(self) -> bool: ...

    def objections(self, settings: Settings) -> list[Objection]: ...

    def adopt(self, settings: Settings) -> None: ...


class Reloader:
    """Applies edits while `run()` runs; `request()` reloads now, whatever the file's stat."""

    def __init__(
        self, source: ConfigSource, relay: Reloadable, *, metrics: Metrics, statuses: StatusRegistry
    ) -> None:
        self._source, self._relay, self._metrics, self._statuses = source, relay, metrics, statuses
        self._asked = asyncio.Event()
        self._read_mark = self._last_mark = source.first_mark
        """Of the file as it was read, and as it was at the last check."""
        self._logged = ""

    def request(self) -> None:
        self._asked.set()

    async def run(self) -> None:
        """Check the file until cancelled."""
        for check in itertools.count(1):
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._asked.wait()
            except TimeoutError:
                pass
            mark, asked = self._source.mark(), self._asked.is_set()
            self._asked.clear()
            edited = mark != self._read_mark and mark == self._last_mark
            refused = mark == self._read_mark and "reload" in self._statuses.problems
            if asked or edited:
                self._read_mark, self._logged = mark, ""
                await self._reload()
            elif refused and check % JUDGE_AGAIN_AFTER == 0:
                await self._reload()
            self._last_mark = mark

    async def _reload(self) -> None:
        relay = self._relay
        connected = relay.connected
        try:
            edit = await self._source.read(relay.settings, connected=connected)
            if connected != relay.connected:  # meanwhile: more keys require a restart
                edit = await self._source.read(relay.settings, connected=relay.connected)
            objections = relay.objections(edit.settings)
        except ConfigError as error:
            self._refused(error.problems)
        except Exception as error:  # whatever it is: an edit never ends a relay that works
            hint = "please report it, with the output of observe.logLevel=debug"
            problem = ConfigProblem(f"internal error: {type(error).__name__}", hint=hint)
            self._refused([problem])
            log.debug("config cannot be read", exc_info=error)
        else:
            refused = [
                replace(edit.places[each.entry], message=each.message, hint=each.cure)
                for each in objections
            ]
            if refused:
                self._refused(refused)
            else:
                self._taken(edit)

    def _refused(self, problems: Sequence[ConfigProblem]) -> None:
        more = len(problems) - PROBLEMS_SHOWN_MAX
        message = "; ".join(map(str, problems[:PROBLEMS_SHOWN_MAX]))
        message += f"; and {more} more" if more > 0 else ""
        if message != self._logged:
            extra = {"error": message, "problems": len(problems)}
            log.error("edited config refused, keeping the previous one", extra=extra)
        self._logged = message
        shown = f"edited config refused, keeping the previous one: {message}"
        self._statuses.problems.put("reload", Trouble("", Cause.CONFIG_REFUSED, shown))
        self._metrics.gauge("config_last_reload_successful").set(0)

    def _taken(self, edit: Edit) -> None:
        changed = edit.settings != self._relay.settings
        self._statuses.problems.pop("reload", None)
        if edit.kept:
            message = (
                f"a restart is needed for what was edited in {', '.join(edit.kept)}: the "
                "former values stay in force until then"
            )
            trouble = Trouble("", Cause.RESTART_NEEDED, message)
            if self._statuses.problems.put("restart", trouble):
                extra = {"keys": list(edit.kept)}
                log.warning("configuration change requires a restart", extra=extra)
        else:
            self._statuses.problems.pop("restart", None)
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
