"""Room: test support.  In: a path and texts.  Out: a file in a volume as the kubelet mounts it, and its swap for another generation."""

import itertools
import shutil
from pathlib import Path


class Mount:
    """The path leads through a link to a directory of the newest generation, which is replaced as a whole.

    Source: k8s.io/kubernetes/pkg/volume/util/atomic_writer.go: `..data` is renamed over, then the former directory is removed.
    """

    def __init__(self, file: Path, text: str) -> None:
        self.file = file
        self._generations = itertools.count()
        self._directory: Path | None = None
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        self.swap(text)
        file.symlink_to(Path("..data") / file.name)

    def swap(self, text: str) -> None:
        """Another content, in one step."""
        former, parent = self._directory, self.file.parent
        directory = parent / f"..2026_01_01_{next(self._generations):02}"
        directory.mkdir()
        (directory / self.file.name).write_text(text)
        link = parent / "..data_tmp"
        link.symlink_to(directory.name)
        link.rename(parent / "..data")
        self._directory = directory
        if former is not None:
            shutil.rmtree(former)
