"""The tables and the diagram of docs/how-the-watch-works.md: the transitions of the watch machine, and
what its states, events and actions are."""

from __future__ import annotations

import inspect
import re
from typing import get_args

from watchrelay.watch import messages, states

_AFTER_ERROR = ("BackingOff", "ListingPages OpeningList OpeningWatch NotServed")
_TRIED_AGAIN = "ListingPages OpeningList OpeningWatch CheckingLists"

TRANSITIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Pausing": {"SleepEnded": ("ListingPages OpeningList OpeningWatch", "")},
    "BackingOff": {"SleepEnded": ("ListingPages OpeningList OpeningWatch", "CheckingLists")},
    "CheckingLists": {"ListsChecked": ("ListingPages OpeningWatch", "OpeningList")},
    "ListingPages": {
        "PageReceived": ("FinishingList ListingPages", "OpeningList BackingOff"),
        "RequestFailed": (
            "BackingOff",
            "RetryingPage ListingPages OpeningList OpeningWatch NotServed",
        ),
    },
    "RetryingPage": {"SleepEnded": ("ListingPages", "")},
    "OpeningList": {"WatchOpened": ("StreamingList", ""), "RequestFailed": _AFTER_ERROR},
    "StreamingList": {
        "FramesReceived": (
            "FinishingList StreamingList",
            "ListingPages OpeningList OpeningWatch BackingOff NotServed",
        ),
        "WatchEnded": ("BackingOff", "ListingPages"),
        "DeadlineReached": ("BackingOff", "ListingPages"),
        "RequestFailed": _AFTER_ERROR,
    },
    "FinishingList": {
        "ListFinished": ("OpeningWatch Watching", "ListingPages OpeningList BackingOff NotServed")
    },
    "OpeningWatch": {"WatchOpened": ("Watching", ""), "RequestFailed": _AFTER_ERROR},
    "Watching": {
        "FramesReceived": ("Watching", f"{_TRIED_AGAIN} BackingOff NotServed"),
        "WatchEnded": ("OpeningWatch", "ListingPages OpeningList Pausing BackingOff CheckingLists"),
        "DeadlineReached": ("Watching", _TRIED_AGAIN),
        "VersionChecked": ("Watching OpeningWatch", "ListingPages OpeningList"),
        "RequestFailed": ("BackingOff NotServed", _TRIED_AGAIN),
    },
    "NotServed": {
        "DiscoveryChecked": ("NotServed", "ListingPages OpeningList"),
        "SleepEnded": ("NotServed", _TRIED_AGAIN),
    },
}
"""By state and event: the states that usually follow, and the others. Any other event is a bug. A
test compares it with what `step` does."""

_BLOCK = re.compile(
    r"(?P<begin><!-- machine: (?P<name>\w+) -->\n)(?P<text>.*?)(?P<end><!-- /machine -->)",
    re.DOTALL,
)


def with_machine(page: str) -> str:
    """The page with each marked block filled in. Raises: KeyError for a block without a maker."""
    makers = {
        "diagram": diagram,
        "transitions": transitions,
        "states": lambda: _meanings("state", get_args(states.State)),
        "events": lambda: _meanings("event", get_args(messages.Event)),
        "actions": lambda: _meanings("action", get_args(messages.Action)),
    }
    return _BLOCK.sub(
        lambda block: f"{block['begin']}\n{makers[block['name']]()}\n{block['end']}", page
    )


def diagram() -> str:
    """The usual transitions of each state and event, as Mermaid."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for state, row in TRANSITIONS.items():
        for event, (usual, _) in row.items():
            for after in usual.split():
                arrows.setdefault((state, after), []).append(event)
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> Pausing"]
    lines += [f"    {state} --> {after}: {', '.join(on)}" for (state, after), on in arrows.items()]
    return "\n".join([*lines, "```", ""])


def transitions() -> str:
    """Every transition, the usual ones of each row first."""
    lines = ["| state | event | next state |", "|---|---|---|"]
    for state, row in TRANSITIONS.items():
        for event, (usual, others) in row.items():
            afters = [*(f"**{after}**" for after in usual.split()), *others.split()]
            lines.append(f"| {state} | {event} | {', '.join(afters)} |")
    return "\n".join([*lines, ""])


def _meanings(kind: str, classes: tuple[type, ...]) -> str:
    """What each class is, by the first paragraph of its docstring."""
    lines = [f"| {kind} | meaning |", "|---|---|"]
    for each in classes:
        paragraph = (inspect.getdoc(each) or "").partition("\n\n")[0]
        lines.append(f"| `{each.__name__}` | {' '.join(paragraph.split())} |")
    return "\n".join([*lines, ""])
