"""The test vectors: the files are what the generator writes, and the Python reader passes
each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.vectors import judge
from tests.vectors import generate

FILES = sorted(generate.DIRECTORY.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_python_reader_says_what_the_vector_expects(path: Path) -> None:
    vector: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert judge(vector) == vector["expect"]


def test_the_files_are_those_that_the_generator_writes() -> None:
    texts = {f"{vector.name}.json": generate.render(vector) for vector in generate.vectors()}
    assert sorted(texts) == [path.name for path in FILES], "run: python -m tests.vectors.generate"
    for path in FILES:
        assert path.read_text(encoding="utf-8") == texts[path.name], (
            f"{path.name} has drifted: run python -m tests.vectors.generate"
        )


UNPROVEN = {"bootstrap-without-heartbeat", "held-as-written"}
"""Vectors that end before a marker agrees: there is none yet, or another writer's records stand."""


def test_every_reader_that_lost_nothing_ends_proven_and_every_loss_is_noticed() -> None:
    for path in FILES:
        vector = json.loads(path.read_text(encoding="utf-8"))
        assert (
            all(state["proven"] for state in vector["expect"]["state"])
            or vector["name"] in UNPROVEN
        ), path.stem
        lost = any(partition["lost"] for partition in vector["partitions"])
        verdicts_seen = {
            verdict.split()[0]
            for verdicts in vector["expect"]["verdicts"]
            for _, _, verdict, _ in verdicts
        }
        assert not lost or "read" in verdicts_seen, path.stem


def test_the_vectors_between_them_give_every_verdict() -> None:
    verdicts_seen = {
        " ".join(word for word in verdict.split() if not word.isdigit())
        for path in FILES
        for verdicts in json.loads(path.read_text(encoding="utf-8"))["expect"]["verdicts"]
        for _, _, verdict, _ in verdicts
    }
    words = {
        "refused",
        "passed",
        "duplicate",
        "former",
        "changed",
        "noted",
        "swept",
        "unproven",
        "replaced, changes",
    }
    assert verdicts_seen == words | {"read again from", "read again from the start"}
