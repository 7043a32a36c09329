"""`watchrelay rbac`."""

from __future__ import annotations

import argparse

from watchrelay.cli.options import Command, ConfigOptions, add_config, service_account

_DESCRIPTION = """\
Prints ServiceAccount, roles and bindings: `list` and `watch` on the config's resources, nothing
else. A Role per namespace for entries with namespaces, a ClusterRole for the others. Connects to no
cluster: custom resources must be written as plural.group, such as widgets.example.com."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--service-account",
        metavar="NS/NAME",
        type=service_account,
        default=("watchrelay", "watchrelay"),
        help="the account that gets the rights (default: watchrelay/watchrelay)",
    )


def _run(args: argparse.Namespace) -> int:
    from watchrelay.cli.rbac import rbac

    namespace, name = args.service_account
    return rbac(ConfigOptions.of(args), namespace=namespace, name=name)


COMMAND = Command(
    "print the least rights this config needs, as manifests", _DESCRIPTION, _run, _add_arguments
)
