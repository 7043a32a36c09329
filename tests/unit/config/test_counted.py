"""`ignoreChanges` and `publishWhen` in the config: what is refused, and what of `defaults` holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.problems import problems
from watchrelay.cli.summary import print_summary
from watchrelay.config import load, load_settings
from watchrelay.config.streams import what_counts

GOOD = "cluster: c\nkafka: {bootstrapServers: [k:9092]}\nresources:\n- resource: nodes\n"
"""Four lines; what a case adds to them begins on line 5."""

REFUSED = {
    "  ignoreChanges: [spec..x]": "5: resources[0].ignoreChanges[0]: 'spec..x': a key is missing at character 6",
    "  publishWhen: ['spec[0]']": (
        "5: resources[0].publishWhen[0]: 'spec[0]': only [*] and [\"quoted key\"] are allowed in brackets (at character 5)"
    ),
    **{
        f"  ignoreChanges: [{path}]": (
            f"5: resources[0].ignoreChanges[0]: '{path}': uid and deletionTimestamp always count; name other keys of metadata"
        )
        for path in ("metadata", "metadata.uid", "metadata.deletionTimestamp")
    },
    "  publishWhen: [metadata.generation]": (
        "5: resources[0].publishWhen[0]: 'metadata.generation': never counts by itself; name the fields whose changes are to be published, such as spec"
    ),
    "  ignoreChanges: [status.x]\n  drop: ['status.*']": (
        "5: resources[0].ignoreChanges: status.x is within status.* of drop: what is dropped never counts (leave the path out)"
    ),
    "  publishWhen: ['spec.a[*].b']\n  drop: [spec.a]": (
        "5: resources[0].publishWhen: spec.a[*].b is within spec.a of drop: what is dropped never counts (leave the path out)"
    ),
    "  metadataOnly: true\n  publishWhen: [spec]": (
        "6: resources[0].publishWhen: spec is outside metadata, and metadataOnly gets nothing else (leave the path out)"
    ),
    "  ignoreChanges: [status]\n  publishWhen: []": (
        "6: resources[0].publishWhen: cannot be combined with ignoreChanges (keep one of the two)"
    ),
    "  suppressUnchanged: false\n  publishWhen: []": (
        "5: resources[0].suppressUnchanged: false cannot be combined with publishWhen, which leaves changes out (keep one of the two)"
    ),
    "  suppressUnchanged: false\n  ignoreChanges: [status]": (
        "5: resources[0].suppressUnchanged: false cannot be combined with ignoreChanges, which leaves changes out (keep one of the two)"
    ),
}
ACCEPTED = (
    "  ignoreChanges: [status.anything.unknown, metadata.annotations, 'metadata.*', '*.x']",
    "  publishWhen: [metadata, kind, 'spec[\"a.b/c\"][*].x', status]",
    "  ignoreChanges: [status]\n  drop: [status.conditions]",
    "  ignoreChanges: ['status.*']\n  drop: [status.x]",
    "  metadataOnly: true\n  ignoreChanges: [metadata.labels, '*.x']",
    "  ignoreChanges: []\n  suppressUnchanged: false",
    "  ignoreChanges: []\n  publishWhen: [spec]",
    "  redact: [spec]\n  publishWhen: [spec]",
)


@pytest.mark.parametrize("entry", REFUSED)
def test_what_cannot_be_meant_is_refused_with_its_line_and_why(tmp_path: Path, entry: str) -> None:
    found = problems(tmp_path, GOOD + entry)
    assert found == [f"w.yaml:{REFUSED[entry]}"]


@pytest.mark.parametrize("entry", ACCEPTED)
def test_field_names_are_never_refused(tmp_path: Path, entry: str) -> None:
    """Those of a CRD are not known here."""
    file = tmp_path / "w.yaml"
    file.write_text(GOOD + entry)
    assert load_settings(str(file), environ={}).resources[0].resource == "nodes"


@pytest.mark.parametrize(
    ("entry", "ignored", "published"),
    [
        ("", ("status",), None),
        ("  ignoreChanges: [spec]", ("spec",), None),
        ("  ignoreChanges: []", (), None),
        ("  publishWhen: [spec]", (), ("spec",)),
        ("  publishWhen: []", (), ()),
    ],
)
def test_an_entry_that_has_one_of_both_keys_takes_neither_default(
    tmp_path: Path, entry: str, ignored: tuple[str, ...], published: tuple[str, ...] | None
) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(f"defaults: {{ignoreChanges: [status]}}\n{GOOD}{entry}")
    found = load_settings(str(file), environ={}).resources[0]
    assert (found.ignore_changes, found.publish_when) == (ignored, published)


def test_the_line_is_that_of_the_default_where_that_is_wrong(tmp_path: Path) -> None:
    text = "defaults:\n  metadataOnly: true\n  publishWhen: [spec]\n" + GOOD
    assert problems(tmp_path, text) == [
        "w.yaml:3: defaults.publishWhen: spec is outside metadata, and metadataOnly gets nothing else (leave the path out)"
    ]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("", ""),
        ("  ignoreChanges: [status, a.b]", "all but status, a.b"),
        ("  publishWhen: [spec, metadata.labels]", "spec, metadata.labels"),
        ("  publishWhen: []", "none, only adds and deletes"),
    ],
)
def test_validate_says_which_changes_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], entry: str, words: str
) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(GOOD + entry)
    loaded = load(str(file), environ={})
    assert what_counts(loaded.settings.resources[0]) == words
    print_summary(loaded)
    printed = capsys.readouterr().out
    assert (f"changes that count: {words};" in printed) if words else ("count" not in printed)
