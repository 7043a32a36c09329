"""Who owns a stream: the holders that claims name, the tenure of a lone relay, why a relay stops
writing a stream, and what a standby shows of one that another replica writes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.model.progress import StreamProgress
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

RETIRE: Final = "watchrelay retire on "
"""How the holder begins in the claim of a retirement, which is no relay."""


class Copy(Protocol):
    """What this replica has read of a stream. Implemented and described by standby.py."""

    @property
    def may_be_claimed(self) -> bool: ...
    def want(self, wanted: bool) -> None: ...


class Tenure:
    """One stream from the start of its runner to its end. This one is of a lone relay, which owns
    the stream at any time: where another relay claims it, the process ends. `epoch`: of the newest
    claim, 0 for none; `stream` may be a part."""

    def __init__(self, stream: str, control: ControlTopic) -> None:
        self.stream, self.epoch = stream, 0
        self._control = control
        self._clear_at = -1
        """The `taken` of the control topic at which no newer claim was read: until more is read,
        there is none."""

    def must_stop(self, epoch: int) -> bool:
        """Whether a newer claim than that of `epoch` was read after which nothing may be sent. Most
        often this compares two numbers: it is asked before each send."""
        control = self._control
        if self._clear_at == control.taken:
            return False
        if control.superseded(self.stream, epoch):
            return not self.may_finish()
        self._clear_at = control.taken
        return False

    @property
    def superseded(self) -> bool:
        """Another relay has claimed the stream since this one did."""
        control, stream = self._control, self.stream
        return self.epoch > 0 and control.superseded(stream, self.epoch, by_others=True)

    @property
    def ends_by_claim(self) -> bool:
        """The stream is claimed or written, and a claim of another replica, or of another part,
        ends that."""
        return False

    @property
    def over(self) -> bool:
        """Another replica writes the stream, or will: this one is to end, and stand by."""
        return False

    @property
    def awaits_release(self) -> bool:
        """The writer of the newest claim is alive and hands the stream over."""
        return False

    async def assigned(self, _copy: Copy, _show_standby: Callable[[], None], /) -> bool:
        """Return once the stream may be claimed, which then begins. The copy is read to its end
        first where a live writer hands the stream over; `show_standby` is called first if the
        stream may not be claimed yet. Returns: whether there is a group that assigns streams."""
        return False

    def warmed(self, is_warm: bool) -> None:
        """The copy was read to the end, or was dropped."""

    def claimed(self) -> None:
        """The claim of `epoch` is acknowledged."""

    def may_finish(self) -> bool:
        """Whether a writer that reads a newer claim may send what is queued."""
        return False

    async def handed_over(self) -> bool:
        """Whether the newer claim is of a replica that was assigned the stream."""
        return False

    def lose(self) -> bool:
        """A newer claim than ours was read, or a record of its writer. Returns: whether that is a
        writer outside the group."""
        return True

    def ended(self) -> bool:
        """The writer has ended: nothing more of it is sent. Returns: whether it was `over`."""
        return False


class Sole:
    """Of a relay that shares its streams with no other replica. See `Sharing` for the methods."""

    shares = False

    def __init__(self, control: ControlTopic) -> None:
        self._control = control

    def tenure(self, stream: str, _progress: StreamProgress, _end: Callable[[], None], /) -> Tenure:
        return Tenure(stream, self._control)

    def offer_plans(self, plans: Mapping[str, str], *, revision: int, config_hash: str) -> None:
        pass

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def hand_over(self, *, within_s: float) -> None:
        pass

    async def leave(self) -> None:
        pass


def retirement_holder() -> str:
    """The holder that a retirement of this process names in its claim."""
    return f"{RETIRE}{socket.gethostname()}-{os.getpid()}"


def is_retirement(holder: str) -> bool:
    """Whether the holder of a claim is a retirement."""
    return holder.startswith(RETIRE)


def ownership_lost(holder: str | None, stream: str, ours: str) -> str:
    """Why a relay stops writing `stream`; `holder` made the newest claim that it has read."""
    if holder is None or holder == ours:  # learned from a record of the stream itself
        return f"stream {stream}: a newer relay claimed it"
    if is_retirement(holder):
        return (
            f"stream {stream} was retired while this relay wrote it, by `{holder}`: its "
            "objects are deleted from its topic; "
            "take it out of this relay's config, or its next start publishes them again"
        )
    return f"stream {stream}: relay {holder} claimed it: two relays have it in their configs"


def show_owner(
    stream: str, statuses: StatusRegistry, control: ControlTopic, metrics: Metrics
) -> None:
    """Show a stream that another replica writes, as the control topic describes it. It has no
    `stream_owned` while another layout is written: the parts of that have it."""
    status = statuses.open(stream)
    status.owner, status.objects = control.holder_of(stream), objects_of(stream, control)
    owned = metrics.gauge("stream_owned")
    if _another_layout_is_written(stream, control):
        owned.remove(stream)
    else:
        owned.labels(stream).set(0)


def objects_of(stream: str, control: ControlTopic) -> int:
    """As the stream's last snapshot counted them."""
    count = (control.index(stream) or {}).get("count")
    return count if isinstance(count, int) else 0


def _another_layout_is_written(stream: str, control: ControlTopic) -> bool:
    """Whether all partitions of `stream`, which may be a part, belong to writers of other parts,
    each of which still owns all of its own."""
    writers = control.newest_claims(stream).keys()
    return (
        bool(writers)
        and stream not in writers
        and all(control.newest_claims(each).keys() == {each} for each in writers)
    )
