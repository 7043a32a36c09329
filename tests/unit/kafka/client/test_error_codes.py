"""The whole table of error codes: for an operator each has a cure, unless it ends by itself, is
handled where it comes, or answers no request of ours."""

import pytest
from aiokafka.errors import UnknownError

from watchrelay.core.errors import SinkForbidden, SinkMisconfigured, SinkUnavailable
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.error_codes import CURES, cure_of, error_of
from watchrelay.kafka.client.failures import unreachable, unreadable
from watchrelay.kafka.errors import explain
from watchrelay.kafka.partition import Place

NEWEST = 133
"""Of Kafka 4.1."""
ENDING = {
    0: "none",
    8: "a broker is away",
    **dict.fromkeys((13, 41), "asked again"),
    **dict.fromkeys((22, 25, 27, 79, 82), "of members, who join again"),
    **dict.fromkeys((45, 46, 47, 48, 49, 51, 52, 59, 90, 120), "of producers, with another id"),
    **dict.fromkeys((60, 70, 71, 74, 75, 78, 88, 100), "of metadata, which is asked for again"),
}
HANDLED = {
    1: "the offset is looked for: aiokafka, and Reading",
    **dict.fromkeys((10, 18), "the batch is halved: Producer"),
    **dict.fromkeys((14, 15, 16), "named with its topic: group and transactions"),
    36: "another was first: Topics",
    **dict.fromkeys((37, 38, 39, 40), "shown with the words of the brokers and a command: Topics"),
    55: "for another partition of the request: Transactions",
    69: "a group without members: check_group",
}
OF_OTHERS = {
    **dict.fromkeys((4, 11, 12, 21, 28, 54, 57, 68, 73, 77), "of other requests, or of brokers"),
    **dict.fromkeys((61, 62, 63, 64, 65, 66, 67), "of delegation tokens"),
    **dict.fromkeys((80, 83, 84, 85, 86, 91, 92, 93), "of tools"),
    **dict.fromkeys((94, 95, 96, 97, 98, 99, 101, 102, 103, 104), "of brokers"),
    **dict.fromkeys((105, 106, 107, 108, 109), "of newer requests than aiokafka has, or brokers"),
    **dict.fromkeys(range(110, 120), "of the newer groups, controllers and telemetry"),
    **dict.fromkeys(range(121, 134), "of share groups, voters and streams groups"),
}
PLACE = Place("k8s.c.pods", 3)


def test_every_code_has_a_cure_or_a_reason_to_have_none() -> None:
    tables = [set(CURES), set(ENDING), set(HANDLED), set(OF_OTHERS)]
    assert sorted(code for table in tables for code in table) == list(range(-1, NEWEST + 1))


@pytest.mark.parametrize("code", CURES)
def test_what_a_broker_refuses_is_shown_with_place_and_cure(code: int) -> None:
    connection, error = KafkaConnection(bootstrap_servers=("k:9092",)), error_of(code)
    trouble = explain(error, PLACE)
    assert trouble.message.startswith("topic k8s.c.pods partition 3: ")
    assert trouble.message.endswith(CURES[code]) or "grant WRITE on the topic" in trouble.message
    found = unreachable(connection, error)
    assert str(found).startswith("kafka at k:9092 is not usable: ")
    assert found.cure == CURES[code]
    assert code in (29, 58) or CURES[code] in unreadable(error)


@pytest.mark.parametrize("code", [*ENDING, *OF_OTHERS])
def test_a_code_that_no_request_of_ours_gets_is_named_all_the_same(code: int) -> None:
    error = error_of(code)
    assert error.errno == code
    assert type(error) is not UnknownError or f"error code {code}" in str(error)
    assert cure_of(error) == ""


def test_what_helps_decides_about_the_kind() -> None:
    connection = KafkaConnection(bootstrap_servers=("k:9092",))
    kinds = {code: type(unreachable(connection, error_of(code))) for code in CURES}
    assert {code for code, kind in kinds.items() if kind is SinkForbidden} == {29, 30, 31, 53}
    assert {code for code, kind in kinds.items() if kind is SinkMisconfigured} == {33, 34, 58}
    assert set(kinds.values()) == {SinkForbidden, SinkMisconfigured, SinkUnavailable}


def test_an_error_of_this_machine_has_no_code_of_kafka() -> None:
    assert cure_of(OSError(5, "Input/output error")) == ""
