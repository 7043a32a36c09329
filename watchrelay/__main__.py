"""`python -m watchrelay`, and the `watchrelay` program.

Room: above all. In: the process's arguments. Out: its exit code.
"""

from __future__ import annotations

import sys


def main() -> int:
    """What `watchrelay.cli.main` returns; a Ctrl-C while that is still imported ends in silence too."""
    try:
        from watchrelay import cli  # here, for that reason
    except KeyboardInterrupt:
        return 130
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
