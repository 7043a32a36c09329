"""Every mistake is reported once, with file, line, path and cure; and all of them together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.config.problems import problems
from watchrelay.config import load_settings
from watchrelay.core.errors import ConfigError

GOOD = "cluster: c\nkafka: {bootstrapServers: [k:9092]}\nresources:\n"
"""Three lines; what a case adds to them begins on line 4."""


ENTRIES = {
    # unknown keys
    "- resource: pods\n  labelSelektor: x": "5: resources[0].labelSelektor: unknown key (did you mean labelSelector?)",
    "- resource: pods\n  label_selector: x": "5: resources[0].label_selector: unknown key (did you mean labelSelector?)",
    "- resource: pods\ntopicPrefix: x": "5: topicPrefix: unknown key (did you mean kafka.topicPrefix?)",
    "- resource: pods\nobserve: {zzz: 1}": "5: observe.zzz: unknown key (there are listen, logFormat, logLevel, runbookBaseUrl)",
    "- resource: pods\nobserve: {runbookBaseUrl: 'javascript:x'}": '5: observe.runbookBaseUrl: "javascript:x" is no address of a web site, such as https://git.example.com',
    # wrong types
    "- pods": "4: resources[0]: must be a mapping of keys, not a single value (write one resource, such as resource: pods)",
    "- namespaces: [a]": "4: resources[0].resource: is required (write one resource, such as resource: pods)",
    "- resource: pods\n  namespaces: '*'": "5: resources[0].namespaces: must be a list, not a single value",
    "- resource: pods\n  labelSelector: {app: on}": "5: resources[0].labelSelector: must be text, not a mapping (write it as for kubectl, such as app=web,tier in (a,b))",
    "- resource: pods\n  namespaces: a, b": "5: resources[0].namespaces: must be a list, not a single value (write [a, b])",
    "- resource: pods\n  namespaces: [no]": "5: resources[0].namespaces[0]: must be text, not true or false (put it in quotes)",
    "- resource: pods\n  topic: 1.10": "5: resources[0].topic: must be text, not 1.1 (put it in quotes)",
    "- resource: pods\n  topic:": "5: resources[0].topic: has no value (write one, or remove the key)",
    "- resource: pods\n  bookmarks: 'true'": '5: resources[0].bookmarks: must be true or false, not "true" (write it without quotes)',
    "- resource: pods\n  pageSize: '5'": '5: resources[0].pageSize: must be a whole number, not "5" (write it without quotes)',
    "- resource: pods\n  pageSize: '\u0661'": '5: resources[0].pageSize: must be a whole number, not "\u0661"',
    "- resource: pods\n  pageSize: 1.5": "5: resources[0].pageSize: must be a whole number, not 1.5",
    "- resource: pods\n  pageSize: true": "5: resources[0].pageSize: must be a whole number, not true or false",
    "- resource: pods\n  pageSize: -1": "5: resources[0].pageSize: must be at least 0, not -1",
    "- resource: pods\n  partitions: 0": "5: resources[0].partitions: must be at least 1, not 0",
    "- resource: pods\n  scope: none": '5: resources[0].scope: must be namespace or cluster, not "none"',
    "- resource: pods\n  initialList: stream": '5: resources[0].initialList: must be auto, paged or streaming, not "stream"',
    "- resource: [pods]": "4: resources[0].resource: must be text, not a list (write one resource, such as resource: pods)",
    "- resource: pods\nobserve: 5": "5: observe: must be a mapping of keys, not a single value",
    # durations and sizes
    "- resource: pods\nheartbeatInterval: 10": "5: heartbeatInterval: 10 has no unit: write 10s",
    "- resource: pods\nheartbeatInterval: '10'": "5: heartbeatInterval: 10 has no unit: write 10s",
    "- resource: pods\nheartbeatInterval: 0": "5: heartbeatInterval: must be at least 1s, not 0",
    "- resource: pods\nheartbeatInterval: 500ms": "5: heartbeatInterval: must be at least 1s, not 500ms",
    "- resource: pods\nheartbeatInterval: 1d": '5: heartbeatInterval: "1d" is not a duration, such as 500ms, 10s, 5m or 1h30m',
    "- resource: pods\nheartbeatInterval: 1:30": '5: heartbeatInterval: "1:30" is not a duration, such as 500ms, 10s, 5m or 1h30m',
    "- resource: pods\nheartbeatInterval: true": "5: heartbeatInterval: must be a duration, such as 500ms, 10s, 5m or 1h30m",
    "- resource: pods\n  snapshotInterval: 4s": "5: resources[0].snapshotInterval: must be at least 5s, or 0 to turn it off, not 4s",
    "- resource: pods\nqueueBytes: lots": "5: queueBytes: must be a size, such as 512KiB, 64MiB or 1GiB",
    "- resource: pods\nqueueBytes: 1": '5: queueBytes: must be at least 1KiB, not "1"',
    "- resource: pods\nsharding: {sessionTimeout: 5s}": "5: sharding.sessionTimeout: must be at least 6s, not 5s",
    "- resource: pods\nsharding: {balanceAfter: 500ms}": "5: sharding.balanceAfter: must be at least 1s, not 500ms",
    "- resource: pods\nsharding: {instance: relay/0}": '5: sharding.instance: "relay/0" is not the name of a replica: use letters, digits, dot, underscore and hyphen, at most 249',
    "- resource: pods\nrevision: -1": "5: revision: must be at least 0, not -1",
    # names
    "- resource: pods nodes": '4: resources[0].resource: "pods nodes" has a space in it: one entry names one resource',
    "- resource: ''": "4: resources[0].resource: must not be empty: write a resource, such as pods or deployments.apps",
    '- resource: "*"': '4: resources[0].resource: "*" needs a group, as in "*.example.com"; resources of the core group are named one by one',
    "- resource: pods.core": '4: resources[0].resource: "pods.core": the core group has no name: write pods, not pods.core',
    "- resource: widgets/1": '4: resources[0].resource: "widgets/1" is not a resource name: a version follows the slash, as in widgets.example.com/v1',
    "- resource: bindings": "4: resources[0].resource: bindings cannot be listed and watched",
    "- resource: componentstatuses": "4: resources[0].resource: componentstatuses cannot be listed and watched",
    "- resource: pods\n  partitions: 2\n  split: 3": "6: resources[0].split: 3 is over the 2 partitions of the topic: a part without a partition has nothing to write (set split to 2 or less, or partitions to 3 or more for a topic that does not exist yet)",
    "- resource: pods\n  name: one\n  partitions: 2\n  split: 2": "7: resources[0].split: cannot be combined with name, which is a single object (leave the key out)",
    "- resource: pods\n  split: 0": "5: resources[0].split: must be at least 1, not 0",
    "- resource: pods\n  namespaces: [Shop]": '5: resources[0].namespaces[0]: "Shop" is not a namespace (without the key all are watched): use small letters, digits and hyphens, at most 63',
    "- resource: pods\n  namespaces: [a, a]": '5: resources[0].namespaces: "a" is in the list twice',
    "- resource: pods\n  id: Pods": '5: resources[0].id: "Pods" is not a stream id: use small letters, digits, dot, @ and hyphen, at most 317',
    f"- resource: pods\n  id: {'a' * 318}": '5: resources[0].id: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..." is not a stream id: use small letters, digits, dot, @ and hyphen, at most 317',
    "- resource: pods\n  name: a/b": '5: resources[0].name: "a/b" is not the name of an object: use printable text without blank, comma, slash and percent sign, at most 253',
    '- resource: pods\n  name: "a\\u202eb"': '5: resources[0].name: "a\\u202eb" is not the name of an object: use printable text without blank, comma, slash and percent sign, at most 253',
    "- resource: pods\n  topic: ..": '5: resources[0].topic: ".." is not a topic name: use letters, digits, dot, underscore and hyphen, at most 249',
    "- resource: pods\n  topic: a b": '5: resources[0].topic: "a b" is not a topic name: use letters, digits, dot, underscore and hyphen, at most 249',
    f"- resource: pods\n  topic: {'a' * 250}": '5: resources[0].topic: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..." is not a topic name: use letters, digits, dot, underscore and hyphen, at most 249',
    "- resource: pods\n  topic: k8s.c.control": '5: resources[0].topic: the topic "k8s.c.control" is the relay\'s own, for claims and snapshots (name another)',
    "- resource: pods\nobserve: {listen: 8080}": "5: observe.listen: must be text, not 8080 (write host:port, such as :8080)",
    "- resource: pods\nobserve: {listen: '8080'}": '5: observe.listen: "8080" is not host:port, such as :8080; a port is at most 65535, and an IPv6 address is written in brackets',
    "- resource: pods\nobserve: {listen: 'h:99999'}": '5: observe.listen: "h:99999" is not host:port, such as :8080; a port is at most 65535, and an IPv6 address is written in brackets',
    # selectors
    "- resource: pods\n  labelSelector: ''": '5: resources[0].labelSelector: "" is not a label selector: write terms such as app=web, tier in (a,b) or !canary with commas between them, or leave the key out to take all objects',
    "- resource: pods\n  labelSelector: a=b,": '5: resources[0].labelSelector: "a=b," is not a label selector: write terms such as app=web, tier in (a,b) or !canary with commas between them, or leave the key out to take all objects',
    "- resource: pods\n  labelSelector: a in (b": '5: resources[0].labelSelector: "a in (b" is not a label selector: write terms such as app=web, tier in (a,b) or !canary with commas between them, or leave the key out to take all objects',
    "- resource: pods\n  labelSelector: a in ()": '5: resources[0].labelSelector: "a in ()" is not a label selector: write terms such as app=web, tier in (a,b) or !canary with commas between them, or leave the key out to take all objects',
    "- resource: pods\n  fieldSelector: spec.nodeName": '5: resources[0].fieldSelector: "spec.nodeName" is not a field selector: write field=value or field!=value with commas between them, or leave the key out to take all objects',
    # combinations
    "- resource: pods\n  namespaces: [a]\n  excludeNamespaces: [b]": "6: resources[0].excludeNamespaces: cannot be combined with namespaces (keep one of the two)",
    "- resource: pods\n  namespaces: [a, b]\n  name: x": "6: resources[0].name: cannot be combined with more than one namespace (write an entry for each namespace)",
    "- resource: pods\n  name: x\n  fieldSelector: metadata.name=y": "6: resources[0].fieldSelector: metadata.name cannot be combined with name (keep one of the two)",
    "- resource: pods\n  initialList: streaming\n  bookmarks: false": "6: resources[0].bookmarks: false cannot be combined with initialList: streaming, which ends in a bookmark",
    "- resource: pods\n  initialList: streaming\n  listSemantic: any": "6: resources[0].listSemantic: any cannot be combined with initialList: streaming, always the newest",
    "- resource: pods\n  includeSecretData: true": "5: resources[0].includeSecretData: includeSecretData is legal for secrets alone, not for pods (leave the key out)",
    '- resource: "*.example.com"\n  includeSecretData: true\n  id: x\n  name: y': "5: resources[0].includeSecretData: includeSecretData is legal for secrets alone, not for *.example.com (leave the key out)\n6: resources[0].id: id cannot be combined with a wildcard, which means several streams\n7: resources[0].name: name cannot be combined with a wildcard: it names one object",
    "- resource: pods\ndefaults: {excludeNamespaces: [a], namespaces: [b]}": "5: defaults.excludeNamespaces: cannot be combined with namespaces (keep one of the two)",
    "- resource: pods\ndefaults: {name: a, id: b, resource: c}": "5: defaults.name: unknown key (did you mean resources[].name?)\n5: defaults.id: unknown key (did you mean resources[].id?)\n5: defaults.resource: unknown key (did you mean resources[].resource?)",
    # duplicates
    "- resource: pods\n- resource: po": '5: resources[1].resource: stream "pods" is a duplicate of that of resources[0] (give one of the two another id, or remove it)',
    "- resource: pods\n  namespaces: [a, b]\n- resource: Pod\n  namespaces: [b]": '6: resources[1].resource: stream "pods@b" is a duplicate of that of resources[0] (give one of the two another id, or remove it)',
    "- resource: pods\n  topic: t\n- resource: pods": '6: resources[1].resource: stream "pods" is a duplicate of that of resources[0] (give one of the two another id, or remove it)',
    "- resource: nodes\n- resource: nodes\n  id: x": '5: resources[1].resource: can have the same objects as resources[0] on the same topic "k8s.c.core.nodes" (resources[0] is on line 4; give one of the two another `topic`; label and field selectors do not separate them: an object that changes moves from one to the other)',
    "- resource: pods\n  id: x\n- resource: nodes\n  id: x": '7: resources[1].id: stream "x" is a duplicate of that of resources[0] (give one of the two another id, or remove it)',
    '- resource: "*.example.com"\n- resource: widgets.example.com': '5: resources[1].resource: stream "widgets.example.com" is a duplicate of that of resources[0] (give one of the two another id, or remove it)',
    '- resource: "*.apps"\n- resource: deploy': '5: resources[1].resource: stream "deployments.apps" is a duplicate of that of resources[0] (give one of the two another id, or remove it)',
    "- {resource: pods, topic: t}\n- {resource: nodes, topic: t, partitions: 6}": '5: resources[1].partitions: 6 here, but 1 in resources[0] for the same topic "t" (set the same number in both)',
    "- {resource: pods, topic: a.b}\n- {resource: nodes, topic: a_b}": '5: resources[1].topic: the topics "a.b" and "a_b" differ only in "." and "_", which Kafka refuses',
    "- {resource: pods, id: a}\n- {resource: pods, id: b}": '5: resources[1].resource: can have the same objects as resources[0] on the same topic "k8s.c.core.pods" (resources[0] is on line 4; give one of the two another `topic`, or both disjoint `namespaces`; label and field selectors do not separate them: an object that changes moves from one to the other)',
    "- resource: pods\n- resource: nodes\n  resource: nodes": "6: resources[1].resource: is given twice, first on line 5 (keep one of the two)",
    "- resource: !!python/name:os.system pods": "4: resources[0].resource: begins with !, which makes it a YAML tag, and no tag is used here (put the value in quotes)",
}


@pytest.mark.parametrize("entries", ENTRIES, ids=lambda text: text.replace("\n", " ")[:60])
def test_a_mistake_is_reported_with_its_line_and_what_to_write(
    tmp_path: Path, entries: str
) -> None:
    assert problems(tmp_path, GOOD + entries + "\n") == [
        f"w.yaml:{line}" for line in ENTRIES[entries].splitlines()
    ]


KAFKA = {
    "bootstrapServers: []": "must not be empty (write at least one item)",
    "bootstrapServers: [a]": '"a" is not host:port, such as kafka-0:9092; a port is at most 65535, and an IPv6 address is written in brackets',
    "bootstrapServers: [kafka://a:1]": '"kafka://a:1" is not host:port, such as kafka-0:9092; a port is at most 65535, and an IPv6 address is written in brackets',
    "bootstrapServers: ['::1:9092']": '"::1:9092" is not host:port, such as kafka-0:9092; a port is at most 65535, and an IPv6 address is written in brackets',
    "bootstrapServers: a:1": "must be a list, not a single value (write a list of brokers, such as [kafka-0:9092])",
    "{}": "is required (write a list of brokers, such as [kafka-0:9092])",
    "{bootstrapServers: [a:1], flushInterval: 200ms}": "must be at most 100ms, not 200ms",
    "{bootstrapServers: [a:1], flushInterval: 0ms}": "must be at least 1ms, not 0",
    "{bootstrapServers: [a:1], replicationFactor: 1}": "minInsyncReplicas (2, the default) is over replicationFactor (1): every write would fail",
    "{bootstrapServers: [a:1], topicTemplate: '{prefix}.{ressource}'}": '"{prefix}.{ressource}": the placeholders are {prefix}, {cluster}, {group}, {resource}',
    "{bootstrapServers: [a:1], topicTemplate: '{prefix'}": '"{prefix": the placeholders are {prefix}, {cluster}, {group}, {resource}',
    "{bootstrapServers: [a:1], topicPrefix: a/b}": '"a/b" is not a topic name: use letters, digits, dot, underscore and hyphen, at most 249',
    "{bootstrapServers: [a:1], security: {protocol: TLS}}": 'must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, not "TLS"',
    "{bootstrapServers: [a:1], security: {caFile: /x}}": "means nothing with protocol PLAINTEXT (set protocol to SSL)",
    "{bootstrapServers: [a:1], security: {passwordFile: /x}}": "means nothing with protocol PLAINTEXT (set protocol to SASL_SSL)",
    "{bootstrapServers: [a:1], security: {protocol: SASL_SSL}}": "SASL_SSL needs a mechanism (such as SCRAM-SHA-512)",
    "{bootstrapServers: [a:1], security: {protocol: SASL_SSL, mechanism: SCRAM}}": 'must be PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM, not "SCRAM"',
    "{bootstrapServers: [a:1], security: {protocol: SASL_SSL, mechanism: PLAIN, usernameFile: /u}}": "mechanism PLAIN needs password or passwordFile",
    "{bootstrapServers: [a:1], security: {protocol: SASL_SSL, mechanism: PLAIN, username: u, password: p, passwordFile: /p}}": "cannot be combined with password (keep one of the two)",
    "{bootstrapServers: [a:1], security: {protocol: SASL_SSL, mechanism: OAUTHBEARER}}": "mechanism OAUTHBEARER needs tokenFile or tokenCommand",
    "{bootstrapServers: [a:1], security: {protocol: SASL_SSL, mechanism: OAUTHBEARER, tokenCommand: []}}": "must not be empty: write the program and its arguments",
    "{bootstrapServers: [a:1], security: {protocol: SASL_PLAINTEXT, mechanism: AWS_MSK_IAM}}": "mechanism AWS_MSK_IAM needs awsRegion\nmechanism AWS_MSK_IAM needs protocol SASL_SSL",
    "{bootstrapServers: [a:1], security: {protocol: SSL, certFile: /c}}": "needs keyFile too",
    "{bootstrapServers: [a:1], security: {protocol: SSL, keyPasswordFile: /c}}": "needs keyFile too",
}


@pytest.mark.parametrize("section", KAFKA)
def test_a_kafka_section_that_cannot_work_is_refused(tmp_path: Path, section: str) -> None:
    text = f"cluster: c\nresources: [resource: pods]\nkafka:\n  {section}\n"
    found = problems(tmp_path, text.replace("[resource: pods]", "[{resource: pods}]"))
    expected = KAFKA[section].splitlines()
    assert len(found) == len(expected)
    found.sort(key=lambda line: line.split(": ", 2)[-1])
    assert all(each in line for each, line in zip(sorted(expected), found, strict=True))


def test_all_mistakes_of_a_file_are_reported_together_in_file_order_and_then_those_of_other_sources(
    tmp_path: Path,
) -> None:
    text = """\
kafka:
  topicPrefx: x
  bootstrapServers: [k:9092]
  replicationFactor: 1
resources:
  - resource: pods
    drop: [metadata.uid, a..b]
    namespaces: [a]
    excludeNamespaces: [b]
  - resource: po
    namespaces: [a]
heartbeatInterval: 10
"""
    environ = {"WATCHRELAY_OBSERVE__LISTEN": "x", "WATCHRELAY_KAFKA__PARTITONS": "3"}
    found = problems(tmp_path, text, "queueBytes=many", environ=environ)
    assert [line.split(": ")[0] for line in found] == [
        "w.yaml:1",  # cluster is missing
        "w.yaml:2",
        "w.yaml:4",
        "w.yaml:7",
        "w.yaml:7",
        "w.yaml:9",
        "w.yaml:10",
        "w.yaml:12",
        "WATCHRELAY_KAFKA__PARTITONS",
        "WATCHRELAY_OBSERVE__LISTEN",
        "--set",
    ]
    assert (
        found[0] == "w.yaml:1: cluster: is required (name the source, such as cluster: prod-eu-1)"
    )
    assert found[8] == (
        "WATCHRELAY_KAFKA__PARTITONS: is not a setting (did you mean WATCHRELAY_KAFKA__PARTITIONS?)"
    )
    assert found[10] == "--set: queueBytes: must be a size, such as 512KiB, 64MiB or 1GiB"


def test_what_follows_from_a_mistake_alone_is_not_reported_beside_it(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        GOOD + "- resource: pods\n  namespaces: [A]\n- resource: pods\n  namespaces: [b]\n",
    )
    assert len(found) == 1
    assert '"A" is not a namespace' in found[0]


@pytest.mark.parametrize("selector", ["a in (" + " , " * 99 + "!", "a = , " * 99 + "!"])
def test_a_mistake_behind_many_commas_is_no_reason_to_hang(tmp_path: Path, selector: str) -> None:
    found = problems(tmp_path, f"{GOOD}- resource: pods\n  labelSelector: {selector}\n")
    assert "is not a label selector" in found[0]


@pytest.mark.parametrize("value", ["x" * 300_000, "9" * 300_000])
@pytest.mark.parametrize(
    "key",
    ["kafka: {{bootstrapServers: [{}]}}", "kafka: {{partitions: {}}}", "resources: [{}]", "{}: 1"],
)
def test_a_message_that_repeats_a_value_is_short_and_still_says_what_is_wrong(
    tmp_path: Path, key: str, value: str
) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(f"cluster: c\n{key.format(value)}\n")
    with pytest.raises(ConfigError) as refused:
        load_settings(str(file), environ={})
    for line in str(refused.value).splitlines():
        assert len(line) < 2500
        assert len(line) < 500 or re.search(r"must|is not|unknown key|names no", line), line[-300:]


def test_a_secret_is_never_in_a_message(tmp_path: Path) -> None:
    text = (
        "cluster: c\nkafka: {bootstrapServers: [k:1], security: {password: "
        "[hunter2]}}\nresources: [{resource: pods}]\n"
    )
    environ = {"WATCHRELAY_KAFKA__SECURITY": '{"password": "hunter2"'}
    assert "hunter2" not in "\n".join(problems(tmp_path, text)) + "\n".join(
        problems(tmp_path, text, environ=environ)
    )


def test_an_unknown_key_of_the_command_line_is_blamed_on_the_command_line(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, GOOD + "  - {resource: pods}\n", "a.b.c.d=1")
    assert problem.startswith("--set: a: unknown key")
