"""The addresses of relays: a real Prometheus that scrapes them and evaluates the alert rules."""

import http.client
import json
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from tests.support.charttools import CHART, program
from tests.support.process import Process, free_port, wait_until


class Prometheus:
    """A context manager; data and log in `directory`, which the caller removes.

    Args:
        targets: the address of each relay, by the label `namespace` of its series.
        every_s: how often relays are scraped and rules evaluated.
    """

    def __init__(self, directory: Path, targets: Mapping[str, str], *, every_s: int = 1) -> None:
        self._port = free_port()
        config = {
            "global": {"scrape_interval": f"{every_s}s", "evaluation_interval": f"{every_s}s"},
            "rule_files": [str(CHART / "files" / "rules" / "watchrelay.yaml")],
            "scrape_configs": [
                {
                    "job_name": "watchrelay",
                    "static_configs": [
                        {"targets": [target], "labels": {"namespace": namespace, "pod": "relay-0"}}
                        for namespace, target in targets.items()
                    ],
                }
            ],
        }
        file = directory / "prometheus.yaml"
        file.write_text(yaml.safe_dump(config))
        flags = [
            f"--config.file={file}",
            f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        self._process = Process(
            "prometheus", [program("prometheus"), *flags], log=directory / "prometheus.log"
        )

    def __enter__(self) -> Self:
        self._process.launch().await_ready(self._ready)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()

    def _ready(self) -> bool:
        try:
            return self._get("/-/ready")[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10.0)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _api(self, path: str, **parameters: str) -> Any:
        status, body = self._get(f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        answer = json.loads(body)
        assert status == http.client.OK, answer
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of the expression now."""
        found: list[dict[str, Any]] = self._api("query", query=expression)["result"]
        return found

    def query_range(
        self,
        expression: str,
        *,
        last_s: float = 60.0,
        start: float | None = None,
        end: float | None = None,
        step_s: int = 1,
    ) -> list[dict[str, Any]]:
        """The series of the expression over the last while, or between two Unix times: what a panel
        asks."""
        until = time.time() if end is None else end
        since = until - last_s if start is None else start
        asked = {"start": f"{since}", "end": f"{until}", "step": f"{step_s}"}
        found: list[dict[str, Any]] = self._api("query_range", query=expression, **asked)["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """The alert rules as evaluated: name, state, health, lastError."""
        return [rule for group in self._api("rules")["groups"] for rule in group["rules"]]

    def wait(self, claim: str, expression: str, *, deadline_s: float = 90.0) -> None:
        """Returns once the expression has a series."""
        wait_until(claim, lambda: self.query(expression), deadline_s=deadline_s)
