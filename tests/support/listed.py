"""The text of an API server's list: what the relay must publish for it, byte by byte.

Nothing is re-encoded: members are cut out of the text as they stand, so numbers, escapes and the
order of keys survive here, and a test that compares with it shows that they survived there.
"""

import http.client
import json
import ssl
import urllib.parse
from collections.abc import Callable, Iterator, Mapping

from tests.support.churn import Target
from tests.support.process import wait_until
from tests.support.topicreader import TopicReader

_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

Members = list[tuple[str, str]]


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _value(text: str, at: int) -> tuple[str, int]:
    _, end = _DECODER.raw_decode(text, at)
    return text[at:end], end


def members(text: str) -> Members:
    """The members of a JSON object: decoded key, value as received."""
    at = _skip(text, 0)
    assert text[at] == "{", text[:40]
    at = _skip(text, at + 1)
    found: Members = []
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        assert text[at] == ":"
        value, at = _value(text, _skip(text, at + 1))
        found.append((key, value))
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def elements(text: str) -> Iterator[str]:
    """The elements of a JSON array, as they stand."""
    at = _skip(text, _skip(text, 0) + 1)
    while text[at] != "]":
        value, at = _value(text, at)
        yield value
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)


def joined(parts: Members) -> str:
    """The object that these members make, without white space."""
    return (
        "{"
        + ",".join(f"{json.dumps(key, ensure_ascii=False)}:{value}" for key, value in parts)
        + "}"
    )


def without_defaults(item: str) -> str:
    """The object without managedFields and without the last-applied annotation; a map that becomes
    empty stays."""
    return edited(item, "metadata", _lean_metadata)


def edited(item: str, key: str, edit: Callable[[str], str]) -> str:
    """The object with one member's text replaced by what `edit` makes of it."""
    return joined([(name, edit(value) if name == key else value) for name, value in members(item)])


def without(item: str, key: str) -> str:
    """The object without one member."""
    return joined([(name, value) for name, value in members(item) if name != key])


def redacted(item: str) -> str:
    """An object whose values are all replaced by the placeholder of a redacted one."""
    return joined([(name, '"<redacted>"') for name, _ in members(item)])


def redacted_data(item: str) -> str:
    """A Secret of a list as it is published: its values are gone."""
    return edited(without_defaults(item), "data", redacted)


def _lean_metadata(metadata: str) -> str:
    kept = [(name, value) for name, value in members(metadata) if name != "managedFields"]
    return joined(
        [
            (name, without(value, _LAST_APPLIED) if name == "annotations" else value)
            for name, value in kept
        ]
    )


def expected_table(
    listing: str, *, edit: Callable[[str], str] = without_defaults, prefix: str = ""
) -> dict[bytes, bytes]:
    """Key and value of each item of a list. ApiVersion and kind stand in front; an item that
    has none gets those of its list."""
    whole = dict(members(listing))
    kind = json.loads(whole["kind"]).removesuffix("List")
    table: dict[bytes, bytes] = {}
    for item in elements(whole["items"]):
        parts = members(item)
        own = dict(parts)
        front = [
            ("apiVersion", own.get("apiVersion", whole["apiVersion"])),
            ("kind", own.get("kind", json.dumps(kind))),
        ]
        parts = [*front, *(part for part in parts if part[0] not in {"apiVersion", "kind"})]
        text = edit(joined(parts))
        metadata = json.loads(dict(parts)["metadata"])
        table[f"{prefix}{metadata.get('namespace', '')}/{metadata['name']}".encode()] = (
            text.encode()
        )
    return table


def list_text(cluster: Target, path: str) -> str:
    """The text of a list, as the API server wrote it."""
    address = urllib.parse.urlsplit(cluster.url)
    host, port = address.hostname or "", address.port
    if address.scheme == "https":
        context = ssl.create_default_context(cafile=str(cluster.ca))
        context.load_cert_chain(cluster.admin.certificate, cluster.admin.key)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, context=context, timeout=10.0
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=10.0)
    try:
        connection.request("GET", path, headers={"Accept": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    assert answer.status == http.client.OK, f"{path}: {answer.status} {text[:300]}"
    return text


def expected_tables(cluster: Target, paths: Mapping[str, str]) -> dict[str, dict[bytes, bytes]]:
    """What the API server lists now at these paths, as a relay publishes it, by stream."""
    return {stream: expected_table(list_text(cluster, path)) for stream, path in paths.items()}


def await_equal(
    cluster: Target,
    reader: TopicReader,
    wanted: Mapping[str, str | tuple[str, Callable[[str], str]]],
    *,
    deadline_s: float = 90.0,
) -> None:
    """Returns once each stream's table is what the API server lists, key by key and byte by byte,
    proven in each partition.

    `wanted` maps a stream to the path of its list, or to that and the edit behind it. What
    still differs when the time is up is the AssertionError.
    """
    differs: dict[str, list[str]] = {}

    def equal() -> bool:
        reader.read()
        assert reader.problems == [], "\n".join(reader.problems[:20])  # waiting longer mends none
        differs.clear()
        for stream, entry in wanted.items():
            path, edit = (entry, without_defaults) if isinstance(entry, str) else entry
            if lines := difference(
                expected_table(list_text(cluster, path), edit=edit), reader.table(stream)
            ):
                differs[stream] = lines
        return not differs and all(reader.proven(stream) for stream in wanted)

    try:
        wait_until("the topics hold what the API server lists", equal, deadline_s=deadline_s)
    except TimeoutError as late:
        lines = [f"{stream}: {line}" for stream, found in differs.items() for line in found[:3]]
        raise AssertionError(
            "\n".join([f"the topics do not end equal ({late}):", *lines, reader.describe()])
        ) from None


def difference(expected: dict[bytes, bytes], found: dict[bytes, bytes]) -> list[str]:
    """One line for each key that is missing, superfluous or of another value; empty when equal,
    byte by byte."""
    lines = [f"missing: {key!r}" for key in sorted(expected.keys() - found.keys())]
    lines += [f"superfluous: {key!r}" for key in sorted(found.keys() - expected.keys())]
    for key in sorted(expected.keys() & found.keys()):
        if expected[key] == found[key]:
            continue
        meaning = (
            "in bytes alone"
            if json.loads(expected[key]) == json.loads(found[key])
            else "in meaning"
        )
        at = next(
            (
                n
                for n, (one, two) in enumerate(zip(expected[key], found[key], strict=False))
                if one != two
            ),
            0,
        )
        around = slice(max(0, at - 60), at + 60)
        lines.append(
            f"other {meaning}: {key!r}: expected ..{expected[key][around]!r}, found "
            f"..{found[key][around]!r}"
        )
    return lines
