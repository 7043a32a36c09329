"""The way to a cluster: found by its bootstrap servers, left when no broker answers, and proven
with new secrets before these are used."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.errors import SinkUnavailable
from watchrelay.kafka.client import KafkaError
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.failures import unreachable
from watchrelay.kafka.client.secrets import Secrets

_log = logging.getLogger(__name__)

SECRETS: Final = "secrets"

_RETRY = Backoff(base_s=0.1, cap_s=5.0, jitter=0.5)


class AccessListener(Protocol):
    """What is reported of the way to the brokers."""

    def report(self, about: str, message: str) -> None:
        """What is wrong with the brokers (`about` is the subject of the access), or with new
        secrets (SECRETS); an empty message: nothing is wrong."""
        ...

    def rebuilt(self, reason: str) -> None:
        """Connections or a producer id were replaced: watchdog, credentials, identity."""
        ...


class ClusterAccess:
    """One cluster. `brokers` is None until it is reached, and after it was left.

    Args:
        prove: Asks new brokers what must be answered before they are used; it may raise KafkaError
            and OSError.
        taken: Called when other brokers are in use, with whether they are by other secrets.
        subject: Under which what is wrong with the brokers is reported.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        listener: AccessListener,
        *,
        make_brokers: Callable[[KafkaConnection], Brokers],
        prove: Callable[[Brokers], Awaitable[None]],
        taken: Callable[[bool], None],
        rng: random.Random,
        subject: str = "",
    ) -> None:
        self.subject = subject
        self.brokers: Brokers | None = None
        self.secrets = Secrets(connection.secret_files)
        self._connection, self._listener = connection, listener
        self._make_brokers, self._prove, self._taken, self._rng = make_brokers, prove, taken, rng
        self._reaching = asyncio.Lock()
        self._unreachable: dict[int | None, str] = {}
        """By node why it cannot be reached; None: any broker."""

    async def reach(self) -> Brokers:
        """The brokers, however long it takes."""
        async with self._reaching:
            backoff = _RETRY
            while self.brokers is None:
                try:
                    self.secrets.use_files()
                    self._take(await self._proven())
                except SinkUnavailable as error:
                    self._unreachable[None] = str(error)
                    self._show()
                    backoff, wait_s = backoff.after_failure(
                        clock.now_s(), healthy=False, rng=self._rng
                    )
                    await asyncio.sleep(wait_s)
            return self.brokers

    def leave(self, brokers: Brokers, error: Exception) -> None:
        """Let these brokers go, unless others are in use: none of them answers, or not to these
        secrets. `reach` begins from the bootstrap servers."""
        if brokers is self.brokers:
            self.complain(None, error)
            self.close()
            self._listener.rebuilt("watchdog")

    def close(self) -> None:
        """Let the brokers go."""
        if self.brokers is not None:
            self.brokers.close()
            self.brokers = None

    def complain(self, node: int | None, error: Exception) -> None:
        """A broker, or any of them, cannot be reached."""
        self._unreachable[node] = str(unreachable(self._connection, error))
        self._show()

    def well(self, node: int | None) -> None:
        """It was reached."""
        if self._unreachable.pop(node, None) is not None:
            self._show()

    def all_well(self) -> None:
        """Every broker that is needed was reached."""
        for node in [node for node in self._unreachable if node is not None]:
            self.well(node)

    async def rotate(self, every_s: float) -> None:
        """Look at the secrets at intervals; once brokers accept other ones, use these brokers."""
        while True:
            await asyncio.sleep(every_s)
            if self.brokers is None or not self.secrets.changed():
                continue  # without brokers `reach` reads them
            try:
                fresh = await self._proven()
            except SinkUnavailable as error:
                if not self.secrets.in_use:  # else `reach` took them up, and reports for itself
                    self._listener.report(
                        SECRETS,
                        "the kafka secrets changed and are not usable; keeping the previous ones: "
                        f"{error}",
                    )
                continue
            if self._is_away() or self.secrets.in_use:
                fresh.close()  # meanwhile they were left, or `reach` took the secrets up
                continue
            self.close()
            self.secrets.use_seen()
            self._take(fresh)
            self._listener.rebuilt("credentials")

    def _is_away(self) -> bool:
        """A method, as mypy takes `brokers` for what it was before an await."""
        return self.brokers is None

    async def _proven(self) -> Brokers:
        """Raises: SinkUnavailable."""
        brokers = self._make_brokers(self._connection)
        try:
            await self._prove(brokers)
        except (KafkaError, OSError) as error:
            brokers.close()
            raise unreachable(self._connection, error) from error
        except asyncio.CancelledError:
            brokers.close()
            raise
        return brokers

    def _take(self, brokers: Brokers) -> None:
        """Use the brokers, which have accepted the newest secrets."""
        self.brokers = brokers
        rotated = self.secrets.accepted()
        if rotated:
            _log.info("kafka secrets changed and are in use")
            self._connection.rotation.proven += 1
        self._listener.report(SECRETS, "")
        self.well(None)
        self._taken(rotated)

    def _show(self) -> None:
        self._listener.report(self.subject, next(iter(self._unreachable.values()), ""))
