"""`python -m watchrelay`, and the `watchrelay` program.

Room: above all. In: the process's arguments. Out: its exit code.
"""

from __future__ import annotations

import sys


def main() -> int:
    """What `watchrelay.cli.main` returns; Ctrl-C and SIGTERM end in silence, from here to the last
    moment."""
    try:
        # here, so that a Ctrl-C is heeded while all else is imported
        from watchrelay.cli import signals

        signals.heed(sys.argv[1:])
    except KeyboardInterrupt:
        return 130
    from watchrelay.cli import main as cli

    code = cli.main()
    signals.settle(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
