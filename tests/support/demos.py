"""A running `watchrelay demo`: it shows changes, prints the address of its admin server, and Ctrl-C
ends it with exit code 0."""

import http.client
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable

from tests.support.process import wait_until


def end_well(
    demo: "subprocess.Popen[bytes]", shown: Callable[[], str], errors: Callable[[], str]
) -> None:
    """See three changes, ask the admin server whether all is ready, and end it. `shown`, `errors`:
    its output, its errors so far."""
    wait_until(
        "changes are shown",
        lambda: len(re.findall(r"\bmodified\b", shown())) >= 3 or demo.poll() is not None,
        deadline_s=60.0,
    )
    assert demo.poll() is None, errors()
    assert "heartbeat" not in shown(), "markers drown what happens"
    address = re.search(r"http://[0-9.:]+", shown() + errors())
    assert address, "the status page's address is not given"
    with urllib.request.urlopen(f"{address[0]}/readyz", timeout=20.0) as answer:
        assert answer.status == http.client.OK
    demo.send_signal(signal.SIGINT)
    assert demo.wait(30.0) == 0, errors()
