"""A config as a dict: the program as its users run it: `watchrelay run` and the other commands.

The program is a child process like any other part; tests control it by signals and by its
admin server, and read its logs.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

import yaml

from tests.support.forked import Forked, Program
from tests.support.process import PartError, Process, free_port, wait_until

PROGRAM = Path(sys.executable).with_name("watchrelay")
"""The entry point beside the interpreter that runs the tests."""

_RESENDING = {"identity"}
"""Why a record may be in the log twice within one life."""


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment without what would configure the program behind a test's back."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("WATCHRELAY_", "KUBECONFIG", "KUBERNETES_"))
    }
    return {**ours, **(extra or {})}


def relay_config(
    cluster: str, *, bootstrap: str, kubeconfig: Path, resources: Sequence[Any], **more: Any
) -> dict[str, Any]:
    """A small config with the shortest intervals; `more` replaces whole sections or adds to
    `kafka`.

    `resources` are names, or entries with more keys; topics have 3 partitions and one copy.
    """
    kafka = {
        "bootstrapServers": bootstrap.split(","),
        "partitions": 3,
        "replicationFactor": 1,
        "minInsyncReplicas": 1,
    }
    config: dict[str, Any] = {
        "cluster": cluster,
        "kubernetes": {"kubeconfig": str(kubeconfig)},
        "kafka": {**kafka, **more.pop("kafka", {})},
        "heartbeatInterval": "1s",
        "resources": [
            {"resource": entry} if isinstance(entry, str) else entry for entry in resources
        ],
    }
    return {**config, **more}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The output of a command that ended."""

    code: int
    stdout: str
    stderr: str

    def objects(self) -> list[dict[str, Any]]:
        """stdout, one JSON object a line."""
        return [json.loads(line) for line in self.stdout.splitlines()]


def command(
    *arguments: str | Path, environment: Mapping[str, str] | None = None, timeout_s: float = 60.0
) -> Outcome:
    """Runs `watchrelay` with these arguments to its end."""
    argv = [str(PROGRAM), *map(str, arguments)]
    with TemporaryFile("w+b") as out, TemporaryFile("w+b") as err:
        program = Forked(argv, clean_environment(environment), out, err)
        try:
            code = program.wait(timeout_s)
        finally:
            program.kill()
        for file in (out, err):
            file.seek(0)
        return Outcome(code, out.read().decode(), err.read().decode())


class Daemon:
    """`watchrelay run` with one config; a context manager that starts it and leaves nothing
    running.

    Files are made in `directory`; several daemons may share it under different names.
    `start` may be called again after an end.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        directory: Path,
        *,
        name: str = "relay",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        self.config = {
            **config,
            "observe": {
                "listen": f"127.0.0.1:{self.port}",
                "logFormat": "json",
                **config.get("observe", {}),
            },
        }
        self.file = directory / f"{name}.yaml"
        self.file.write_text(yaml.safe_dump(self.config, sort_keys=False))
        self._log = directory / f"{name}.log"
        self._rebuilds = Counter[str]()
        """In its former lives."""
        # what an environment is for may be needed at the interpreter's start
        kind = Program if environment is None else Process
        self._process = kind(
            name, [PROGRAM, "run", "-c", self.file], log=self._log, environment=environment
        )

    def start(self) -> Self:
        """Starts it without waiting for anything."""
        self._process.launch()
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """A failure within shows the streams and the end of the log. It leaves nothing running."""
        if error is not None and not isinstance(error, PartError):
            shown = f"{self.file.stem}: streams: {self.api_streams()}\n{self._process.tail()}"
            print(shown, file=sys.stderr)
        self._process.kill()

    # The window.

    def _get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20.0)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def _ask(self, path: str) -> tuple[int, str] | None:
        try:
            return self._get(path)
        except (OSError, http.client.HTTPException):
            return None

    def readyz(self) -> tuple[int, dict[str, Any]]:
        """Status and body of /readyz; status 0 while nobody answers."""
        answer = self._ask("/readyz")
        return (0, {}) if answer is None else (answer[0], json.loads(answer[1]))

    def livez(self) -> int:
        """Status of /livez; 0 while nobody answers."""
        answer = self._ask("/livez")
        return 0 if answer is None else answer[0]

    def get_json(self, path: str) -> dict[str, Any]:
        """The object at this path; empty while nobody answers."""
        answer = self._ask(path)
        return {} if answer is None else dict(json.loads(answer[1]))

    def api_streams(self) -> dict[str, dict[str, Any]]:
        """/api/streams by stream id; empty while nobody answers."""
        answer = self._ask("/api/streams")
        return {} if answer is None else {row["stream"]: row for row in json.loads(answer[1])}

    def stream(self, name: str) -> dict[str, Any]:
        """One row of /api/streams; empty while there is none."""
        return self.api_streams().get(name, {})

    def metrics(self) -> str:
        """The text of /metrics."""
        return self._get("/metrics")[1]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name with these labels."""
        total = 0.0
        for line in self.metrics().splitlines():
            series, _, value = line.rpartition(" ")
            found, _, rest = series.partition("{")
            if found == name and all(
                f'{label}="{wanted}"' in rest for label, wanted in labels.items()
            ):
                total += float(value)
        return total

    def rebuilds(self) -> Counter[str]:
        """How often it sent under another producer id what may be in the log already. Over
        all its lives, without those that a kill ended.
        """
        now = Counter(self._rebuilds)
        answer = self._ask("/metrics") if self.alive else None
        for line in answer[1].splitlines() if answer is not None else ():
            series, _, value = line.rpartition(" ")
            name, _, labels = series.partition("{")
            reason = labels.partition('reason="')[2].partition('"')[0]
            if name == "watchrelay_producer_rebuilds_total" and reason in _RESENDING:
                now[reason] += int(float(value))
        return +now

    def explained(self) -> str:
        """Its rebuilds of the producer and its last warnings: why a record is on the log twice."""
        warnings = [line for line in self.lines() if line["level"] in {"warning", "error"}]
        shown = "\n".join(json.dumps(line, ensure_ascii=False)[:500] for line in warnings[-10:])
        return (
            f"{self._log.stem}: watchrelay_producer_rebuilds_total by reason "
            f"{dict(self.rebuilds())}, last warnings:\n{shown or 'none'}"
        )

    def wait(
        self, claim: str, condition: Callable[[], object], *, deadline_s: float = 90.0
    ) -> None:
        """Returns once the condition holds; raises PartError with the log's tail when the time is
        up or the daemon ended."""

        def holds_or_ended() -> bool:
            return bool(condition()) or not self.alive

        try:
            wait_until(claim, holds_or_ended, deadline_s=deadline_s)
        except TimeoutError as late:
            raise PartError(
                f"{late}; streams: {self.api_streams()}\n{self._process.tail()}"
            ) from None
        if not self.alive:
            raise PartError(f"the daemon ended before: {claim}\n{self._process.tail()}")

    def await_ready(self, *, deadline_s: float = 90.0) -> Self:
        """Returns once /readyz says 200."""
        self.wait("/readyz is 200", lambda: self.readyz()[0] == 200, deadline_s=deadline_s)
        return self

    # Logs.

    @property
    def log_bytes(self) -> int:
        """The size of its log so far, over all its lives: for `lines`."""
        return self._log.stat().st_size if self._log.exists() else 0

    def lines(self, *, since: int = 0) -> list[dict[str, Any]]:
        """Its log (behind the first `since` bytes), decoded; a line that is not one JSON object
        (a traceback, a stray print) is an AssertionError.
        """
        text = ""
        if self._log.exists():
            with self._log.open("rb") as log:
                log.seek(since)
                text = log.read().decode(errors="replace")
        whole = text[: text.rfind("\n") + 1]
        lines = []
        for line in whole.splitlines():
            assert line.startswith("{"), f"not a JSON log line: {line}"
            lines.append(json.loads(line))
        return lines

    def logged(self, *words: str) -> list[dict[str, Any]]:
        """The log lines that hold all these words, anywhere."""
        return [
            line
            for line in self.lines()
            if all(word in json.dumps(line, ensure_ascii=False) for word in words)
        ]

    # Its end.

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True from start until it ended."""
        return self._process.alive

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self._process.send(number)

    def exit_code(self, *, deadline_s: float = 30.0) -> int:
        """Waits for its end; the exit code, negative for a signal."""
        try:
            code = self._process.exit_code(deadline_s)
        except subprocess.TimeoutExpired:
            raise PartError(
                f"the daemon did not end in {deadline_s:g} s\n{self._process.tail()}"
            ) from None
        self.lines()
        return code

    def stop(self, *, deadline_s: float = 30.0) -> int:
        """SIGTERM and wait; the exit code."""
        self._rebuilds = self.rebuilds()
        self.send(signal.SIGTERM)
        return self.exit_code(deadline_s=deadline_s)

    def kill(self) -> None:
        """SIGKILL and wait: nothing is drained."""
        self._process.kill()


def assert_verified(relay: Daemon) -> None:
    """The program itself finds the relay's topics whole, and equal to what the API server lists."""
    verified = command("verify", "-c", relay.file, "--cluster", timeout_s=90.0)
    assert verified.code == 0, verified.stdout + verified.stderr
