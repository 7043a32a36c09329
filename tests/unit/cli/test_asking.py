"""`snapshot` and `retire` on a terminal: what is shown while one waits, and what counts as a
yes."""

from __future__ import annotations

import io
import json
import sys

import pytest

from watchrelay.admin.retire import RetirementPlan
from watchrelay.admin.snapshot_request import SnapshotAnswer
from watchrelay.cli.retire import confirmed
from watchrelay.cli.snapshot import Progress, answer_json, answer_text


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_one_line_says_how_many_are_complete_and_goes_away() -> None:
    out = Terminal()
    progress = Progress(out)
    progress.requested("id", ["pods", "nodes"])
    assert out.getvalue().endswith("waiting for snapshots: 0 of 2 complete")
    progress.clear()
    progress.completed()
    assert out.getvalue().endswith("waiting for snapshots: 1 of 2 complete")
    progress.clear()
    progress.completed()
    assert out.getvalue().endswith("\r\x1b[K")


def test_elsewhere_nothing_is_shown() -> None:
    out = io.StringIO()
    progress = Progress(out)
    progress.requested("id", ["pods"])
    progress.completed()
    progress.clear()
    assert out.getvalue() == ""


def test_a_snapshot_is_one_line_whatever_its_index_record_lacks() -> None:
    index: dict[str, object] = {
        "snapshot": "3-1",
        "count": 1,
        "rv": "9",
        "partitions": [{"partition": 0, "begin": 7}],
    }
    assert (
        answer_text(SnapshotAnswer("pods", index))
        == "pods: snapshot 3-1: 1 object at resourceVersion 9, begins at 0@7"
    )
    assert answer_text(SnapshotAnswer("pods", {})).startswith("pods: snapshot None")


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
    told = {
        "snapshot": "3-1",
        "epoch": 3,
        "resourceVersion": "9",
        "time": "t",
        "count": 1,
        "partitions": partitions,
    }
    assert json.loads(answer_json(SnapshotAnswer("pods", index))) == {"stream": "pods", **told}
    assert json.loads(answer_json(SnapshotAnswer("pods", {}))) == {
        "stream": "pods",
        **dict.fromkeys(told),
    }
    assert answer_json(SnapshotAnswer("pods", {"rv": "\u202e\x9b"})).isprintable()


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
