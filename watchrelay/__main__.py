"""`python -m watchrelay`, and the `watchrelay` program."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command line of the process; Ctrl-C and SIGTERM end it silently, at any time.

    Returns:
        the exit code, before the command line is known. It ends the process itself otherwise:
        the interpreter would wait for threads in a lookup or a file.
    """
    try:
        # before all other imports, so that a signal during one of them is handled
        from watchrelay.cli import signals

        signals.install_signal_handlers(sys.argv[1:])
    except KeyboardInterrupt:
        return 130
    from watchrelay.cli import main as cli

    code = cli.main()
    signals.ignore_late_signals(code)
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
