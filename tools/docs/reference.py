"""The reference pages, each generated from the source of its facts. Pure: values in,
Markdown out."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tools.docs.loglines import Line
from watchrelay.admin.asyncapi import (
    HEADERS,
    MARKER_TYPES,
    OBJECT_TYPES,
    OPTIONAL,
    REQUIRED,
    TYPES,
)
from watchrelay.cli.main import build_parser
from watchrelay.config.edits import COLD
from watchrelay.config.settings import json_schema
from watchrelay.core.exit_codes import EXIT_CODES
from watchrelay.kafka.topic_config import TopicSpec
from watchrelay.kafka.topic_settings import SETTINGS, TopicKind
from watchrelay.observe.metrics import CATALOGUE, MetricDescription

MADE = "<!-- Made by tools/docs/generate.py from {source}: do not edit, run `make generate-docs`. -->\n"


def page(title: str, source: str, *parts: str) -> str:
    """One page, with a comment that names its source."""
    return "\n".join(
        [MADE.format(source=source), f"# {title}\n", *(part.rstrip("\n") + "\n" for part in parts)]
    )


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table, with `<` and `>` escaped outside of code."""
    names = list(head)
    lines = [names, ["---"] * len(names), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    parts = text.replace("|", "\\|").split("`")
    return "`".join(
        part if index % 2 else part.replace("<", "&lt;").replace(">", "&gt;")
        for index, part in enumerate(parts)
    )


def code(text: object) -> str:
    """`text` as inline code; an empty text stays empty."""
    return f"`{text}`" if text != "" else ""


# ---- config --------------------------------------------------------------------------------------


def takes(key: Mapping[str, Any]) -> str:
    """The type of a key's value, in words."""
    if "enum" in key:
        return ", ".join(code(value) for value in key["enum"])
    if "examples" in key:
        return (
            "size, such as `64MiB`" if key["examples"] == ["64MiB"] else "duration, such as `10s`"
        )
    kinds = key.get("type", "string")
    if "array" in kinds:
        return "list of strings" if kinds == "array" else "string or list of strings"
    if kinds == "integer" and "minimum" in key:
        return f"integer, {key['minimum']} to {key['maximum']}"
    return str(kinds)


def when(path: tuple[str, ...]) -> str:
    """Whether a change of the key takes effect while the relay runs."""
    return "restart" if any(path[: len(cold)] == cold for cold in COLD) else "while running"


def keys(section: Mapping[str, Any], at: tuple[str, ...], definitions: Mapping[str, Any]) -> str:
    """The table of a section's own keys; a subsection is a link to its heading."""
    rows = []
    for name, key in section["properties"].items():
        path = (*at, name)
        text = key.get("description", "")
        inner = definition(key, definitions) or definition(key.get("items", {}), definitions)
        if inner is not None:
            text = text or str(inner.get("description", ""))
            rows.append(
                [
                    f"[`{name}`](#{anchor('.'.join(path))})",
                    "list of entries" if "items" in key else "section",
                    "",
                    text,
                ]
            )
        else:
            rows.append([code(name), takes(key), when(path), text])
    return table(("key", "value", "an edit takes effect", "meaning"), rows)


def definition(key: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The section that a key names, if it does."""
    return definitions[key["$ref"].rpartition("/")[2]] if "$ref" in key else None


def anchor(heading: str) -> str:
    """The anchor of a heading on the site."""
    return re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-"))


def config() -> str:
    """Every key of the config file."""
    schema = json_schema()
    definitions = schema["$defs"]
    parts = [CONFIG_INTRODUCTION, "## Top level\n", keys(schema, (), definitions)]

    def sections(section: Mapping[str, Any], at: tuple[str, ...]) -> None:
        for name, key in section["properties"].items():
            path = (*at, name)
            inner = definition(key, definitions)
            entry = definition(key.get("items", {}), definitions)
            if inner is not None:
                parts.extend(
                    [
                        f"## {'.'.join(path)}\n",
                        inner["description"] + "\n",
                        keys(inner, path, definitions),
                    ]
                )
                sections(inner, path)
            elif entry is not None:
                own = {
                    each: key
                    for each, key in entry["properties"].items()
                    if each not in definitions["Defaults"]["properties"]
                }
                parts.extend(
                    [
                        f"## {'.'.join(path)}\n",
                        (
                            f"{entry['description']} Besides these, each key of "
                            "[`defaults`](#defaults).\n"
                        ),
                    ]
                )
                parts.append(keys({"properties": own}, path, definitions))

    sections(schema, ())
    return page("Configuration", "the settings model (watchrelay/config/settings.py)", *parts)


CONFIG_INTRODUCTION = """\
The config is one YAML file: `-c FILE`, else `$WATCHRELAY_CONFIG`, else `./watchrelay.yaml`, else `/etc/watchrelay/config.yaml`.
Unknown keys, wrong types and combinations that cannot work are reported together, each with file, line, key and a correction.

- **Environment**: every key can be set by a variable. `WATCHRELAY_KAFKA__TOPIC_PREFIX=k8s` sets `kafka.topicPrefix`: words in capitals
  joined by `_`, sections by `__`. Lists are written with commas, sections as JSON. A variable overrides the file.
- **Command line**: `--set kafka.partitions=3` overrides both and may be repeated; list items are written
  `resources[0].labelSelector=app=web`.
- **Editors**: `watchrelay schema > schema.json` writes the JSON Schema (draft 2020-12) from which this page is generated.

Durations are written `500ms`, `10s`, `5m`, `1h30m`, sizes `512KiB`, `64MiB`. A duration of 0 disables a periodic action.
"""

# ---- command line --------------------------------------------------------------------------------


def cli() -> str:
    """Every command with its arguments."""
    parser = build_parser()
    commands = next(
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    helps = {choice.dest: choice.help or "" for choice in commands._choices_actions}
    parts = [
        CLI_INTRODUCTION,
        table(
            ("command", "does"),
            ([f"[`{name}`](#{name})", helps[name]] for name in commands.choices),
        ),
    ]
    shared = {"-c", "--set"}
    for name, command in commands.choices.items():
        parts.append(f"## {name}\n")
        parts.append(f"`{usage(command)}`\n")
        parts.append((command.description or "") + "\n")
        own = [
            action for action in command._actions if not isinstance(action, argparse._HelpAction)
        ]
        if rows := [argument(action) for action in own if not shared & set(action.option_strings)]:
            parts.append(table(("argument", "meaning"), rows))
        if any(shared & set(action.option_strings) for action in own):
            parts.append("Also `-c FILE` and `--set PATH=VALUE`.\n")
    return page(
        "Commands",
        "the command line (watchrelay/cli)",
        *parts,
        CLI_JSON,
        table(("command", "key", "value"), map(list, CLI_JSON_KEYS)),
    )


CLI_INTRODUCTION = """\
Data goes to stdout, messages go to stderr. A command that needs the config looks for it as described in [Configuration](config.md), and accepts
`-c FILE` (`--config FILE`) and `--set PATH=VALUE`. Exit codes are on [their own page](exit-codes.md).
"""


CLI_JSON = """\
## JSON of validate, topics and snapshot

`validate --output json` and `topics --output json` print one object on one line, `snapshot --output json` one line for each stream, as soon
as its snapshot is complete. Later releases only add keys. Unknown values are `null`. The exit code is the same as without
`--output`.
"""
CLI_JSON_KEYS = (
    (
        "`validate`",
        "`valid`",
        (
            "`false` if the config is refused: then `problems` is the only other key, and the "
            "same lines are on stderr"
        ),
    ),
    (
        "",
        "`problems`, `warnings`",
        (
            "`message`, `hint`, `path` (such as `resources[0].topic`), `source` (file, variable or "
            "`--set`), `line`; of a warning also `name`, and `accepted`: whether `acceptWarnings` "
            "names it"
        ),
    ),
    (
        "",
        "`config`, `cluster`, `kafka`",
        "the file; the name of the cluster; `bootstrapServers` and `protocol`",
    ),
    (
        "",
        "`streams`",
        (
            "`stream` (its id), `provisional` (only the cluster can tell the id), `entry` "
            "(index in `resources`), `resource`, `namespaces` "
            "(empty: all), `excludeNamespaces`, `name`, `labelSelector`, `fieldSelector`, "
            "`topic`, `partitions`"
        ),
    ),
    ("", "`topics`", "`topic`, `partitions`"),
    (
        "",
        "`checks`",
        (
            "with `--connect`: `level` (`ok`, `warning`, `error`), `subject`, `message`; `name` of a "
            "warning, `accepted`; `cause` and `cure` of what is wrong, as in `/api/streams`"
        ),
    ),
    (
        "`topics`",
        "`topics`",
        (
            "`topic`, `kind` (`state`, `control`, `signal`), `exists`, `created`, "
            "`partitions`, `replicationFactor`, `level` (the worst), "
            "`messages` (warnings and errors)"
        ),
    ),
    ("", "`checks`", "`level`, `subject`, `message`, `name` of all that is not about one topic"),
    (
        "`snapshot`",
        "`stream`, `snapshot`, `epoch`",
        "the stream's id, the id of its snapshot, the epoch in which it was made",
    ),
    (
        "",
        "`resourceVersion`, `time`, `count`",
        "the version of the state, when the snapshot ended, how many objects it has",
    ),
    ("", "`partitions`", "`partition`, `begin`, `end` (offsets of its markers), `count`, `digest`"),
)


def usage(command: argparse.ArgumentParser) -> str:
    """One line. Made here, as argparse's own differs between versions of Python."""
    words = [command.prog]
    for action in command._actions:
        name = value_name(action)
        if isinstance(action, argparse._HelpAction):
            continue
        if action.option_strings:
            words.append(f"[{action.option_strings[0]}{' ' + name if action.nargs != 0 else ''}]")
        else:
            words.append(f"[{name}...]" if action.nargs == "*" else name)
    return " ".join(words)


def value_name(action: argparse.Action) -> str:
    """The placeholder of an argument's value."""
    return (
        "|".join(map(str, action.choices))
        if action.choices
        else str(action.metavar or action.dest.upper())
    )


def argument(action: argparse.Action) -> list[str]:
    """One line of a command's table."""
    if not action.option_strings:
        return [code(value_name(action)), action.help or ""]
    name = ", ".join(action.option_strings)
    return [code(name if action.nargs == 0 else f"{name} {value_name(action)}"), action.help or ""]


def exit_codes() -> str:
    """Every exit code."""
    rows = [[code(number), meaning] for number, meaning in EXIT_CODES.items()]
    return page(
        "Exit codes", "watchrelay/core/exit_codes.py", table(("code", "meaning"), rows), EXIT_NOTES
    )


EXIT_NOTES = """\
`run`, `demo` and `tail` without `--until-end` run until they are interrupted, and then exit with 0.

`run` exits only when it is stopped (0 once drained, 1 if `shutdown.drainTimeout` passed), when another relay claimed its streams (75),
when its config is invalid at start (78), when another program uses its `observe.listen` (1), or because of a defect in a part that all
streams share (1). An outage of the API server or of Kafka, a missing right, a missing resource, a refused topic and an unexpected error
in one stream do not stop it.

`validate --connect` returns 69 if something cannot be reached, 78 if operator action is required (rights, topic, replication
factor), and 0, with a warning, for a resource that is not served yet; with `--strict` 78 for a warning that `acceptWarnings` does not name.
`verify` returns 0 only if every check passes, and with `--cluster` only if every stream that has objects on its topic was compared.
`snapshot` returns 69 if no relay writes the streams, and 1 if the snapshot was not complete within `--timeout`.

Once the reader of its output has ended (`watchrelay tail | head`), a command that only prints (`tail`, `demo`, `rbac`, `asyncapi`, `schema`,
`completion`, `version`, `--help`) ends with 0. Any other command ends with its own code if it has finished by then, and with 1 if it has not.
"""

# ---- metrics, alerts -----------------------------------------------------------------------------


def metrics() -> str:
    """Every metric."""
    rows = [
        [code(exported(each)), each.kind, ", ".join(map(code, each.labels)), each.help]
        for each in CATALOGUE.values()
    ]
    return page(
        "Metrics",
        "the catalogue (watchrelay/observe/metrics.py)",
        METRICS_INTRODUCTION,
        table(("name", "kind", "labels", "meaning"), rows),
    )


METRICS_INTRODUCTION = """\
Served on `/metrics` of `observe.listen`. Labels come from closed sets: no label holds the name, namespace or uid of an object. Timestamps
are gauges in Unix time; ages are computed in PromQL (`time() - ...`). All series of a stream exist from its start, so that rates begin at
zero. A histogram has the series `_bucket`, `_sum` and `_count`. `cluster` is the `cluster` of the config; the series of the process have it
too.

On Linux there are also CPU, memory, open files and start time of the process, with the names that every client library uses:
`process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_virtual_memory_bytes`, `process_open_fds`, `process_max_fds` and
`process_start_time_seconds`; and of Python's garbage collector `python_gc_collections_total`, `python_gc_objects_collected_total` and
`python_gc_objects_uncollectable_total`, by generation.
"""


# ---- logs ----------------------------------------------------------------------------------------


LOGS_INTRODUCTION = """\
One line per message on stderr, as JSON unless stderr is a terminal: `time`, `level`, `logger`, `message`, and the fields of the table, where
`...` means further fields. The text of a message is constant: search and count by it. The field `error` is one line
with the problem and, if known, the fix; an unexpected error has the field `traceback`, the first time it occurs at that place in the code.
If a message has several levels, the worst is for new or severe cases. Messages of libraries have their own loggers, at `warning` and
above, and a traceback only at `debug`. Objects and credentials are never logged.
"""


def logs(lines: Iterable[Line]) -> str:
    """Every message that the daemon and its commands log."""
    rows = [
        [
            ", ".join(line.levels),
            line.message,
            ", ".join(map(code, line.fields)),
            code(line.logger.removeprefix("watchrelay.")),
        ]
        for line in lines
    ]
    head = ("level", "message", "fields", "logger, after `watchrelay.`")
    return page(
        "Log messages",
        "the calls of the loggers in watchrelay/",
        LOGS_INTRODUCTION,
        table(head, rows),
    )


def exported(metric: MetricDescription) -> str:
    """The name on `/metrics`."""
    return f"watchrelay_{metric.name}{'_total' if metric.kind == 'counter' else ''}"


def alerts(rules: Mapping[str, Any]) -> str:
    """Every alert."""
    parts = [ALERTS_INTRODUCTION]
    rows, details = [], []
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        name, annotations = rule["alert"], rule["annotations"]
        rows.append(
            [
                f"[{name}](../runbooks/{name}.md)",
                rule["labels"]["severity"],
                rule.get("for", "at once"),
                plain(annotations["summary"]),
            ]
        )
        details += [
            f"### {name}\n",
            plain(annotations["description"]) + "\n",
            "```promql\n" + rule["expr"].strip() + "\n```\n",
        ]
    parts += [
        table(("alert, runbook", "severity", "after", "says"), rows),
        "## Expressions\n",
        *details,
    ]
    return page("Alerts", "helm/watchrelay/files/rules/watchrelay.yaml", *parts)


ALERTS_INTRODUCTION = """\
The chart installs them with `prometheusRule.enabled: true`; `prometheusRule.disabled` omits some by name. Without the Prometheus
operator, load `helm/watchrelay/files/rules/watchrelay.yaml` as a rule file. They expect `job="watchrelay"`. Each has a test in which it
fires and one in which it does not. A number before a comment is the default of that name in the chart's `prometheusRule.thresholds`;
`prometheusRule.for` sets by name how long the condition must last.
"""


def plain(text: str) -> str:
    """An annotation without its templates."""
    text = re.sub(r"{{ with \$labels\.instance }}.*?{{ end }}", "", text)
    return re.sub(
        r"{{ ?\$labels\.(\w+) ?}}", r"*\1*", re.sub(r"{{ ?\$value[^}]*}}", "*value*", text)
    )


# ---- records -------------------------------------------------------------------------------------


def headers() -> str:
    """Every header, and which records have it."""
    order = (*OBJECT_TYPES, *MARKER_TYPES)
    mark = {True: "yes"}
    rows = [
        [
            code(name),
            *(
                mark.get(name in REQUIRED[record], "maybe" if name in OPTIONAL[record] else "")
                for record in order
            ),
            about["description"],
        ]
        for name, about in HEADERS.items()
    ]
    kinds = table(
        ("in the table", "`ce_type`"), ([record, code(TYPES[record])] for record in order)
    )
    return page(
        "Headers",
        "watchrelay/admin/asyncapi.py",
        HEADERS_INTRODUCTION,
        kinds,
        "## By record\n",
        table(("header", *order, "meaning"), rows),
    )


HEADERS_INTRODUCTION = """\
The exact meaning of each header is in [section 3 of the record contract](../record-contract.md#3-records-of-a-state-topic); this
table shows which records have it. "yes": always; "maybe": if it applies; empty: never. `watchrelay asyncapi` prints the same for the
topics of your config, as an AsyncAPI 3.0 document.
"""

TOPIC_KINDS: dict[TopicKind, str] = {
    "state": "state topic",
    "control": "control topic",
    "signal": "signal topic",
}


def topics() -> str:
    """The settings of topics that the relay creates."""
    specs = {
        kind: TopicSpec(name="", kind=kind, snapshot_interval_s=3600.0).configs()
        for kind in TOPIC_KINDS
    }
    names = list(dict.fromkeys(name for configs in specs.values() for name in configs))
    rows = [
        [code(name), *(code(configs.get(name, "")) for configs in specs.values())] for name in names
    ]
    judged = [
        [code(each.name), each.right, ", ".join(each.why), ", ".join(sorted(each.refuses))]
        for each in SETTINGS
        if each.why
    ]
    return page(
        "Topics",
        "watchrelay/kafka/topic_settings.py",
        TOPICS_INTRODUCTION,
        table(("setting", *TOPIC_KINDS.values()), rows),
        TOPICS_NOTES,
        table(("setting", "right", "judged on", "refused on"), judged),
        TOPICS_JUDGED,
    )


TOPICS_INTRODUCTION = """\
The settings of topics that the relay creates if `kafka.createTopics` is true, for a snapshot interval of one hour and the other defaults. `watchrelay
topics` lists and checks the topics of your config, `watchrelay topics --create` creates missing ones.
"""
TOPICS_NOTES = """\
A setting that the brokers refuse when a topic is created, as some compatible systems and managed services do, is left
out, and the topic is judged as it is then. If the default of the brokers for `max.compaction.lag.ms` is below
`min.compaction.lag.ms`, a new topic gets that value for both.

If you create the topics yourself, use these settings.

## What is judged
The relay judges the settings of a topic, inherited ones included, when a stream starts on it and every 10 minutes after
that; `validate --connect` and `topics` do the same. A value that is refused stops its stream at its start, with the
command that changes it; a topic with fewer partitions than the stream was started with is refused, too. Any other wrong
value, and what somebody changes while the stream runs, is a warning: on the status page, in the log, in the metric
`watchrelay_topics_at_risk`, and by the alert [WatchRelayTopicSettings](../runbooks/WatchRelayTopicSettings.md). There is
one line for each cause over all topics, with the command that cures it.

"""
TOPICS_JUDGED = """\
A replication factor of 1 is a warning where `kafka.replicationFactor` is higher. Not judged, as they move the time of
removals and not what is removed: `segment.ms`, `segment.jitter.ms`, `segment.index.bytes`, `index.interval.bytes`,
`min.cleanable.dirty.ratio`, `file.delete.delay.ms`, `preallocate`. A setting that the brokers do not report is not
judged. Reasons: [record contract, section 2](../record-contract.md#2-topics).
"""
