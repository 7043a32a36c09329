"""`watchrelay rbac`: manifests that grant what the config needs, and nothing else."""

from __future__ import annotations

from typing import Any

import yaml

from watchrelay.cli.options import ConfigOptions
from watchrelay.cli.yamltext import quote_other_types
from watchrelay.config import load
from watchrelay.config.rights import manifests, rights
from watchrelay.core.errors import ConfigError


def rbac(config: ConfigOptions, *, namespace: str, name: str) -> int:
    """Print the manifests.

    Args:
        config: where the settings come from.
        namespace, name: the service account that gets the rights.

    Returns:
        0.

    Raises:
        ConfigError: the config is wrong, or names a resource whose API group only the cluster
            knows.
    """
    loaded = load(*config)
    granted, unresolved = rights(loaded.settings)
    if unresolved:
        raise ConfigError(
            [
                loaded.problem(("resources", entry.index, "resource"), entry.message, entry.hint)
                for entry in unresolved
            ]
        )
    print(
        f"# The rights of watchrelay for cluster {loaded.settings.cluster}: list and watch, "
        "nothing else."
    )
    needed = list(dict.fromkeys((namespace, *granted.namespaced)))
    these = "This namespace" if len(needed) == 1 else "These namespaces"
    print(f"# {these} must exist before: {', '.join(needed)}")
    print("# " + "; ".join(f"kubectl create namespace {each}" for each in needed))
    for manifest in manifests(granted, namespace=namespace, name=name):
        print("---")
        print(_yaml(manifest), end="")
    return 0


def _yaml(manifest: dict[str, Any]) -> str:
    text = yaml.dump(manifest, Dumper=_Plain, sort_keys=False, default_flow_style=None, width=1000)
    groups = {
        rule["apiGroups"][0] for rule in manifest.get("rules", []) if rule["resources"] == ["*"]
    }
    return (
        "".join(
            f'# "*.{group}" in the config: every resource of {group}, also those that come later\n'
            for group in sorted(groups)
        )
        + text
    )


class _Plain(yaml.SafeDumper):
    """YAML without anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 (the library's signature)
        return True


quote_other_types(_Plain)
