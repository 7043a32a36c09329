"""The wall clock of a child process, set from here while it runs; its monotonic clocks are left
alone, as by `date -s`."""

from pathlib import Path

_SITE = """
import os, time

_time_ns, _monotonic = time.time_ns, time.monotonic
_seen = [float("-inf"), 0]

def time_ns():
    now_s = _monotonic()
    if now_s - _seen[0] > 0.05:
        with open(os.environ["MOVED_CLOCK"]) as file:
            _seen[:] = now_s, int(float(file.read()) * 1e9)
    return _time_ns() + _seen[1]

time.time_ns, time.time = time_ns, lambda: time_ns() / 1e9
"""
"""Python imports this before anything else in a process whose PYTHONPATH has it."""


class MovedClock:
    """`environment` is that of the child process."""

    def __init__(self, directory: Path, *, ahead_s: float = 0.0) -> None:
        site = directory / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(_SITE)
        self._file = directory / "ahead"
        self.environment = {"PYTHONPATH": str(site), "MOVED_CLOCK": str(self._file)}
        self.set(ahead_s)

    def set(self, ahead_s: float) -> None:
        """Show so many seconds more than the true time; negative: less."""
        new = self._file.with_suffix(".new")
        new.write_text(str(ahead_s))
        new.replace(self._file)
