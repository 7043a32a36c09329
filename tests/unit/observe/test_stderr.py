"""stderr whose descriptor another process has made non-blocking, as a supervisor in Node.js does."""

import os

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
