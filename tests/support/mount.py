"""A path and texts, or a pod's volumes: files as the kubelet mounts them, and their swap for
another generation."""

import base64
import itertools
import shutil
from pathlib import Path
from typing import Any

from tests.support.realparts import ControlPlane


class Mount:
    """The path leads through a link to a directory of the newest generation, which is replaced as a
    whole.

    Source: k8s.io/kubernetes/pkg/volume/util/atomic_writer.go: `..data` is renamed over, then the
    former directory is removed.
    """

    def __init__(self, file: Path, text: str) -> None:
        self.file = file
        self._generations = itertools.count()
        self._directory: Path | None = None
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        self.swap(text)
        file.symlink_to(Path("..data") / file.name)

    def swap(self, text: str) -> None:
        """Another content, in one step."""
        former, parent = self._directory, self.file.parent
        directory = parent / f"..2026_01_01_{next(self._generations):02}"
        directory.mkdir()
        (directory / self.file.name).write_text(text)
        link = parent / "..data_tmp"
        link.symlink_to(directory.name)
        link.rename(parent / "..data")
        self._directory = directory
        if former is not None:
            shutil.rmtree(former)


def mount_volumes(cluster: ControlPlane, namespace: str, pod: dict[str, Any], root: Path) -> None:
    """Lays the files of a pod's Secrets and ConfigMaps below `root`, where its first container
    mounts them. `pod` is its spec."""
    places = {
        mount["name"]: root / mount["mountPath"].lstrip("/")
        for mount in pod["containers"][0]["volumeMounts"]
    }
    for volume in pod["volumes"]:
        held = _held(cluster, namespace, volume)
        items = volume.get("secret", volume.get("configMap", {})).get("items") or [
            {"key": key, "path": key} for key in held
        ]
        for item in items:
            file = places[volume["name"]] / item["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(held[item["key"]])


def _held(cluster: ControlPlane, namespace: str, volume: dict[str, Any]) -> dict[str, bytes]:
    match volume:
        case {"secret": {"secretName": name}}:
            data = cluster.request("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")["data"]
            return {key: base64.b64decode(value) for key, value in data.items()}
        case {"configMap": {"name": name}}:
            data = cluster.request("GET", f"/api/v1/namespaces/{namespace}/configmaps/{name}")[
                "data"
            ]
            return {key: value.encode() for key, value in data.items()}
        case _:
            return {}
