"""Paths of the config into objects."""

import pytest

from watchrelay.model.paths import (
    NEVER_COUNT,
    Wild,
    covers,
    format_path,
    parse_counted,
    parse_ignored,
    parse_path,
    path_of,
)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("status", ("status",)),
        ("status.conditions", ("status", "conditions")),
        ("data.*", ("data", Wild.KEY)),
        (
            "spec.containers[*].env[*].value",
            ("spec", "containers", Wild.ITEM, "env", Wild.ITEM, "value"),
        ),
        ('metadata.annotations["example.com/x"]', ("metadata", "annotations", "example.com/x")),
        ('metadata.annotations["*"].y', ("metadata", "annotations", "*", "y")),
        (r'data["say \"hi\" \\ bye"]', ("data", 'say "hi" \\ bye')),
        ("*.a-b_c/d", (Wild.KEY, "a-b_c/d")),
        ("spec.matrix[*][*]", ("spec", "matrix", Wild.ITEM, Wild.ITEM)),
    ],
)
def test_a_path_is_read_step_by_step_and_written_back(
    text: str, path: tuple[str | Wild, ...]
) -> None:
    assert parse_path(text) == path
    assert parse_path(format_path(path)) == path


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the path is empty"),
        ("$.spec", "starts with a key"),
        ("/spec/x", "starts with a key"),
        (".spec", "a key is missing at character 1"),
        ("spec.", "a key is missing at character 6"),
        ("spec..x", "a key is missing at character 6"),
        ("spec.a*", "a dot or a bracket is missing at character 7"),
        ("spec[0]", "are allowed in brackets"),
        ('spec["x', "are allowed in brackets"),
        ("spec[*]env", "a dot or a bracket is missing at character 8"),
        ("[*].x", "not with [*]"),
        ("spec.a b", "a dot or a bracket is missing at character 7"),
        ("metadata", "always stay"),
        ("metadata.uid", "always stay"),
        ('metadata["resourceVersion"]', "always stay"),
        ("kind", "always stay"),
    ],
)
def test_what_is_no_path_is_refused_with_the_place(text: str, says: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_path(text)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["metadata", "metadata.uid", 'metadata["deletionTimestamp"]'])
def test_what_always_counts_cannot_be_ignored(text: str) -> None:
    with pytest.raises(ValueError, match="uid and deletionTimestamp always count"):
        parse_ignored(text)
    assert parse_counted(text) == path_of(text)
    assert parse_ignored("metadata.*") == ("metadata", Wild.KEY)


@pytest.mark.parametrize("path", NEVER_COUNT, ids=format_path)
def test_what_never_counts_cannot_be_counted(path: tuple[str | Wild, ...]) -> None:
    for text in (format_path(path), f"{format_path(path)}.x"):
        with pytest.raises(ValueError, match="never counts by itself"):
            parse_counted(text)
        assert parse_ignored(text) == path_of(text)


@pytest.mark.parametrize(
    ("path", "other", "covered"),
    [
        ("a.b", "a.b", True),
        ("a", "a.b", True),
        ("a.b", "a", False),
        ("a.*", "a.b.c", True),
        ("a.b", "a.*", False),
        ("a[*]", "a[*].b", True),
        ("a.*", "a[*]", False),
        ("a[*]", "a.b", False),
        ("*", "a", True),
    ],
)
def test_a_path_covers_what_is_at_or_within_it(path: str, other: str, *, covered: bool) -> None:
    assert covers(path_of(path), path_of(other)) is covered
