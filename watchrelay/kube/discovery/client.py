"""What the API server serves, refreshed at low cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from watchrelay.core.errors import NotFound, Unavailable
from watchrelay.kube.client import Document
from watchrelay.kube.discovery import catalog as documents
from watchrelay.kube.discovery.catalog import ApiCatalog, Group, NotDiscovery, Version
from watchrelay.kube.discovery.resolve import (
    Found,
    Impossible,
    Missing,
    Resolution,
    Unknown,
    resolve,
)
from watchrelay.kube.status import NOT_AN_API_SERVER

__all__ = ["ApiCatalog", "Discovery", "Found", "Impossible", "Missing", "Resolution", "Unknown"]


class Fetch(Protocol):
    """The part of `KubeClient` that discovery needs."""

    async def get_json(self, path: str, headers: Mapping[str, str] | None = None) -> Document:
        """The document at `path`. Raises: KubeError."""
        ...


@dataclass(frozen=True, slots=True)
class _Known:
    etag: str
    groups: tuple[Group, ...]


class Discovery:
    """The newest catalog; `refresh` costs two small requests while nothing changed (ETag, WATCH
    8.1)."""

    def __init__(self, client: Fetch) -> None:
        self._client = client
        self._known: dict[str, _Known] = {}
        self._catalog: ApiCatalog | None = None

    @property
    def catalog(self) -> ApiCatalog | None:
        """What the server served at the last refresh; None before the first."""
        return self._catalog

    async def refresh(self) -> bool:
        """Ask the server again; True if what it serves changed.

        Raises: KubeError; the former catalog is kept.
        """
        groups = (*await self._root("/api"), *await self._root("/apis"))
        fresh = ApiCatalog(groups)
        changed = fresh != self._catalog
        self._catalog = fresh
        return changed

    def resolve(self, written: str) -> Resolution:
        """What a resource of the config means now."""
        if self._catalog is None:
            return Unknown("API discovery has not completed yet")
        return resolve(written, self._catalog)

    async def _root(self, path: str) -> tuple[Group, ...]:
        """The groups below `/api` or `/apis`."""
        known = self._known.get(path)
        headers = {"Accept": documents.ACCEPT_AGGREGATED} | (
            {"If-None-Match": known.etag} if known and known.etag else {}
        )
        document = await self._client.get_json(path, headers)
        if document.unchanged and known is not None:
            return known.groups
        try:
            if documents.is_aggregated(document.content_type):
                groups = documents.parse_aggregated(document.body)
                self._known[path] = _Known(document.etag, groups)
                return groups
            listed = (
                documents.parse_core_versions if path == "/api" else documents.parse_group_versions
            )(document.body)
        except NotDiscovery as error:
            raise Unavailable(
                f"discovery: the answer to {path} cannot be used: {error}; {NOT_AN_API_SERVER}"
            ) from error
        self._known.pop(path, None)
        return tuple([await self._walk(name, versions) for name, versions in listed])

    async def _walk(self, name: str, versions: list[str]) -> Group:
        return Group(name, tuple([await self._version(name, version) for version in versions]))

    async def _version(self, name: str, version: str) -> Version:
        """One version the old way. If only its own server is in trouble, it is unknown, and the
        others do not suffer."""
        path = f"/apis/{name}/{version}" if name else f"/api/{version}"
        try:
            document = await self._client.get_json(path)
            return documents.parse_resources(name, version, document.body)
        except NotDiscovery as error:
            if not name:
                raise Unavailable(
                    f"discovery: the answer to {path} cannot be used: {error}; {NOT_AN_API_SERVER}"
                ) from error
        except (Unavailable, NotFound) as error:
            if not name or error.status == 0:
                raise  # it is the API server itself that is in trouble
        return Version(version, fresh=False)
