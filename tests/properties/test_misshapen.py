"""A config or kubeconfig of legal YAML in which some value is of another kind, or a key is gone:
settings, or mistakes that name the file.

Bytes that are spoiled at random (`test_hostile.py`) hardly ever end as legal YAML of another shape;
this begins with the shape.
"""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.test_hostile import FUZZ
from tests.support.extent import examples
from watchrelay.config import load_settings
from watchrelay.core.errors import ConfigError
from watchrelay.kube.auth.kubeconfig import (
    EXEC_EXTENSION,
    EXEC_VERSIONS,
    Cluster,
    Kubeconfig,
    User,
)

CANARY = "hunter2"
_PLUGIN = {
    "command": "p",
    "args": ["a"],
    "apiVersion": EXEC_VERSIONS[0],
    "interactiveMode": "Never",
    "env": [{"name": "A", "value": CANARY}],
}
KUBECONFIG = {
    "current-context": "a",
    "contexts": [
        {"name": "a", "context": {"cluster": "a", "user": "a"}},
        {"name": "b", "context": {"cluster": "a", "user": "b"}},
    ],
    "clusters": [
        {
            "name": "a",
            "cluster": {
                "server": "https://h:1",
                "proxy-url": "http://p:1",
                "insecure-skip-tls-verify": True,
                "extensions": [{"name": EXEC_EXTENSION, "extension": {"x": 1}}],
            },
        }
    ],
    "users": [
        {
            "name": "a",
            "user": {
                "token": CANARY,
                "as": "b",
                "as-uid": "1",
                "as-groups": ["c"],
                "as-user-extra": {"d": ["e"]},
            },
        },
        {"name": "b", "user": {"exec": _PLUGIN}},
    ],
}
CONFIG = {
    "cluster": "c",
    "kubernetes": {"kubeconfig": "k", "context": "x"},
    "kafka": {
        "bootstrapServers": ["k:9092"],
        "security": {
            "protocol": "SASL_SSL",
            "mechanism": "PLAIN",
            "username": "u",
            "password": CANARY,
        },
        "partitions": 6,
        "createTopics": True,
    },
    "queueBytes": "64MiB",
    "defaults": {"snapshotInterval": "1h", "drop": ["status.x"]},
    "resources": [
        {"resource": "pods", "namespaces": ["shop"], "labelSelector": "a=b"},
        {"resource": "secrets", "includeSecretData": False},
    ],
    "observe": {"listen": "h:1", "logLevel": "info"},
}
_GONE = object()
ODD = [
    _GONE,
    None,
    True,
    0,
    -1,
    10**30,
    1.5,
    "",
    " ",
    "x",
    "a\nb",
    "a\x00b",
    "2020-01-01",
    "x" * 4000,
    [],
    ["x"],
    [1],
    [None],
    [[]],
    {},
    {"a": 1},
    {"": {}},
]
_changes = st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(ODD)), max_size=3)


def places(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a value in `tree`, but for its top."""
    inner = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    return [place for key, value in inner for place in ((*at, key), *places(value, (*at, key)))]


def misshapen(tree: Any, changes: list[tuple[int, object]]) -> Any:
    """`tree` with other values in some places. A text in place of the secret still has the
    secret in it."""
    tree = copy.deepcopy(tree)
    for number, odd in changes:
        there = places(tree)
        *parents, last = there[number % len(there)]
        inner = tree
        for part in parents:
            inner = inner[part]
        if odd is _GONE:
            del inner[last]
        else:
            inner[last] = (
                f"{CANARY}{odd}"
                if inner[last] == CANARY and isinstance(odd, str)
                else copy.deepcopy(odd)
            )
        if not places(tree):
            break
    return tree


def wrong_problems(error: ConfigError, file: str) -> list[str]:
    """The problems that do not name the file, or that show the secret, or that nobody would
    read."""
    messages = [str(problem) for problem in error.problems]
    return [
        each
        for each in messages
        if not each.startswith(file) or CANARY in each or len(each) > 5000 or "\n" in each
    ]


@FUZZ
@given(_changes, st.sampled_from(["a", "b", None]))
def test_a_kubeconfig_of_any_shape_is_a_user_or_mistakes_that_name_file_and_line(
    changes: list[tuple[int, object]], context: str | None
) -> None:
    read: list[tuple[Cluster, User]] = []
    with tempfile.NamedTemporaryFile() as file:
        file.write(json.dumps(misshapen(KUBECONFIG, changes)).encode())
        file.flush()
        try:
            read.append(Kubeconfig([Path(file.name)]).resolve(context))
        except ConfigError as error:
            wrong = wrong_problems(error, file.name)
        else:
            wrong = []
    assert wrong == []
    for cluster, user in read:
        assert CANARY not in repr((cluster, user))
        texts = [cluster.server, cluster.proxy_url or "", user.token, user.username, user.password]
        texts += [value for _, value in user.impersonation]
        assert all(str.isprintable(text) for text in (user.token, *texts[5:]))
        assert all(isinstance(text, str) for text in texts)
        if plugin := user.exec_plugin:
            assert all(
                isinstance(text, str)
                for text in (
                    plugin.command,
                    *plugin.args,
                    *(part for pair in plugin.env for part in pair),
                )
            )


@settings(FUZZ, max_examples=examples(200))
@given(_changes)
def test_a_config_of_any_shape_is_settings_or_mistakes_that_name_the_file(
    changes: list[tuple[int, object]],
) -> None:
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        file.write(json.dumps(misshapen(CONFIG, changes)).encode())
        file.flush()
        try:
            wrong = [CANARY] if CANARY in repr(load_settings(file.name, environ={})) else []
        except ConfigError as error:
            wrong = wrong_problems(error, file.name)
    assert wrong == []
