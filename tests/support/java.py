"""The reader in Java as its users run it: one source file, Kafka's jars, no build.

Room: test support.  In: arguments of `examples/java/Reader.java`.  Out: exit code and output.
"""

import subprocess
from pathlib import Path

from tests.support.daemon import Outcome
from tests.support.parts import kafka_jars

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "java" / "Reader.java"


def java_command(*arguments: str | Path, version: str = "4.1") -> list[str]:
    """How to run it, on the jars of that Kafka."""
    argv = [
        "java",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Xmx512m",
        "-cp",
        f"{kafka_jars(version)}/*",
        str(SOURCE),
    ]
    return [*argv, *map(str, arguments)]


def java_reader(*arguments: str | Path, version: str = "4.1") -> Outcome:
    """Runs it to its end, on the jars of that Kafka."""
    done = subprocess.run(
        java_command(*arguments, version=version),
        capture_output=True,
        text=True,
        timeout=100.0,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
