"""`watchrelay asyncapi`: an AsyncAPI 3.0 document of the config's topics."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from watchrelay.cli.options import Command, add_config
from watchrelay.cli.output import json_for

_DESCRIPTION = """\
Prints what a consumer can expect of this config: channels with topic settings, messages with
headers and payloads. Connects neither to the cluster nor to Kafka: the topic of a resource that
only the cluster knows has no address."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--output",
        choices=("json", "yaml"),
        default="json",
        help="format of the document (default: json)",
    )


def asyncapi(*, config: str | None, sets: Sequence[str], output: str) -> int:
    """Print the document. Raises: ConfigError."""
    import json

    from watchrelay.admin.asyncapi import document
    from watchrelay.cli.manifests import yaml_text
    from watchrelay.config import load_settings

    made = document(load_settings(config, sets))
    if output == "yaml":
        print(yaml_text(made, width=140), end="")
    else:
        print(json_for(sys.stdout, json.dumps(made, indent=2, ensure_ascii=False)))
    return 0


COMMAND = Command(
    "describe topics and records as an AsyncAPI 3.0 document",
    _DESCRIPTION,
    asyncapi,
    _add_arguments,
)
