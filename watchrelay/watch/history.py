"""What a small list shows of the history from which the held state was made. Pure.

A cluster that was rebuilt under the same name, with new objects, may have passed the version from
which a stream continues. Its watch is accepted there, and never shows that the objects of the
former cluster are gone.
"""

from __future__ import annotations

from typing import Literal, Protocol

from watchrelay.model.frames import ObjectFrame, Page
from watchrelay.model.resources import compare

History = Literal["", "same", "unclear", "other"]
"""`same`: nothing shows another history. `other`: certainly not that of the held state. `unclear`:
the watch may bring the difference yet, so one more small list tells. "": there was no answer."""


class Held(Protocol):
    """The state of a stream, at its cursor or later."""

    def lacks(self, frame: ObjectFrame) -> bool:
        """Whether an object is not held, or as another incarnation, or in a newer state."""
        ...

    def holds_up_to(self, version: str) -> bool:
        """Whether an object is held whose version is not newer."""
        ...


class HistoryCheck:
    """Compares small lists of one stream, in their order, with the state that it holds. That state
    is of another history:

    - if it lacks an object that the list has and that was last changed at the cursor or before,
      though no watch has shown a change of it since the list was made;
    - if the list has no object, and the state still has one that is older than the list, though the
      watch has come to the list's version.
    """

    def __init__(self, held: Held) -> None:
        self._held = held
        self._suspect: tuple[str, str, str, str] | None = None
        """The object of the list before that should have been held, and was not."""
        self._empty_at = ""
        """The version of an earlier list without objects, while older objects are held."""

    def judge(self, page: Page, cursor: str) -> History:
        """What a `page` of all objects of the stream shows, by its first one. It was requested
        after the one before was judged; `cursor` is the stream's now."""
        suspect, self._suspect = self._suspect, None
        if not page.objects:
            shows_nothing = page.failures or page.continue_token
            return "same" if shows_nothing else self._judge_empty(page.resource_version, cursor)
        self._empty_at, first = "", page.objects[0]
        if compare(first.resource_version, cursor) not in {-1, 0} or not self._held.lacks(first):
            return "same"
        self._suspect = (first.namespace, first.name, first.uid, first.resource_version)
        # a watch that is past the list may have shown that the object was deleted since: certain
        # once a second list, requested after that, has it too
        past_list = compare(cursor, page.resource_version) not in {-1, 0}
        return "unclear" if past_list and suspect != self._suspect else "other"

    def _judge_empty(self, version: str, cursor: str) -> History:
        self._empty_at = self._empty_at or version
        if not self._held.holds_up_to(self._empty_at):
            self._empty_at = ""
            return "same"
        return "other" if compare(cursor, self._empty_at) in {0, 1} else "unclear"
