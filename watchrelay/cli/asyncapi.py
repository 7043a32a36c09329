"""`watchrelay asyncapi`.

Room: commands. In: parsed arguments (config, sets, output). Out: an AsyncAPI 3.0 document of the
config's topics on stdout.
"""

from __future__ import annotations

import argparse
import json

import yaml

from watchrelay.admin.asyncapi import document
from watchrelay.cli.yamltext import quote_other_types
from watchrelay.config import load_settings


def run(args: argparse.Namespace) -> int:
    """Print the document. Raises: ConfigError with every problem."""
    text = json.dumps(document(load_settings(args.config, args.sets)), indent=2, ensure_ascii=False)
    # Through JSON, so that no part of the document is the same value as another: YAML would write
    # those as aliases.
    if args.output == "yaml":
        text = yaml.dump(
            json.loads(text), Dumper=_Dumper, sort_keys=False, width=140, allow_unicode=True
        ).rstrip()
    print(text)
    return 0


class _Dumper(yaml.SafeDumper):
    """YAML with text as text."""


quote_other_types(_Dumper)
