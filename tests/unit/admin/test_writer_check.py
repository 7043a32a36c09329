"""What the newest record of a stream tells of whoever writes it, and what an outclaimed relay
says."""

from __future__ import annotations

import pytest

from watchrelay.admin.writer_check import sign_means
from watchrelay.daemon.ownership import ownership_lost, retirement_holder
from watchrelay.kafka.writer_probe import ProbedRecord

NOW_MS = 1_767_323_045_000


@pytest.mark.parametrize(
    ("age_s", "claim", "interval_s", "means"),
    [
        (1, False, 10.0, "maybe"),
        (299, False, 10.0, "maybe"),  # as much as two clocks may differ
        (301, False, 10.0, "nobody"),
        (301, False, 600.0, "maybe"),
        (-120, False, 10.0, "maybe"),  # the writer's clock is ahead of ours
        (1, True, 10.0, "claimed"),
        (599, True, 10.0, "claimed"),
        (601, True, 10.0, "nobody"),
        (-299, True, 10.0, "claimed"),
        (-301, True, 10.0, "maybe"),  # a claim of the future tells nothing: look whether more comes
        (-86_400 * 3650, False, 10.0, "maybe"),
    ],
)
def test_what_is_recent_may_be_of_one_who_lives(
    age_s: int, claim: bool, interval_s: float, means: str
) -> None:
    assert (
        sign_means(ProbedRecord(7, NOW_MS - age_s * 1000, claim), NOW_MS, interval_s, cut=True)
        == means
    )


def test_a_topic_without_the_stream_has_no_writer() -> None:
    assert sign_means(None, NOW_MS, 10.0, cut=False) == "nobody"


def test_behind_a_busy_neighbour_a_writer_may_be_out_of_sight() -> None:
    assert sign_means(None, NOW_MS, 10.0, cut=True) == "maybe"


def test_a_relay_says_who_took_its_stream() -> None:
    assert (
        ownership_lost("b-2", "pods", "a-1")
        == "stream pods: relay b-2 claimed it: two relays have it in their configs"
    )
    assert (
        ownership_lost("a-1", "pods", "a-1")
        == ownership_lost(None, "pods", "a-1")
        == "stream pods: a newer relay claimed it"
    )
    assert ownership_lost(retirement_holder(), "pods", "a-1").startswith(
        f"stream pods was retired while this relay wrote it, by `{retirement_holder()}`"
    )
