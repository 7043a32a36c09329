"""The tree's own tools/build.sh: where the programs that it built are."""

import functools
import re
import subprocess
from pathlib import Path

_BUILD = Path(__file__).resolve().parents[2] / "tools" / "build.sh"


@functools.cache
def parts_directory() -> Path:
    """The directory of this tree's real parts, built or not; a change of versions changes its
    name."""
    answer = subprocess.run([str(_BUILD), "--path"], check=True, capture_output=True, text=True)
    return Path(answer.stdout.strip())


def program(name: str) -> Path:
    """The built program of that name: kube-apiserver, kube-controller-manager, kubectl or etcd."""
    return parts_directory() / "bin" / name


def kafka_jars(version: str) -> Path:
    """The directory of Kafka's jars for "3.9" or "4.1"."""
    return parts_directory() / f"kafka{version.replace('.', '')}"


@functools.cache
def class_archive(version: str) -> Path:
    """Where the classes that a broker of "3.9" or "4.1" loads are kept as this very Java has
    parsed them, or shall be."""
    answer = subprocess.run(["java", "-version"], check=False, capture_output=True, text=True)
    build = re.search(r"\(build ([^\s,)]+)", answer.stderr)
    return parts_directory() / f"kafka-{version}-java-{build[1] if build else 'unknown'}.jsa"


def is_usable(archive: Path, version: str) -> bool:
    """Whether Java takes the archive for that Kafka and its checksums are right: a truncated one
    would end a broker with SIGBUS."""
    trial = ["-XX:+UseSerialGC", "-Xshare:on", "-XX:+VerifySharedSpaces", "-XX:ErrorFile=/dev/null"]
    classpath = f"{kafka_jars(version)}/*"
    argv = ["java", *trial, f"-XX:SharedArchiveFile={archive}", "-cp", classpath, "-version"]
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0


@functools.cache
def class_sharing(version: str) -> tuple[str, ...]:
    """The flags by which a JVM loads that Kafka's classes from their archive, which saves a second
    per start; none if there is no usable one, or no Java."""
    try:
        archive = class_archive(version)
    except OSError:
        return ()
    usable = archive.exists() and is_usable(archive, version)
    return (f"-XX:SharedArchiveFile={archive}",) if usable else ()
