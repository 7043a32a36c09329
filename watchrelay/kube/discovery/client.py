"""What the API server serves, refreshed at low cost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from watchrelay.core.errors import KubeError, NotFound, Unavailable
from watchrelay.kube.client import KubeClient
from watchrelay.kube.discovery import catalog as documents
from watchrelay.kube.discovery.catalog import ApiCatalog, ApiGroup, NotDiscovery, Version
from watchrelay.kube.discovery.resolve import Resolution, Unknown, resolve
from watchrelay.kube.status import NOT_AN_API_SERVER


class Discovery:
    """The newest catalog; `refresh` costs two small requests while nothing changed
    (docs/watch-facts.md 8.1)."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._known: dict[str, tuple[str, dict[bytes, ApiGroup]]] = {}
        """By path, an ETag and what came with it: groups by digest."""
        self.catalog: ApiCatalog | None = None
        """What the server served at the last refresh; None before the first."""
        self._resolved: dict[str, Resolution] = {}
        """What was resolved against this catalog."""
        self._begun: asyncio.Task[bool | Exception] | None = None

    def begin(self, tasks: asyncio.TaskGroup) -> asyncio.Task[bool | Exception]:
        """Ask already; the next `refresh` takes the answer, or raises the error."""
        self._begun = tasks.create_task(self._attempt(), name="first discovery")
        return self._begun

    async def refresh(self) -> bool:
        """Ask the server again; True if what it serves changed. Raises: KubeError; the
        catalog is kept."""
        if (begun := self._begun) is None:
            return await self._ask()
        self._begun = None
        outcome = await begun
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _attempt(self) -> bool | Exception:
        try:
            return await self._ask()
        except Exception as error:  # noqa: BLE001  # raised by `refresh`, where it is expected
            return error

    async def _ask(self) -> bool:
        catalog = ApiCatalog((*await self._root("/api"), *await self._root("/apis")))
        changed = catalog != self.catalog
        if changed or not catalog.is_known:  # why it is unknown may have changed
            self.catalog, self._resolved = catalog, {}
        return changed

    def resolve(self, written: str) -> Resolution:
        """What a resource of the config means now."""
        if self.catalog is None:
            return Unknown("API discovery has not completed yet")
        if written not in self._resolved:
            self._resolved[written] = resolve(written, self.catalog)
        return self._resolved[written]

    async def _root(self, path: str) -> tuple[ApiGroup, ...]:
        """The groups below `/api` or `/apis`."""
        etag, groups = self._known.get(path, ("", {}))
        headers = {"Accept": documents.ACCEPT_AGGREGATED}
        if etag:
            headers["If-None-Match"] = etag
        document = await self._client.get_json(path, headers)
        try:
            if not document.unchanged:
                if not documents.is_aggregated(document.content_type):
                    self._known.pop(path, None)
                    return await self._walk(path, document.body)
                etag, groups = document.etag, await _decoded(document.body, groups)
        except NotDiscovery as error:
            raise _unusable(path, error) from error
        self._known[path] = etag, groups
        return tuple(groups.values())

    async def _walk(self, path: str, body: bytes) -> tuple[ApiGroup, ...]:
        """The groups that `body` names, each version fetched by itself."""
        core = path == "/api"
        listed = (documents.parse_core_versions if core else documents.parse_group_versions)(body)
        return tuple(
            [
                ApiGroup(name, tuple([await self._version(name, version) for version in versions]))
                for name, versions in listed
            ]
        )

    async def _version(self, name: str, version: str) -> Version:
        """One version the old way; unknown if only its own server is in trouble, as where it
        refuses the API server, which then passes that answer on."""
        path, why = f"/apis/{name}/{version}" if name else f"/api/{version}", documents.SILENT
        try:
            document = await self._client.get_json(path)
            return documents.parse_resources(name, version, document.body)
        except NotDiscovery as error:
            if not name:
                raise _unusable(path, error) from error
        except KubeError as error:
            if not name or error.status == 0:
                raise  # it is the API server itself that is in trouble
            if not isinstance(error, Unavailable | NotFound):
                why = str(error)
        return Version(version, fresh=False, why=why)


async def _decoded(body: bytes, known: Mapping[bytes, ApiGroup]) -> dict[bytes, ApiGroup]:
    """The groups of an aggregated document, by digest. Other tasks run between any two groups that
    have to be decoded. Raises: NotDiscovery."""
    groups: dict[bytes, ApiGroup] = {}
    for digest, group in documents.parse_aggregated(body, known):
        groups[digest] = group
        if digest not in known:
            await asyncio.sleep(0)
    return groups


def _unusable(path: str, error: NotDiscovery) -> Unavailable:
    return Unavailable(
        f"discovery: the answer to {path} cannot be used: {error}; {NOT_AN_API_SERVER}"
    )
