"""What of an edited config takes effect while the relay runs, and what waits for a restart.

Room: config. In: the settings in force, and where the config comes from. Out: the settings to put
in force, and the keys whose old values they keep; or every reason why not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from watchrelay.config import Loaded, Settings, load
from watchrelay.config.fields import Section
from watchrelay.config.subprocess_loader import Edit
from watchrelay.config.tree import Path, show
from watchrelay.core.errors import ConfigError

LISTEN: Final[Path] = ("observe", "listen")
COLD: Final[tuple[Path, ...]] = (
    ("cluster",),
    ("kubernetes",),
    ("kafka",),
    ("overload",),
    ("queueBytes",),
    LISTEN,
    ("sharding",),
)
"""What the process is built from: connections, the names of topics, queues. All other keys are
hot."""


def read_edit(
    config: str | None,
    sets: Sequence[str],
    held: Settings,
    *,
    connected: bool,
    environ: Mapping[str, str] | None = None,
) -> Edit:
    """The config as it is now, compared with `held`. Shape: `connected`: the process was built from
    `held` already.

    Raises: ConfigError with every problem, as `watchrelay validate` says them.
    """
    return take(held, load(config, sets, environ=environ), cold=COLD if connected else (LISTEN,))


def take(held: Settings, loaded: Loaded, *, cold: tuple[Path, ...] = COLD) -> Edit:
    """What to put in force in place of `held`: the edited values, but for those under `cold`.

    Shape: of `held` only attributes are read.
    Raises: ConfigError when the rest of the edit cannot stand with the values that are kept.
    """
    settings, kept = loaded.settings, list[str]()
    for key in cold:
        kept.extend(
            show(path)
            for path in _differences(_at(held, settings, key), _at(settings, settings, key), key)
        )
        settings = _with(settings, held, key)
    if kept and (problems := loaded.problems_of(settings)):
        until = f"until a restart these keep their old values: {', '.join(kept)}"
        raise ConfigError(
            [
                replace(problem, hint=f"{problem.hint}; {until}" if problem.hint else until)
                for problem in problems
            ]
        )
    places = tuple(
        loaded.problem(("resources", index), "") for index in range(len(settings.resources))
    )
    return Edit(settings, tuple(kept), places)


def _differences(held: Any, edited: Any, at: Path) -> Iterator[Path]:
    """The keys whose values differ, as deep as there are sections."""
    if isinstance(edited, Section):
        for name, info in type(edited).model_fields.items():
            yield from _differences(
                getattr(held, name), getattr(edited, name), (*at, info.alias or name)
            )
    elif _open(held) != _open(edited):
        yield at


def _open(value: Any) -> Any:
    return value.get_secret_value() if hasattr(value, "get_secret_value") else value


def _name(section: Section, key: str | int) -> str:
    return next(name for name, info in type(section).model_fields.items() if info.alias == key)


def _at(values: Any, like: Any, path: Path) -> Any:
    for key in path:
        name = _name(like, key)
        values, like = getattr(values, name), getattr(like, name)
    return values


def _with(edited: Any, held: Any, path: Path) -> Any:
    """`edited` with the value that `held` has at `path`."""
    if path:
        name = _name(edited, path[0])
        return edited.model_copy(
            update={name: _with(getattr(edited, name), getattr(held, name), path[1:])}
        )
    if isinstance(edited, Section):
        return edited.model_copy(
            update={
                name: _with(getattr(edited, name), getattr(held, name), ())
                for name in type(edited).model_fields
            }
        )
    return held
