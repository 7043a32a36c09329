"""A running `watchrelay demo`: it showed changes, said where its window is, and Ctrl-C ended it
well."""

import http.client
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable

from tests.support.process import wait_until


def end_well(
    demo: "subprocess.Popen[bytes]", shown: Callable[[], str], said: Callable[[], str]
) -> None:
    """See three changes, ask the window whether all is ready, and end it. `shown`, `said`:
    its output, its errors so far."""
    wait_until(
        "changes are shown",
        lambda: len(re.findall(r"\bmodified\b", shown())) >= 3 or demo.poll() is not None,
        deadline_s=60.0,
    )
    assert demo.poll() is None, said()
    assert "heartbeat" not in shown(), "markers drown what happens"
    address = re.search(r"http://[0-9.:]+", shown() + said())
    assert address, "the status page's address is not given"
    with urllib.request.urlopen(f"{address[0]}/readyz", timeout=5.0) as answer:
        assert answer.status == http.client.OK
    demo.send_signal(signal.SIGINT)
    assert demo.wait(30.0) == 0, said()
