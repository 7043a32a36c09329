"""The rules behind `/readyz`: whether the process is ready, and why not, as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from watchrelay.core.text import counted
from watchrelay.observe.status import StatusRegistry, StreamStatus


@dataclass(slots=True)
class Readiness:
    """Ready once every owned stream has its whole state acknowledged, or waits for what only a
    person can mend; then it stays.

    Source: an outage of either side must not take the pod out of its rollout; `/api/streams` and
    alerts speak of outages.
    """

    statuses: StatusRegistry
    started: bool = False
    """The streams that the config asks for are known (an empty registry before that is not
    readiness)."""
    reached: bool = False

    def check(self) -> tuple[bool, dict[str, object]]:
        """Whether to answer 200, and the body."""
        reasons = {status.stream: _reason(status) for status in self.statuses.streams.values()}
        if self.started and all(
            status.complete or status.waits_for for status in self.statuses.streams.values()
        ):
            self.reached = True
        body: dict[str, object] = {
            "ready": self.reached,
            "streams": {
                name: {
                    "state": self.statuses.streams[name].state,
                    **({"reason": reason} if reason else {}),
                }
                for name, reason in reasons.items()
            },
        }
        if self.statuses.problems:
            body["problems"] = dict(self.statuses.problems)
        return self.reached, body


def _reason(status: StreamStatus) -> str:
    """Why this stream's state is not wholly in Kafka, or what it waits for; "" when all is well."""
    if status.waits_for:
        return status.waits_for
    if status.complete:
        return status.last_error or ""
    return (
        status.last_error
        or status.unacknowledged
        or {
            "waiting": "not started yet",
            "listing": f"listing: {counted(status.listed, 'object')} so far",
            "resuming": "reading its own log back",
            "watching": "the first snapshot is not acknowledged yet",
            "backoff": "waiting to try again",
            "standby": "owned by another process",
            "stopped": "stopped",
        }[status.state]
    )
