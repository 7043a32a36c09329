"""`watchrelay asyncapi`: an AsyncAPI 3.0 document of the config's topics."""

from __future__ import annotations

import json

import yaml

from watchrelay.admin.asyncapi import document
from watchrelay.cli.options import ConfigOptions
from watchrelay.cli.yamltext import quote_other_types
from watchrelay.config import load_settings


def asyncapi(config: ConfigOptions, *, as_yaml: bool) -> int:
    """Print the document.

    Args:
        config: where the settings come from.
        as_yaml: print YAML in place of JSON.

    Returns:
        0.

    Raises:
        ConfigError: with every problem.
    """
    text = json.dumps(document(load_settings(*config)), indent=2, ensure_ascii=False)
    # through JSON, so that no part of the document is shared: YAML would write it as an alias
    if as_yaml:
        text = yaml.dump(
            json.loads(text), Dumper=_Dumper, sort_keys=False, width=140, allow_unicode=True
        ).rstrip()
    print(text)
    return 0


class _Dumper(yaml.SafeDumper):
    """YAML with text as text."""


quote_other_types(_Dumper)
