"""`watchrelay rbac`: manifests that grant what the config needs, and nothing else."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from watchrelay.cli.options import Command, add_config, service_account

_DESCRIPTION = """\
Prints ServiceAccount, roles and bindings: `list` and `watch` on the config's resources, nothing
else. A Role per namespace for entries with namespaces, a ClusterRole for the others. Connects to no
cluster: custom resources must be written as plural.group, such as widgets.example.com.

API discovery (GET /api, /apis, /version) is not part of it: Kubernetes grants that to every account
by the ClusterRole system:discovery. Where that role or its binding was trimmed, add --discovery."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--service-account",
        metavar="NS/NAME",
        type=service_account,
        default=("watchrelay", "watchrelay"),
        help="the account that gets the rights (default: watchrelay/watchrelay)",
    )
    parser.add_argument(
        "--discovery",
        action="store_true",
        help="also grant API discovery, where the account has no ClusterRole system:discovery",
    )


def rbac(
    *,
    config: str | None,
    sets: Sequence[str],
    service_account: tuple[str, str],
    discovery: bool,
) -> int:
    """Print the manifests. Raises: ConfigError, also for a resource whose group only the
    cluster knows."""
    from watchrelay.cli.manifests import yaml_text
    from watchrelay.config import load
    from watchrelay.config.rights import manifests, rights
    from watchrelay.core.errors import ConfigError

    namespace, name = service_account
    loaded = load(config, sets)
    granted, unresolved = rights(loaded.settings)
    if unresolved:
        raise ConfigError(
            [
                loaded.problem(("resources", entry.index, "resource"), entry.message, entry.hint)
                for entry in unresolved
            ]
        )
    needed = list(dict.fromkeys((namespace, *granted.namespaced)))
    these = "This namespace" if len(needed) == 1 else "These namespaces"
    print(
        f"# The rights of watchrelay for cluster {loaded.settings.cluster}: list and watch"
        f"{', and discovery' if discovery else ''}, nothing else.\n"
        f"# {these} must exist before: {', '.join(needed)}\n"
        f"# {'; '.join(f'kubectl create namespace {each}' for each in needed)}"
    )
    if not discovery:
        print(
            "# API discovery is granted by the ClusterRole system:discovery, which Kubernetes "
            "binds to every account;\n# where it is taken away: watchrelay rbac --discovery"
        )
    for manifest in manifests(granted, namespace=namespace, name=name, discovery=discovery):
        print("---")
        for rule in manifest.get("rules", []):
            if rule.get("resources") == ["*"]:
                group = rule["apiGroups"][0]
                print(
                    f'# "*.{group}" in the config: every resource of {group}, also those that come '
                    "later"
                )
        print(yaml_text(manifest, width=1000, flow=None), end="")
    return 0


COMMAND = Command(
    "print the least rights this config needs, as manifests", _DESCRIPTION, rbac, _add_arguments
)
