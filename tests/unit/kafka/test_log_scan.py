"""Whose epoch the headers of a record carry."""

import pytest

from watchrelay.kafka.log_scan import epoch_of, other_cluster


@pytest.mark.parametrize(
    ("headers", "epoch"),
    [
        ((("ce_wrstream", b"pods"), ("ce_wrepoch", b"12")), 12),
        ((("ce_wrepoch", b"12"), ("ce_wrstream", b"pods")), 12),
        ((("ce_wrstream", b"nodes"), ("ce_wrepoch", b"12")), 0),
        ((("ce_wrepoch", b"12"),), 0),
        ((("ce_wrstream", b"pods"), ("ce_wrepoch", b"x")), 0),
        ((("ce_wrstream", b"pods"), ("ce_wrepoch", None)), 0),
        ((("ce_wrstream", None), ("ce_wrepoch", b"12")), 0),
        ((), 0),
    ],
)
def test_only_records_of_the_stream_count(
    headers: tuple[tuple[str, bytes | None], ...], epoch: int
) -> None:
    assert epoch_of(headers, "pods") == epoch


@pytest.mark.parametrize(
    ("headers", "other"),
    [
        ((("ce_source", b"/clusters/prod/api/v1/pods"), ("ce_wrstream", b"pods")), ""),
        ((("ce_source", b"/clusters/prod-2/api/v1/pods"), ("ce_wrstream", b"pods")), "prod-2"),
        (
            (
                ("ce_source", b"/clusters/test/apis/apps/v1/deployments"),
                ("ce_wrstream", b"deployments.apps"),
            ),
            "test",
        ),
        ((("ce_source", b"/clusters/test/api/v1/pods"),), ""),
        ((("ce_source", b"//elsewhere/orders"), ("ce_wrstream", b"pods")), ""),
        ((), ""),
    ],
)
def test_another_cluster_is_recognized_by_the_source_of_records_of_the_contract(
    headers: tuple[tuple[str, bytes], ...], other: str
) -> None:
    assert other_cluster(headers, "prod") == other
