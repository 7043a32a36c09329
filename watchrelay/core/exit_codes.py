"""Exit codes of the process; the numbers from 64 on are those of `sysexits.h`."""

from __future__ import annotations

import signal
from typing import Final

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNAVAILABLE: Final = 69
OWNERSHIP_LOST: Final = 75
BAD_CONFIG: Final = 78

EXIT_CODES: Final = {
    OK: "done, or drained",
    FAILED: "failed",
    USAGE: "wrong usage",
    UNAVAILABLE: "a dependency is unavailable",
    OWNERSHIP_LOST: "another relay took over",
    BAD_CONFIG: "the config is wrong, or operator action is required",
    128 + signal.SIGINT: "interrupted by Ctrl-C",
    128 + signal.SIGTERM: "interrupted by SIGTERM",
}
"""The meaning of each, for `--help` and docs/reference/exit-codes.md."""
