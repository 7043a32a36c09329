"""stderr whose descriptor another process has made non-blocking, as a supervisor in Node.js does,
and lines that are dropped."""

import os
import sys
import threading

from watchrelay.observe.stderr import DroppingStream


def test_a_non_blocking_descriptor_loses_no_line() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as writer:
        stream = DroppingStream(writer)
        lines = [f"{number} {'x' * 1000}\n" for number in range(400)]
        for line in lines:  # six times what the pipe takes
            stream.write(line)
        assert [reader.readline().decode() for _ in lines] == lines
        stream.flush()
        assert stream.dropped == 0


def test_each_dropped_line_is_counted_once_also_while_lines_are_dropped() -> None:
    reading, writing = os.pipe()
    usual_s = sys.getswitchinterval()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "w") as writer:
        stream = DroppingStream(writer)
        counts: list[list[int]] = []
        done = threading.Event()

        def drop_lines() -> None:
            while not done.is_set():
                stream.write("dropped\n")

        stream.write("x" * (1 << 20) + "\n")  # the pipe takes a part of it
        dropping = threading.Thread(target=drop_lines)
        sys.setswitchinterval(1e-5)
        try:
            dropping.start()
            while stream.dropped < 5_000:
                counts.append([])
                stream.count_drops(counts[-1].append)
        finally:
            done.set()
            dropping.join()
            sys.setswitchinterval(usual_s)
        ends = [sum(each) for each in counts]
        assert ends[:-1] == [each[0] for each in counts[1:]]
        assert ends[-1] == stream.dropped
