"""A file of others' format: what that format's JSON schema says of it.

The schemas come with the package check-jsonschema: nothing is fetched.
"""

import subprocess
import sys
from pathlib import Path


def by_schema(name: str, file: Path) -> str:
    """The complaints about the file; "" when there are none. `name`: compose-spec,
    github-workflows."""
    argv = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        f"vendor.{name}",
        str(file),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    return "" if done.returncode == 0 else done.stdout + done.stderr
