"""What of an edited config takes effect while the relay runs, and what requires a restart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from watchrelay.config.keys import field_name
from watchrelay.config.loading import Loaded, load
from watchrelay.config.settings import Settings
from watchrelay.config.tree import Path, show
from watchrelay.config.values import Section
from watchrelay.core.errors import ConfigError, ConfigProblem

_COLD_EARLY: Final[tuple[Path, ...]] = (
    ("cluster",),
    ("observe", "listen"),
    ("observe", "runbookBaseUrl"),
)
"""The keys that are in use before there are connections."""
COLD: Final[tuple[Path, ...]] = (
    ("cluster",),
    ("kubernetes",),
    ("kafka",),
    ("overload",),
    ("queueBytes",),
    ("observe", "listen"),
    ("observe", "runbookBaseUrl"),
    ("sharding",),
)
"""The keys that the process is built from; all others are hot."""


@dataclass(frozen=True, slots=True)
class Edit:
    """An accepted edit: the settings to put in force; `kept`: keys that require a restart and
    keep their old values; `places`: where each entry of `resources` is in the file."""

    settings: Settings
    kept: tuple[str, ...]
    places: tuple[ConfigProblem, ...]


def read_edit(
    config: str | None,
    sets: Sequence[str],
    current: Settings,
    *,
    connected: bool,
    environ: Mapping[str, str] | None = None,
) -> Edit:
    """`take` for the config as it is now; before connections are built, only what is in use by
    then is kept."""
    cold = COLD if connected else _COLD_EARLY
    return take(current, load(config, sets, environ=environ), cold=cold)


def take(current: Settings, loaded: Loaded, *, cold: tuple[Path, ...] = COLD) -> Edit:
    """What to put in force in place of `current`: the edited values, except those under `cold`
    and, where one of these was edited, the revision.

    Raises: ConfigError when the rest of the edit conflicts with the values that are kept."""
    settings, kept = loaded.settings, list[str]()
    for path in cold:
        kept.extend(map(show, _differences(current, settings, path, ())))
        settings = _with(settings, current, path)
    if kept:  # what is in force is not the config of the edited revision
        settings = _with(settings, current, ("revision",))
    if kept and (problems := loaded.problems_of(settings)):
        until = f"until a restart these keep their old values: {', '.join(kept)}"
        raise ConfigError(
            [
                replace(each, hint=f"{each.hint}; {until}" if each.hint else until)
                for each in problems
            ]
        )
    entries = range(len(settings.resources))
    places = tuple(loaded.problem(("resources", index), "") for index in entries)
    return Edit(settings, tuple(kept), places)


def _differences(current: Any, edited: Any, below: Path, at: Path) -> Iterator[Path]:
    """The keys at or under `below` whose values differ, as deep as there are sections."""
    if isinstance(edited, Section):
        for name, info in type(edited).model_fields.items():
            if not below or info.alias == below[0]:
                path = (*at, str(info.alias))
                yield from _differences(
                    getattr(current, name), getattr(edited, name), below[1:], path
                )
    elif current != edited:
        yield at


def _with(edited: Any, current: Any, path: Path) -> Any:
    """`edited` with the value that `current` has at `path`."""
    name = field_name(edited, path[0])
    value = getattr(current, name)
    if len(path) > 1:
        value = _with(getattr(edited, name), value, path[1:])
    return edited.model_copy(update={name: value})
