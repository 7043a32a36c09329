"""What a list is made for. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

ListCause = Literal[
    "first", "expired", "version_too_large", "undecodable", "suspicious", "consistency", "restored",
    "too_old", "returned", "version_refused", "recovered", "continue", "failing",
]  # fmt: skip
"""Why a list is made, a field of the log line. `expired`: the history is lost (410).
`version_too_large`: the server does not have our version yet. `version_refused`: it did not accept
the version of the request.
`undecodable`: an object of the watch could not be decoded. `suspicious`: the last list lost most
objects. `consistency`: `relistInterval` has passed; the list checks for missed changes.
`restored`: the server was restored from a backup, or is that of a cluster which was rebuilt under
the same name. `too_old`: the last list was older than requested, as from a stale cache. `returned`:
the resource is served again. `recovered`: the state that was read back from the log is compared
with the current one. `continue`: the server refused the continue token of a page. `failing`: the
watch fails from its cursor each time, and lists work."""


class ListGoal(msgspec.Struct, frozen=True):
    """What a list is made for. Where a state or function has None in its place, the watch continues
    from the cursor, without a list.

    `most_recent`: request no version, that is the most recent state, also where it is older than
    ours. `unbounded`: in one page, because the history expired between pages. `accept_any_size`:
    this list confirms a suspicious one, so the store accepts it however many objects it lacks.
    `by_content`: the store compares objects by content, for the server went back and may have used
    versions twice. `watch_continues`: nothing is known to be wrong with the watch, so after the
    list, complete or failed, it continues from its cursor; what the list found and the watch then
    does not bring was missed. `past_cursor`, with it: the watch fails from its cursor, so after the
    complete list it continues from the list's version. Such a list is paged, as the small list was
    that showed that lists work.
    """

    cause: ListCause
    most_recent: bool = False
    unbounded: bool = False
    accept_any_size: bool = False
    by_content: bool = False
    watch_continues: bool = False
    past_cursor: bool = False


CONSISTENCY = ListGoal("consistency", most_recent=True, watch_continues=True)
RESTORED = ListGoal("restored", most_recent=True, by_content=True)
FAILING = ListGoal("failing", watch_continues=True, past_cursor=True)
