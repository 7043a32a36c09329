"""Floods of the control topic alone: the turns of the event loop, and the memory of the next start."""

import sys

from tests.fuzz.flooded import main

if __name__ == "__main__":
    sys.exit(main("controlled", control=True))
