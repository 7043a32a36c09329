"""`watchrelay asyncapi`.

Room: commands. In: parsed arguments (config, sets, output). Out: an AsyncAPI 3.0 document of the
config's topics on stdout.
"""

from __future__ import annotations

import argparse
import json

import yaml

from watchrelay.admin.asyncapi import document
from watchrelay.config import load_settings


def run(args: argparse.Namespace) -> int:
    """Print the document. Raises: ConfigError with every problem."""
    text = json.dumps(document(load_settings(args.config, args.sets)), indent=2, ensure_ascii=False)
    # Through JSON, so that no part of the document is the same value as another: YAML would write
    # those as aliases.
    print(
        yaml.safe_dump(json.loads(text), sort_keys=False, width=140, allow_unicode=True).rstrip()
        if args.output == "yaml"
        else text
    )
    return 0
