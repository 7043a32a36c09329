"""Streams of a config that take the same objects: found as by comparing each with each, without doing so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchrelay.config.advice import warnings
from watchrelay.config.loading import load_settings
from watchrelay.config.overlaps import Overlaps, overlap
from watchrelay.config.settings import ResourceEntry, Settings
from watchrelay.config.streams import Planned, plan
from watchrelay.errors import ConfigError

SPACES = st.lists(st.sampled_from("abc"), max_size=2, unique=True)


def config(entries: list[dict[str, Any]]) -> Settings:
    return Settings.model_construct(
        cluster="c", kafka=Settings.model_fields["kafka"].annotation.model_construct(bootstrap_servers=["a:1"]),  # type: ignore[union-attr]
        resources=[ResourceEntry(resource="pods", **entry) for entry in entries],
    )  # fmt: skip


def entries() -> st.SearchStrategy[list[dict[str, Any]]]:
    narrow = st.fixed_dictionaries({"namespaces": SPACES, "scope": st.sampled_from(["namespace", "cluster"])})
    wide = st.fixed_dictionaries({"excludeNamespaces": SPACES})
    named = st.fixed_dictionaries({"namespaces": st.lists(st.sampled_from("abc"), max_size=1), "name": st.sampled_from("xy")})
    one = st.one_of(narrow, wide, named)
    return st.lists(one, min_size=1, max_size=8).map(lambda made: [{**entry, "id": f"s{number}"} for number, entry in enumerate(made)])


@settings(deadline=None)
@given(entries())
def test_the_first_earlier_stream_with_some_of_the_same_objects_is_found(made: list[dict[str, Any]]) -> None:
    planned = plan(config(made))
    overlaps = Overlaps(planned, lambda each: each.topic)

    def expected(stream: Planned) -> int | None:
        return next((other.index for other in planned if other.index < stream.index and overlap(stream, other)), None)

    for stream in planned:
        found = overlaps.earlier(stream)
        assert (found.index if found else None) == expected(stream)


@pytest.mark.timeout(60)
@pytest.mark.no_cover  # the limit is for the code, which the tracer makes twice as slow
@pytest.mark.parametrize("entry", ["{{resource: pods, id: s{0}, namespaces: [n{0}], topic: one}}", "{{resource: pods}}"])
def test_five_thousand_entries_are_checked_in_seconds(tmp_path: Any, entry: str) -> None:
    file = tmp_path / "w.yaml"
    lines = "".join(f"  - {entry.format(number)}\n" for number in range(5000))
    file.write_text(f"cluster: c\nkafka: {{bootstrapServers: [k:9092]}}\nresources:\n{lines}")
    if "id:" in entry:
        assert not [path for path, _, _ in warnings(load_settings(str(file), environ={})) if path[0] == "resources"]
    else:
        with pytest.raises(ConfigError):
            load_settings(str(file), environ={})
