"""Readers that saw records twice, and what their relays report: what is excused and what is
shown."""

import pytest

from tests.support.topicreader import TopicReader


class Writer:
    """A relay as its reader knows it."""

    def __init__(self, **rebuilds: int) -> None:
        self._rebuilds = rebuilds

    def rebuilds(self) -> dict[str, int]:
        return self._rebuilds

    def explained(self) -> str:
        return f"rebuilds {self._rebuilds}, last warnings: kafka does not take records"


def reader_of(*writers: Writer, duplicates: int = 0, stale: int = 0) -> TopicReader:
    reader = TopicReader("127.0.0.1:1", writers=writers)
    reader.duplicates, reader.stale = duplicates, stale
    return reader


def test_a_duplicate_that_no_relay_resent_fails_and_its_log_is_shown() -> None:
    with reader_of(Writer(), Writer(), duplicates=5) as reader:
        with pytest.raises(
            AssertionError,
            match=r"duplicates 5, stale 0, and no writer resent anything\n.*kafka does not take "
            r"records",
        ):
            reader.assert_right()
        reader.assert_right(duplicates=True)


def test_a_duplicate_that_a_relay_counts_as_resent_is_excused_and_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with reader_of(Writer(), Writer(error=1), duplicates=5) as reader:
        reader.assert_right()
    assert "duplicates 5, stale 0: resent" in capsys.readouterr().out


def test_a_former_writers_record_is_not_excused_by_a_rebuild() -> None:
    with (
        reader_of(Writer(error=1), stale=1) as reader,
        pytest.raises(AssertionError, match="stale 1"),
    ):
        reader.assert_right()
