"""What a cause of trouble means for operators: title, what to do, runbook, and how bad it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from watchrelay import __version__
from watchrelay.core.trouble import Cause

SOURCES: Final = f"https://github.com/watchrelay/watchrelay/blob/v{__version__}"
"""Of this version; docs/runbooks is below it. The chart's alerts link there too."""

Level = Literal["person", "retrying", "behind", "notice", "starting", "live", "standby", "stopped"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
"""Worst first. `person`: an operator must act. `notice`: no stream suffers."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The title of a cause, what to do about it, its runbook, and how bad it is: not "retrying"
    where it is not retried, or only a person can mend it all the same."""

    title: str
    todo: str
    runbook: str = ""
    level: Level = "retrying"

    def runbook_url(self, base_url: str) -> str:
        """The runbook's address; "" where there is none. `base_url`: "" for `SOURCES`."""
        base = (base_url or SOURCES).rstrip("/")
        return f"{base}/docs/runbooks/{self.runbook}.md" if self.runbook else ""


ADVICE: Final = {
    Cause.MISSING_RIGHT: Advice(
        "A permission is missing in the cluster",
        "Grant list and watch, or discovery, as the message says: apply what `watchrelay rbac` "
        "prints, or upgrade the release with rbac.create: true. "
        "The relay tries again by itself.",
        "WatchRelayForbidden",
    ),
    Cause.RESOURCE_NOT_SERVED: Advice(
        "The API server does not serve a resource",
        "Install its CRD, name a version that is served, or take the entry out of the config. "
        "The relay notices by itself.",
        "WatchRelayStreamWaiting",
    ),
    Cause.TOPIC_UNUSABLE: Advice(
        "A topic cannot be used as it is",
        "Correct the topic as the message says. The relay checks again by itself.",
        "WatchRelayStreamWaiting",
    ),
    Cause.TOPIC_SETTING: Advice(
        "Settings of topics can take records away",
        "Alter the topics as the message says, before consumers miss what is removed. The relay "
        "goes on meanwhile, and looks again every 10 minutes.",
        "WatchRelayTopicSettings",
        level="person",
    ),
    Cause.ENTRY_UNUSABLE: Advice(
        "An entry of the config cannot be followed",
        "Correct the entry as the message says; an edit of the file is taken without a restart.",
        "WatchRelayStreamWaiting",
    ),
    Cause.CONFIG_REFUSED: Advice(
        "The edited config is refused",
        "The previous config stays in effect. Correct the file: `watchrelay validate` names every "
        "mistake.",
        "WatchRelayConfigReloadFailed",
        level="person",
    ),
    Cause.DUPLICATE_ENTRY: Advice(
        "Two config entries define the same stream",
        "Give one of them an id, or take it out.",
        "WatchRelayConfigReloadFailed",
        level="person",
    ),
    Cause.KUBERNETES: Advice(
        "The API server cannot be followed",
        "Nothing to do while it restarts: the relay tries again and catches up, deletes included. "
        "If it lasts: the API server, the way to it.",
        "WatchRelayWatchErrors",
    ),
    Cause.CREDENTIALS: Advice(
        "The credentials for the API server do not work",
        "Renew or correct the token, the client certificate, the exec plugin or the CA that "
        "the message names. "
        "Files that the kubeconfig names are read again without a restart, and the relay retries "
        "by itself; after a change of the kubeconfig itself, restart it.",
        "WatchRelayWatchNotActive",
        level="person",
    ),
    Cause.KAFKA: Advice(
        "Kafka does not acknowledge",
        "Nothing is lost: the relay keeps the present state and goes on when Kafka does. "
        "If it lasts: the brokers, the way to them, the credentials.",
        "WatchRelayKafkaSilent",
    ),
    Cause.CONTROL_TOPIC: Advice(
        "The control topic cannot be used",
        "Streams that run go on; none can start. Correct the topic as the message says.",
        "WatchRelayStreamWaiting",
        level="person",
    ),
    Cause.CLOCK: Advice(
        "This machine's clock is wrong",
        "Set the clock (NTP, on a virtual machine also that of the host), or run the command that "
        "the message shows. Streams that wait for it go on by themselves.",
        "WatchRelayClockOff",
        level="person",
    ),
    Cause.BACKLOG: Advice(
        "Kafka accepts less than the relay receives",
        "Past queueBytes only states in between are skipped, the last state of each object is not. "
        "If it lasts: the brokers' disks and replicas, the CPU of this process.",
        "WatchRelayLagHigh",
    ),
    Cause.SIGNAL_TOPIC: Advice(
        "Snapshot requests are not read",
        "Streams go on without. Correct the signal topic as the message says.",
        level="notice",
    ),
    Cause.GROUP: Advice(
        "The group of the replicas cannot be used",
        "Streams that this replica writes go on, but it takes over no others. Correct the group as "
        "the message says.",
    ),
    Cause.RESTART_NEEDED: Advice(
        "A configuration change requires a restart",
        "Restart when it suits: a restart replays nothing.",
        level="notice",
    ),
    Cause.INTERNAL: Advice(
        "An unexpected error in the relay",
        "The relay tries again by itself, and nothing else stops. Please report the error with "
        "the log.",
        "WatchRelayStreamUnowned",
    ),
    Cause.OTHER: Advice(
        "A stream is in trouble",
        "The relay tries again by itself; the message says why.",
        "WatchRelayWatchErrors",
    ),
}
