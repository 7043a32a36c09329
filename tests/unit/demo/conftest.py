"""A synthetic cluster on a real socket, and a client that reads it as any client would."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from watchrelay.demo.apiserver import Behaviour
from watchrelay.demo.cluster import SyntheticCluster


class Watch:
    """An open watch, read line by line."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self._held = b""

    async def next(self) -> dict[str, Any] | None:
        """The next line, or None at a clean end. Raises: aiohttp's error at any other end,
        TimeoutError after 60 s of silence."""
        async with asyncio.timeout(60):
            while b"\n" not in self._held:
                chunk = await self.response.content.readany()
                if not chunk:
                    assert self._held == b"", "a clean end is at the end of a line"
                    return None
                self._held += chunk
        line, _, self._held = self._held.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    async def take(self, count: int) -> list[dict[str, Any]]:
        """The next `count` lines."""
        lines = [await self.next() for _ in range(count)]
        assert None not in lines, "the watch ended"
        return [line for line in lines if line is not None]

    async def rest(self) -> list[dict[str, Any]]:
        """All lines up to the clean end."""
        lines = []
        while (line := await self.next()) is not None:
            lines.append(line)
        return lines


class Api:
    """One client of one cluster."""

    def __init__(self, cluster: SyntheticCluster, session: aiohttp.ClientSession) -> None:
        self.cluster = cluster
        self.registry = cluster.registry
        self.session = session

    async def get(
        self, path: str, *, headers: dict[str, str] | None = None, expect: int = 200, **query: Any
    ) -> dict[str, Any]:
        params = {name: str(value) for name, value in query.items()}
        async with self.session.get(
            self.cluster.url + path, params=params, headers=headers
        ) as response:
            assert response.status == expect, await response.text()
            content: dict[str, Any] = await response.json()
            return content

    async def send(
        self, method: str, path: str, body: object = None, *, expect: int = 200
    ) -> dict[str, Any]:
        async with self.session.request(method, self.cluster.url + path, json=body) as response:
            assert response.status == expect, await response.text()
            content: dict[str, Any] = await response.json()
            return content

    async def pages(self, path: str, **query: Any) -> list[dict[str, Any]]:
        """Every page of one list."""
        found = [await self.get(path, **query)]
        while token := found[-1]["metadata"].get("continue"):
            found.append(await self.get(path, **(query | {"continue": token})))
        return found

    @asynccontextmanager
    async def watch(
        self, path: str, *, headers: dict[str, str] | None = None, **query: Any
    ) -> AsyncIterator[Watch]:
        params = {"watch": "1", **{name: str(value) for name, value in query.items()}}
        async with self.session.get(
            self.cluster.url + path, params=params, headers=headers
        ) as response:
            assert response.status == 200, await response.text()
            yield Watch(response)

    @property
    def version(self) -> str:
        return str(self.registry.storage.version)

    def settings(
        self,
        name: str,
        value: str = "0",
        *,
        namespace: str = "default",
        labels: dict[str, str] | None = None,
    ) -> None:
        """Creates or changes a ConfigMap."""
        metadata = {"name": name, "namespace": namespace, "labels": labels or {}}
        tree = {"metadata": metadata, "data": {"value": value}}
        exists = self.registry.get("configmaps", namespace, name) is not None
        (self.registry.replace if exists else self.registry.create)("configmaps", tree)

    def remove(self, name: str, *, namespace: str = "default") -> None:
        self.registry.delete("configmaps", namespace, name)


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with (
        SyntheticCluster(behaviour=Behaviour()) as cluster,
        aiohttp.ClientSession(read_bufsize=1 << 20) as session,
    ):
        yield Api(cluster, session)


def short(lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Type and name of each line."""
    return [(line["type"], line["object"]["metadata"].get("name", "")) for line in lines]
