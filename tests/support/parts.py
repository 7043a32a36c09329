"""The tree's own tools/build.sh: where the programs that it built are."""

import functools
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
