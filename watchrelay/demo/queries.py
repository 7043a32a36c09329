"""What may be asked together, and what is refused as a real API server refuses it.

Query parameters become the options of a list or of a watch. Source: docs/watch-facts.md 1.5-1.7,
2.1, 3.4;
apiserver ValidateListOptions, ShouldDelegateList.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from watchrelay.demo.storage import Refused

_TRUE = {"1", "true"}


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """The parameters of a watch, already legal together. `start` None: show what there is first,
    ending with a bookmark if `marked`."""

    start: int | None
    timeout_s: float
    bookmarks: bool
    marked: bool = False
    at_least: int = 0


@dataclass(frozen=True, slots=True)
class ListOptions:
    """`exactly` None: the newest version, which must not be below `at_least`."""

    limit: int = 0
    token: str = ""
    exactly: int | None = None
    at_least: int = 0


def list_options(query: Mapping[str, str]) -> ListOptions:
    """Raises: Refused 400, 422. A limit that is no number, or below 0, is none."""
    version, match, token = (
        query.get("resourceVersion", ""),
        query.get("resourceVersionMatch", ""),
        query.get("continue", ""),
    )
    if query.get("sendInitialEvents"):
        raise _forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")
    if token:
        if match:
            raise _forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden when continue is provided",
            )
        if version not in {"", "0"}:
            raise Refused(
                400, "BadRequest", "specifying resource version is not allowed when using continue"
            )
    elif match:
        if not version:
            raise _forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            )
        if match not in {"Exact", "NotOlderThan"}:
            raise _invalid(
                f'resourceVersionMatch: Unsupported value: "{match}": supported values: "Exact", '
                '"NotOlderThan", ""'
            )
        if match == "Exact" and version == "0":
            raise _forbidden(
                "resourceVersionMatch",
                'resourceVersionMatch "exact" is forbidden for resourceVersion "0"',
            )
    limit = max(0, int(query["limit"])) if re.fullmatch(r"-?\d+", query.get("limit", "")) else 0
    try:
        wanted = _number(version, "resourceVersion")
    except ValueError as error:
        raise Refused(400, "BadRequest", f"invalid resource version: {error}") from None
    if token or not wanted:
        # From the watch cache ("0") a list is never cut into pages; without a version it is.
        return ListOptions(limit=0 if version == "0" else limit, token=token)
    if match == "Exact" or (not match and limit):
        return ListOptions(limit=limit, exactly=wanted, at_least=wanted)
    return ListOptions(limit=limit, at_least=wanted)


def watch_request(query: Mapping[str, str], *, streaming: bool, random: Random) -> WatchRequest:
    """Raises: Refused 422, 500."""
    version, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
    initial, bookmarks = (
        query.get("sendInitialEvents", "") in _TRUE,
        query.get("allowWatchBookmarks", "") in _TRUE,
    )
    if initial and not streaming:
        gate = (
            "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
        )
        raise _forbidden("sendInitialEvents", gate)
    if initial and match != "NotOlderThan":
        raise _forbidden(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        )
    if match and not initial:
        raise _forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        )
    try:
        wanted = _number(version, "resourceVersion")
    except ValueError as error:
        # a list is refused with 400, but this is what kube-apiserver 1.36 says
        raise Refused(500, "", str(error)) from None
    # Without timeoutSeconds real servers draw one between --min-request-timeout (1800 s) and twice
    # that.
    asked = query.get("timeoutSeconds", "")
    timeout_s = int(asked) if asked.isdigit() and int(asked) else random.uniform(1800, 3600)
    if initial:
        return WatchRequest(None, timeout_s, bookmarks, marked=bookmarks, at_least=wanted)
    if not wanted:
        # Servers with streaming lists serve a watch from "" or "0" as one (docs/watch-facts.md
        # 3.9).
        return WatchRequest(None, timeout_s, bookmarks, marked=bookmarks and streaming)
    return WatchRequest(wanted, timeout_s, bookmarks)


def wants_metadata_only(accept: str, *, as_list: bool) -> bool:
    """True for the Accept form that fits; the other one falls back to whole objects, as on a real
    server (docs/watch-facts.md 9.1).

    Raises: Refused 406 for a table: who follows a resource cannot use one.
    """
    first = accept.split(",", maxsplit=1)[0]
    if re.search(r";as=Table\b", first):
        raise Refused(
            406, "NotAcceptable", "only the following media types are accepted: application/json"
        )
    return bool(
        re.search(
            r";as=PartialObjectMetadataList\b" if as_list else r";as=PartialObjectMetadata(;|$)",
            first,
        )
    )


def too_large(asked: int, current: int) -> Refused:
    """504: the version asked for is not there yet. Source: docs/watch-facts.md 2.7."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return Refused(504, "Timeout", message, details={"causes": [cause], "retryAfterSeconds": 1})


def _number(text: str, name: str) -> int:
    """Raises: ValueError, with the words of a real server."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise ValueError(
            f'{name}: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text)


def _forbidden(name: str, message: str) -> Refused:
    return Refused(
        422, "Invalid", f'ListOptions.meta.k8s.io "" is invalid: {name}: Forbidden: {message}'
    )


def _invalid(message: str) -> Refused:
    return Refused(422, "Invalid", f'ListOptions.meta.k8s.io "" is invalid: {message}')
