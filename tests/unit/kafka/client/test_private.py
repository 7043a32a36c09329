"""The private members of aiokafka that we use are those on the list, and are as they were."""

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer.fetcher import Fetcher, FetchResult, PartitionRecords

import watchrelay.kafka.client as package
from watchrelay.kafka.client import PRIVATE

NAMES = {member.partition(".")[2] for member in PRIVATE}


def used(tree: ast.AST) -> Iterator[str]:
    """Private members of anything but the object itself, also by their names as strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        ):
            yield node.attr
        elif isinstance(node, ast.Call):
            yield from (
                each.value
                for each in node.args
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            )


def inherited(module: Any) -> Iterator[str]:
    """Private members of classes of aiokafka that subclasses of them in a module use or replace."""
    for _, ours in inspect.getmembers(module, inspect.isclass):
        if ours.__module__ != module.__name__:
            continue
        for base in ours.__mro__:
            if base.__module__.startswith("aiokafka."):
                common = _own_private(ours) & _own_private(base)
                yield from (f"{base.__name__}.{name}" for name in common)


def _own_private(kind: type) -> set[str]:
    methods = [each for each in vars(kind).values() if inspect.isfunction(each)]
    names = {name for each in methods for name in (each.__name__, *each.__code__.co_names)}
    return {name for name in names if name[0] == "_" != name[1:2]}


def test_no_other_is_used_and_none_is_listed_in_vain() -> None:
    files = [*Path(package.__file__).parent.glob("*.py")]
    names = {name for file in files for name in used(ast.parse(file.read_text()))}
    private = {name for name in names if name.isidentifier() and name[0] == "_" != name[1:2]}
    modules = (import_module(f"{package.__name__}.{file.stem}") for file in files)
    of_bases = {member for module in modules for member in inherited(module)}
    assert of_bases <= PRIVATE.keys()
    assert private | {member.partition(".")[2] for member in of_bases} == NAMES
    assert len(PRIVATE) <= 18


async def test_they_are_there_in_this_aiokafka() -> None:
    consumer, client = AIOKafkaConsumer(), AIOKafkaClient()
    admin = AIOKafkaAdminClient()
    records = PartitionRecords(None, None, [], 0, None, None, False, 0)
    fetched = FetchResult(None, assignment=None, partition_records=records, backoff=0)
    kinds = [consumer, client, AIOKafkaConnection("127.0.0.1", 1), Fetcher, records, fetched]
    for member in PRIVATE:
        kind, _, name = member.partition(".")
        (owner,) = (
            each for each in kinds if kind in (type(each).__name__, getattr(each, "__name__", ""))
        )
        assert hasattr(owner, name), member
    assert isinstance(admin._client, AIOKafkaClient)
    assert isinstance(consumer._client, AIOKafkaClient)
    assert hasattr(consumer._subscription, "subscription")
    assert client._conns == {}
    consumer._closed = True  # it was never started


@pytest.mark.parametrize(
    ("method", "parameters", "replaced"),
    [
        (AIOKafkaClient._metadata_update, ["cluster_metadata", "topics"], "MetadataRequest"),
        (AIOKafkaClient._get_conn, ["node_id", "group", "no_hint"], "create_conn"),
        (AIOKafkaConsumer.start, [], "Fetcher"),
        (AIOKafkaClient.bootstrap, [], "create_conn"),
        (Fetcher._proc_fetch_request, ["assignment", "node_id", "request"], "MemoryRecords"),
    ],
)
def test_methods_take_what_they_took_and_use_what_is_replaced(
    method: Any, parameters: list[str], replaced: str
) -> None:
    assert inspect.iscoroutinefunction(method)
    assert list(inspect.signature(method).parameters)[1:] == parameters
    assert not replaced or replaced in method.__code__.co_names


def test_a_connection_is_opened_by_the_loop_that_it_found_when_it_was_made() -> None:
    assert "get_running_loop" in AIOKafkaConnection.__init__.__code__.co_names
    assert "create_connection" in AIOKafkaConnection.connect.__code__.co_names
