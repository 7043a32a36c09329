"""What a check over several keys says.

Room: config. In: nothing. Out: the value that `refusals.py` and `security.py` make, and
`loading.py` turns into a `Problem`.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchrelay.config.tree import Path


@dataclass(frozen=True, slots=True)
class Refusal:
    """One combination that cannot be. Shape: `paths` are the keys it is about; it is shown at the
    first of them that was given.

    `other` is a second place that the message names: its line is shown too.
    """

    paths: tuple[Path, ...]
    message: str
    hint: str = ""
    other: Path = ()
