"""What `watchrelay snapshot` waits for."""

from watchrelay.admin.snapshot_request import covers


def test_a_request_is_complete_once_snapshots_of_either_layout_have_covered_every_partition() -> (
    None
):
    first, second, whole = (
        {"partitions": [{"partition": each} for each in some]} for some in ((0, 1), (2,), (0, 1, 2))
    )
    described = {"partitions": 3}
    assert covers([whole], described)
    assert covers([first, second], described)
    assert not covers([first], described)
    assert not covers([], described)
    assert not covers([{}], described)
    assert not covers([whole], None)
