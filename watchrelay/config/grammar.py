"""The syntax of single values. Each check raises ValueError with one line: the mistake and its
cure."""

from __future__ import annotations

import re
import shlex
from typing import Final

CLUSTER_PATTERN: Final = r"^[A-Za-z0-9._-]+$"
STREAM_ID_PATTERN: Final = r"^[a-z0-9.@-]+$"
STREAM_ID_MAX: Final = 317
"""The longest that the relay derives: the name of a custom resource definition, at most 253
characters, then @ and a namespace."""
TOPIC_PATTERN: Final = r"^[a-zA-Z0-9._-]+$"
TOPIC_MAX: Final = 249
"""Source: Kafka's Topic.java: a log directory's name, suffix included, must fit 255 characters."""

PLACEHOLDERS: Final = ("prefix", "cluster", "group", "resource")

_TOPIC = re.compile(r"[a-zA-Z0-9._-]+\Z")
_STREAM_ID = re.compile(r"[a-z0-9.@-]+\Z")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_HOST = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?\.?\Z")
_QUALIFIED_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?\Z")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?\Z")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_DNS_LABEL_MAX: Final = 63
_DNS_SUBDOMAIN_MAX: Final = 253
_PORT_MAX: Final = 65535


def check_cluster(text: str) -> None:
    """The name of the source, part of topic names and of every record's source."""
    if not text:
        raise ValueError("must not be empty: name the cluster, such as prod-eu-1")
    if not _TOPIC.match(text):
        raise ValueError(
            f'"{text}" has a character that topic names cannot hold: use letters, digits, dot, '
            "underscore and hyphen"
        )


def check_topic(text: str) -> None:
    """A full topic name. Source: Kafka's Topic.java."""
    if not text:
        raise ValueError("must not be empty")
    if text in (".", ".."):
        raise ValueError(f'"{text}" is not a legal topic name')
    if len(text) > TOPIC_MAX:
        raise ValueError(f"a topic name has at most {TOPIC_MAX} characters, this one {len(text)}")
    if not _TOPIC.match(text):
        raise ValueError(
            f'"{text}" is not a legal topic name: use letters, digits, dot, underscore and hyphen'
        )


def check_topic_template(text: str) -> None:
    """Text with `{prefix}`, `{cluster}`, `{group}` and `{resource}` in it."""
    known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
    for name in _PLACEHOLDER.findall(text):
        if name not in PLACEHOLDERS:
            raise ValueError(f"{{{name}}} is not a placeholder: there are {known}")
    rest = _PLACEHOLDER.sub("x", text)
    if "{" in rest or "}" in rest:
        raise ValueError(f'"{text}" has a brace without its partner')
    check_topic(rest)


def check_stream_id(text: str) -> None:
    """The `id` of an entry."""
    if len(text) > STREAM_ID_MAX:
        raise ValueError(
            f'"{text[:40]}..." has {len(text)} characters: a stream id has at most '
            f"{STREAM_ID_MAX}, choose a shorter one"
        )
    if not _STREAM_ID.match(text):
        raise ValueError(
            f'"{text}" is not a stream id: use small letters, digits, dot, @ and hyphen'
        )


def check_namespace(text: str) -> None:
    """The name of a namespace. Source: RFC 1123 label, as Kubernetes checks it."""
    if not text:
        raise ValueError("a namespace must not be empty")
    if text == "*":
        raise ValueError('"*" is not a namespace: leave the key out for all namespaces')
    if not _DNS_LABEL.match(text) or len(text) > _DNS_LABEL_MAX:
        raise ValueError(
            f'"{text}" is not a namespace: use small letters, digits and hyphens, at most '
            f"{_DNS_LABEL_MAX}"
        )


def check_object_name(text: str) -> None:
    """The name of one object. Source: what Kubernetes permits in a URL path, the loosest rule of
    any resource."""
    if not text:
        raise ValueError("must not be empty: name an object, or leave the key out")
    if (
        text in (".", "..")
        or "/" in text
        or "%" in text
        or len(text) > _DNS_SUBDOMAIN_MAX
        or any(c.isspace() or c == "," for c in text)
    ):
        raise ValueError(f'"{text}" is not the name of an object')


def check_address(text: str, *, host_needed: bool) -> tuple[str, int]:
    """`host:port`, an IPv6 address in brackets; the parts."""
    example = "kafka-0:9092" if host_needed else "0.0.0.0:8080"
    if "@" in text:  # not repeated: before it may be a password, as in URLs
        raise ValueError(
            f"has an @: write host:port alone, such as {example}; users and passwords have keys "
            "of their own"
        )
    if "://" in text:
        raise ValueError(f'"{text}" has a scheme: write host:port alone, such as {example}')
    if "," in text:
        raise ValueError(f'"{text}" has a comma: write each address as an item of its own')
    host, colon, port = text.rpartition(":")
    if not colon or (host.startswith("[") and not host.endswith("]")):
        raise ValueError(f'"{text}" has no port: write host:port, such as {example}')
    if (
        not re.fullmatch(r"[0-9]{1,6}", port)
        or int(port) > _PORT_MAX
        or (host_needed and int(port) == 0)
    ):
        raise ValueError(
            f'"{text}": "{port}" is not a port between {1 if host_needed else 0} and {_PORT_MAX}'
        )
    if host.startswith("["):
        if not re.fullmatch(r"\[[0-9A-Fa-f:.]+(%\w+)?\]", host):
            raise ValueError(f'"{text}": "{host}" is not an IPv6 address')
        return host[1:-1], int(port)
    if ":" in host:
        raise ValueError(f'"{text}": write an IPv6 address in brackets, as in [::1]:{port}')
    if not host and not host_needed:
        return "", int(port)
    if not _HOST.match(host):
        raise ValueError(f'"{text}" is not host:port: write something such as {example}')
    try:
        host.encode("idna")  # as `socket` does
    except UnicodeError:
        raise ValueError(
            f'"{text}": a part of the host between dots is empty, or longer than 63 characters'
        ) from None
    return host, int(port)


def check_field_selector(text: str) -> None:
    """A field selector, as far as it is wrong for every resource. Source:
    k8s.io/apimachinery/pkg/fields, ParseSelector."""
    if not text.strip():
        raise ValueError("must not be empty: leave the key out to take all objects")
    for term in re.split(r"(?<!\\),", text):
        if term.strip() and not re.match(r"\s*[^=!\s]+\s*(==|!=|=)", term):
            raise ValueError(f'"{term.strip()}" is not field=value or field!=value')


def check_label_selector(text: str) -> None:
    """A label selector. Source: k8s.io/apimachinery/pkg/labels, Parse: the same grammar, so what
    passes here passes there."""
    if not text.strip():
        raise ValueError("must not be empty: leave the key out to take all objects")
    for term in _label_terms(text):
        _check_label_term(term)


def check_command(value: object) -> tuple[str, ...]:
    """A program and its arguments, from one line as a shell would split it or from a list; no shell
    runs it."""
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"cannot be split into words: {str(error).lower()}") from error
    elif isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
        words = list(value)
    else:
        raise ValueError("must be a command line, or a list of its words")
    if not words or not words[0]:
        raise ValueError("must not be empty: write the program and its arguments")
    return tuple(words)


def _label_terms(text: str) -> list[str]:
    terms, depth, start = [], 0, 0
    for at, char in enumerate(text):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth < 0:
                raise ValueError(f'"{text}" closes a bracket that was never opened')
        elif char == "," and depth == 0:
            terms.append(text[start:at])
            start = at + 1
    if depth:
        raise ValueError(f'"{text}" opens a bracket and never closes it')
    return [term.strip() for term in [*terms, text[start:]]]


_SET_TERM = re.compile(r"(?P<key>[^\s(),=!<>]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)\Z")
_PAIR_TERM = re.compile(
    r"(?P<key>[^\s(),=!<>]+)\s*(?P<op>==|=|!=|>|<)\s*(?P<value>[^\s(),=!<>]*)\Z"
)
_BARE_TERM = re.compile(r"!?\s*(?P<key>[^\s(),=!<>]+)\Z")


def _check_label_term(term: str) -> None:
    if not term:
        raise ValueError("has an empty term: a comma at an end, or two in a row")
    match = _SET_TERM.match(term) or _PAIR_TERM.match(term) or _BARE_TERM.match(term)
    if colon := re.fullmatch(r"([^\s(),=!<>:]+)\s*:\s*([^\s(),=!<>:]+)", term):
        raise ValueError(f'"{term}" has a colon: write {colon[1]}={colon[2]}')
    if match is None:
        raise ValueError(
            f'"{term}" is none of: key, !key, key=value, key!=value, key in (a,b), key notin (a,b)'
        )
    parts = match.groupdict()
    _check_label_key(parts["key"])
    operator = parts.get("op", "")
    if "values" in parts:
        if not parts["values"].strip():
            raise ValueError(f'"{term}" has no values in its brackets')
        for value in parts["values"].split(","):
            _check_label_value(value.strip())
    elif operator in ("<", ">"):
        if not re.fullmatch(r"-?[0-9]+", parts["value"]):
            raise ValueError(f'"{term}" compares with something that is not a whole number')
    elif operator:
        _check_label_value(parts["value"])


def _check_label_key(key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    labels = prefix.split(".") if slash else []
    if slash and (
        len(prefix) > _DNS_SUBDOMAIN_MAX or not all(_DNS_LABEL.match(label) for label in labels)
    ):
        raise ValueError(
            f'"{key}" is not a label: the part before the slash is a domain name, such as '
            "app.kubernetes.io"
        )
    if not _QUALIFIED_NAME.match(name) or len(name) > _DNS_LABEL_MAX:
        raise ValueError(
            f'"{key}" is not a label: use letters, digits, dot, underscore and hyphen, at most '
            f"{_DNS_LABEL_MAX}"
        )


def _check_label_value(value: str) -> None:
    if not _LABEL_VALUE.match(value) or len(value) > _DNS_LABEL_MAX:
        raise ValueError(
            f'"{value}" is not a label\'s value: use letters, digits, dot, underscore and '
            f"hyphen, at most {_DNS_LABEL_MAX}"
        )
