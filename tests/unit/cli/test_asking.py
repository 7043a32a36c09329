"""What `snapshot` prints, and what counts as a yes for `retire`."""

from __future__ import annotations

import io
import sys

import pytest

from watchrelay.admin.retire import RetirementPlan
from watchrelay.cli.retire import confirmed
from watchrelay.cli.snapshot import answer_json, answer_text


def test_a_snapshot_is_one_line_whatever_its_index_record_lacks() -> None:
    index: dict[str, object] = {
        "snapshot": "3-1",
        "count": 1,
        "rv": "9",
        "partitions": [{"partition": 0, "begin": 7}],
    }
    assert (
        answer_text("pods", index)
        == "pods: snapshot 3-1: 1 object at resourceVersion 9, begins at 0@7"
    )
    assert answer_text("pods", {}).startswith("pods: snapshot None")


def test_a_snapshot_as_json_is_one_object_whatever_its_index_record_lacks_or_holds() -> None:
    partitions = [{"partition": 0, "begin": 7, "end": 9, "count": 1, "digest": "00"}]
    index: dict[str, object] = {
        "snapshot": "3-1",
        "epoch": 3,
        "rv": "9",
        "time": "t",
        "count": 1,
        "requests": ["x"],
        "partitions": partitions,
    }
    fields = {
        "snapshot": "3-1",
        "epoch": 3,
        "resourceVersion": "9",
        "time": "t",
        "count": 1,
        "partitions": partitions,
    }
    assert answer_json("pods", index) == {"stream": "pods", **fields}
    assert answer_json("pods", {}) == {
        "stream": "pods",
        **dict.fromkeys(fields),
    }


@pytest.mark.parametrize(
    ("answer", "yes"),
    [("y\n", True), ("Yes\n", True), ("\n", False), ("", False), ("no\n", False), ("yep\n", False)],
)
def test_only_a_yes_is_a_yes(
    answer: str, yes: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    assert confirmed(RetirementPlan("pods", "k8s.c.core.pods", 12, topic_exists=True)) is yes
    out, err = capsys.readouterr()
    assert out == ""
    assert "12 at the last snapshot" in err
    assert "topic k8s.c.core.pods" in err


def test_the_question_names_a_topic_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert confirmed(RetirementPlan("pods", "t", None, topic_exists=False))
    assert "Topic t is gone" in capsys.readouterr().err
