"""What `topics` and `validate --connect` print of each fact."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from watchrelay.app.connect import BAD_CONFIG, OK, Fact, rights_in_kafka
from watchrelay.errors import SinkUnavailable


@pytest.mark.parametrize(
    ("what", "said", "line"),
    [
        ("topic a", "topic a is refused: x", "error: topic a is refused: x"),
        ("kafka", "kafka at b:1 is not usable", "error: kafka at b:1 is not usable"),
        ("kubernetes", "kubernetes: no way in", "error: kubernetes: no way in"),
        ("topic a", "does not exist yet", "error: topic a: does not exist yet"),
        ("topic a", "topic ab is refused", "error: topic a: topic ab is refused"),
    ],
)
def test_a_fact_names_what_it_is_about_once(what: str, said: str, line: str) -> None:
    assert str(Fact(what, said, "error", BAD_CONFIG)) == line


ALL = frozenset({"READ", "WRITE", "CREATE", "DESCRIBE_CONFIGS"})


class Told:
    """Brokers that tell of these rights."""

    def __init__(self, rights: dict[str, frozenset[str]]) -> None:
        self._rights = rights

    async def rights(self, names: Iterable[str]) -> dict[str, frozenset[str]]:
        return {name: self._rights[name] for name in names if name in self._rights}


async def test_each_right_that_is_lacking_is_one_line_and_fewer_rights_are_wanted_of_topics_that_are_there() -> None:
    there = {f"t{number}": ALL - {"WRITE", "CREATE"} for number in range(7)}
    facts = await rights_in_kafka(Told({**there, "new": ALL - {"CREATE", "DESCRIBE_CONFIGS"}}), [*there, "new"], ["new"])
    assert [str(fact) for fact in facts] == [
        "error: rights in kafka: this user has no right WRITE on t0, t1, t2, t3, t4 and 2 other topics: grant it on the topic prefix",
        "error: rights in kafka: this user has no right CREATE on new: grant it on the topic prefix",
        "warning: rights in kafka: this user has no right DESCRIBE_CONFIGS on new: grant it on the topic prefix",
    ]
    assert [fact.code for fact in facts] == [BAD_CONFIG, BAD_CONFIG, OK]


async def test_all_rights_are_one_line_and_of_brokers_that_tell_none_nothing_is_said() -> None:
    assert [str(fact) for fact in await rights_in_kafka(Told({"a": ALL, "b": ALL}), ["a", "b"], ["b"])] == [
        "ok: rights in kafka: this user may do on 2 topics what a relay does"
    ]
    assert await rights_in_kafka(Told({}), ["a"], []) == []


async def test_brokers_that_went_meanwhile_are_a_fact_too() -> None:
    class Gone:
        async def rights(self, names: Iterable[str]) -> dict[str, frozenset[str]]:
            raise SinkUnavailable(f"kafka at b:1 is not usable: no answer about {len(list(names))}")

    (fact,) = await rights_in_kafka(Gone(), ["a"], [])
    assert (str(fact), fact.code) == ("error: kafka at b:1 is not usable: no answer about 1", 69)
