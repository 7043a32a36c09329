"""What others write is read up to a bound, and never waited for without end."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from watchrelay.core.files import mark_of, read_bounded

_SOON_S = 0.05


def test_a_file_is_read_up_to_the_bound_however_endless_it_is(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x" * 300_000)
    assert read_bounded(file, 1 << 20) == b"x" * 300_000
    assert read_bounded(file, 5) == b"xxxxx"
    assert read_bounded("/dev/zero", 200_000) == bytes(200_000)


@pytest.mark.parametrize(
    ("path", "kind"), [("/", IsADirectoryError), ("/absent", FileNotFoundError)]
)
def test_what_is_no_file_says_so_and_leaves_nothing_open(path: str, kind: type[OSError]) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(kind):
        read_bounded(path, 5)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_pipe_that_nobody_writes_to_is_given_up(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(TimeoutError, match="it is a pipe without a writer"):
        read_bounded(pipe, 5, writer_s=_SOON_S)


def test_a_pipe_whose_writer_falls_silent_is_given_up(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    try:
        os.write(writer, b"half of ")
        with pytest.raises(
            TimeoutError, match=r"it is a pipe whose writer has sent nothing for 0\.05 s"
        ):
            read_bounded(pipe, 100, silence_s=_SOON_S)
    finally:
        os.close(writer)


def test_a_pipe_is_read_to_its_end_also_when_its_writer_comes_late_or_says_nothing(
    tmp_path: Path,
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for content in (b"x" * 200_000, b""):
        writer = threading.Thread(target=pipe.write_bytes, args=(content,))
        writer.start()
        assert read_bounded(pipe, 1 << 20) == content
        writer.join()


def test_a_pipe_without_a_name_is_read_to_its_end_and_an_empty_one_is_not_waited_for() -> None:
    for content in (b"text", b""):
        reading, writing = os.pipe()
        os.write(writing, content)
        os.close(writing)
        assert read_bounded(f"/dev/fd/{reading}", 100, writer_s=60.0) == content
        os.close(reading)


def test_a_pipe_is_not_changed_by_what_is_written_to_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    os.utime(pipe, (0, 0))
    before = mark_of(pipe)
    end = os.open(pipe, os.O_RDWR)
    os.write(end, b"x")
    os.close(end)
    assert mark_of(pipe) == before
