"""Errors that end a seed, as finds of that seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def flat(error: BaseException) -> list[BaseException]:
    """The errors of a group; else the error."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in flat(each)]
    return [error]


@contextmanager
def errors_named_in(broken: list[str]) -> Iterator[None]:
    """Whatever the block raises ends it, and is named here: the seeds after this one are played."""
    try:
        yield
    except* Exception as group:  # noqa: BLE001 - a seed may break the relay in any way
        broken += [f"{type(error).__name__}: {error}" for error in flat(group)]
