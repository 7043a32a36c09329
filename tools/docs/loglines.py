"""The lines that the daemon logs, found in the source: levels, constant words, names of fields.
Pure: sources in, lines out."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

LEVELS = ("error", "warning", "info", "debug")
_LOGGERS = {"log", "_log"}
_MORE = "..."
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Line:
    """One message: `levels` worst first, several if the code chooses; `fields` in the
    order of the source, "..." among them where more may stand than the call itself names."""

    levels: tuple[str, ...]
    message: str
    logger: str
    fields: tuple[str, ...]


def found(sources: Mapping[str, str]) -> list[Line]:
    """Every line of these modules (text by dotted name), worst first. Raises: ValueError where a
    message is not constant words."""
    lines = {line for name, text in sources.items() for line in _of(name, ast.parse(text))}
    return sorted(
        lines,
        key=lambda line: (LEVELS.index(line.levels[0]), line.message, line.logger, line.fields),
    )


def _of(module: str, tree: ast.Module) -> Iterator[Line]:
    for function in ast.walk(tree):
        if isinstance(function, _Function):
            for call in ast.walk(function):
                match call:
                    case ast.Call(func=ast.Attribute(value=ast.Name(id=logger), attr=how)) if (
                        logger in _LOGGERS
                        and how
                        in (
                            *LEVELS,
                            "log",
                        )
                    ):
                        levels = (how,) if how != "log" else _levels(tree)
                        messages = _messages(tree, function, call.args[how == "log"])
                        if not messages:
                            raise ValueError(
                                f"{module}:{call.lineno}: the message is not constant words"
                            )
                        for message in messages:
                            yield Line(levels, message, module, _fields(function, call))


def _messages(tree: ast.Module, function: _Function, node: ast.expr) -> list[str]:
    """The message: constant text, one of two texts, or what the callers of this method pass."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.IfExp(body=one, orelse=other):
            return _messages(tree, function, one) + _messages(tree, function, other)
        case ast.Name(id=name) if name in (names := [each.arg for each in function.args.args]):
            at = names.index(name) - 1  # `self` is not handed over
            calls = [
                call
                for call in ast.walk(tree)
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
            ]
            own = [
                call.args[at]
                for call in calls
                if isinstance(call.func, ast.Attribute) and call.func.attr == function.name
            ]
            return [
                each.value
                for each in own
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
        case _:
            return []


def _levels(tree: ast.Module) -> tuple[str, ...]:
    """Those that the module names, where it does not say at the call which one it is."""
    named = {
        each.attr.lower()
        for each in ast.walk(tree)
        if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "logging"
    }
    return tuple(level for level in LEVELS if level in named)


def _fields(function: _Function, call: ast.Call) -> tuple[str, ...]:
    extra = next((keyword.value for keyword in call.keywords if keyword.arg == "extra"), None)
    if isinstance(extra, ast.Name):  # made a line above
        made = [
            each.value
            for each in ast.walk(function)
            if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == extra.id
        ]
        extra = made[0] if len(made) == 1 else extra
    match extra:
        case None:
            return ()
        case ast.Dict(keys=keys):
            return tuple(str(key.value) if isinstance(key, ast.Constant) else _MORE for key in keys)
        case _:
            return (_MORE,)
