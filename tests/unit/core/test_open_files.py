"""The limit of open files."""

import errno
import resource
import subprocess
import sys

import pytest

from watchrelay.core.open_files import refuse_reserved

_RAISED = """
import resource
from watchrelay.core.open_files import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
raise_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize("hard", [64, 500])
def test_the_limit_is_raised_to_the_hard_one(hard: int) -> None:
    program = _RAISED.format(hard=hard)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == [b"%d" % hard] * 2


def test_of_the_limit_some_are_reserved_for_what_is_no_watch() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    reserved = min(256, limit // 2)
    refuse_reserved(limit - reserved - 1)
    with pytest.raises(OSError, match="Too many open files") as refused:
        refuse_reserved(limit - reserved)
    assert refused.value.errno == errno.EMFILE
