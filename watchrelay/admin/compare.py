"""Compares the objects of a topic with those that the API server lists, while both change.

A list has the state at one resourceVersion. No record is read while the list runs, and records
newer than that version are kept apart afterwards; so the topic's state at the version of the list
is known, however many changes there are. A difference counts once the log's frontier has passed the
list's version, and only if a second list confirms it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from watchrelay.consumer.audit import Audit, AuditProblem, Bare, Kind, bare_hash
from watchrelay.consumer.audit_run import Auditor
from watchrelay.contract.partitioning import partition_of
from watchrelay.contract.records import Trimmed
from watchrelay.core.errors import Expired, Interrupted, Undecodable
from watchrelay.core.text import counted
from watchrelay.kube.client import KubeClient
from watchrelay.model.frames import ListQuery, ObjectFrame
from watchrelay.model.resources import compare
from watchrelay.plan.streams import PlannedStream
from watchrelay.publish.trim import stub, without_fields
from watchrelay.watch.pages import Pages

_DEADLINE_S = 30.0
"""For changes that are not yet in the log; a stream without changes waits for a bookmark."""
_CONFIRM_S = 5.0
_PAGE_SIZE = 500


@dataclass(slots=True)
class ClusterState:
    """The objects of one list."""

    version: str
    hashes: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict)
    """By record key, one for each value that the topic may have."""
    damaged: set[bytes] = field(default_factory=set)
    """The keys of undecodable objects."""
    nameless: int = 0
    """How many undecodable objects have no key."""


def bare_of(planned: PlannedStream) -> Bare:
    """What of a value of this stream is compared: what counts, where not all of it does."""
    counting = planned.counting
    return bare_hash if counting is None else lambda value, _version: counting.of_value(value)


async def compare_with_cluster(
    auditor: Auditor, client: KubeClient, planned: PlannedStream
) -> None:
    """Add the differences between cluster and topic to the audits of the stream, which
    `auditor` has read to its end. Raises: KubeError, SinkUnavailable."""
    stream = planned.spec.id
    audits = auditor.of(stream)
    listed = await _list(client, planned, audits)
    found = await _differences_after(auditor, stream, listed, _DEADLINE_S)
    if found:
        listed = await _list(client, planned, audits)
        again = await _differences_after(auditor, stream, listed, _CONFIRM_S)
        found = {key: kind for key, kind in again.items() if key in found}
    for key, kind in sorted(found.items()):
        _add_problem(audits, planned, key, kind, listed)
    if undecodable := len(listed.damaged) + listed.nameless:
        detail = f"{counted(undecodable, 'object')} of the API server's list cannot be decoded"
        audits[0].add(AuditProblem("unreadable", None, None, detail))


async def _differences_after(
    auditor: Auditor, stream: str, listed: ClusterState, deadline_s: float
) -> dict[bytes, Kind]:
    """The differences once the log has passed the list's version; returns early without any."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + deadline_s
    audits = auditor.of(stream)
    while found := _differences(audits, listed):
        passed = all(compare(audit.frontier, listed.version) in {0, 1} for audit in audits)
        if passed or loop.time() > until_s:
            return found
        await auditor.read_on(stream)
    return {}


async def _list(client: KubeClient, planned: PlannedStream, audits: list[Audit]) -> ClusterState:
    """The state of the cluster, as the stream would publish it; the audits are frozen at its
    version."""
    listed = ClusterState("")
    trimmed = {key: kind for audit in audits for key, kind in audit.trimmed.items()}
    token, limit = "", planned.spec.plan.page_size or _PAGE_SIZE
    pages, selection = Pages(), planned.spec.plan.selection
    while True:
        query = ListQuery(limit=limit, continue_token=token)
        try:
            page = await client.list_page(selection, query, stream=planned.spec.id)
        except Expired:
            if not limit:
                raise
            # the pages took longer than the server keeps the version: list without pages
            listed, token, limit, pages = ClusterState(""), "", 0, Pages()
            continue
        listed.version = listed.version or page.resource_version
        for error in page.failures:
            if isinstance(error, Undecodable) and error.about is not None:
                listed.damaged.add(planned.spec.key_prefix + "/".join(error.about).encode())
            else:
                listed.nameless += 1
        for frame in page.objects:
            _add(listed, planned, frame, trimmed)
        token = page.continue_token or ""
        if not token:
            break
        following = pages.then(page, query.continue_token, asyncio.get_running_loop().time())
        if isinstance(following, str):
            raise Interrupted(f"the list of {selection.path} {following}")
        pages = following
    for audit in audits:
        audit.freeze(listed.version)
    return listed


def _add(
    listed: ClusterState, planned: PlannedStream, frame: ObjectFrame, trimmed: dict[bytes, Trimmed]
) -> None:
    arrival = planned.spec.plan.arrival_namespaces
    if arrival and frame.namespace not in arrival:
        return
    key = planned.spec.key_prefix + f"{frame.namespace}/{frame.name}".encode()
    values = [planned.transform.apply(frame)]
    if form := trimmed.get(key):  # the object is too large for the topic
        values = [without_fields(values[0])]
        if form == "stub":
            values = [stub(values[0]), stub(values[0], smallest=True)]
    bare = bare_of(planned)
    listed.hashes[key] = tuple(bare(value, frame.resource_version) for value in values)


def _differences(audits: list[Audit], listed: ClusterState) -> dict[bytes, Kind]:
    held = {key: each for audit in audits for key, each in audit.held_as_of().items()}
    found: dict[bytes, Kind] = {}
    for key, forms in listed.hashes.items():
        on_topic = held.get(key)
        if on_topic is None:
            found[key] = "missing"
        elif on_topic.value not in forms:
            found[key] = "differs"
    if not listed.nameless:  # else it may be one of them
        found.update(dict.fromkeys(held.keys() - listed.hashes.keys() - listed.damaged, "extra"))
    return found


def _add_problem(
    audits: list[Audit], planned: PlannedStream, key: bytes, kind: Kind, listed: ClusterState
) -> None:
    difference = {
        "missing": "the API server lists it, the topic does not have it",
        "extra": "the topic has it, the API server does not list it",
        "differs": "the topic has it with other content than the API server",
    }[kind]
    home = partition_of(key, planned.spec.partitions)
    # the topic may lack that partition
    audit = next((each for each in audits if each.partition == home), audits[0])
    held = audit.held_at(key) if kind != "missing" else None
    at = f" (resourceVersion {held.version} on the topic)" if held is not None else ""
    behind = (
        ""
        if compare(audit.frontier, listed.version) in {0, 1}
        else f"; the relay is at {audit.frontier or 'nothing yet'}"
    )
    audit.add(
        AuditProblem(
            kind,
            None,
            key.decode(errors="replace"),
            f"{difference}{at}, list at {listed.version}{behind}",
        )
    )
