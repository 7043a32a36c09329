"""The types of the config's values: what each accepts, its JSON Schema, and the message about
anything else. Each check raises ValueError with one line: the mistake and its cure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    StrictBool,
    StrictInt,
    StrictStr,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import core_schema

from watchrelay.model.names import parse_name
from watchrelay.model.paths import parse_counted, parse_ignored, parse_path

# ---- durations and sizes -------------------------------------------------------------------------

_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER: Final = r"[0-9]+(\.[0-9]+)?"
_DURATION: Final = rf"({_NUMBER}(ms|s|m|h))+"
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s?([kKMG]i?)?B?")
_DURATION_MAX_S: Final = 10 * 366 * 24 * 3600.0
_SIZE_MAX_BYTES: Final = 1 << 40


def duration_s(value: object) -> float:
    """The seconds of a duration. Only 0 needs no unit. Raises: ValueError, one line for the
    operator."""
    example = "such as 500ms, 10s, 5m or 1h30m"
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"must be a duration, {example}")
    text = str(value).strip()
    if re.fullmatch(_NUMBER, text):
        if float(text) == 0:
            return 0.0
        raise ValueError(f"{text} has no unit: write {text}s")
    if not re.fullmatch(_DURATION, text):
        raise ValueError(f"{shown(text)} is not a duration, {example}")
    parts = re.findall(r"([0-9.]+)([a-z]+)", text)
    total_s = math.fsum(float(number) * _UNIT_S[unit] for number, unit in parts)
    if total_s > _DURATION_MAX_S:
        raise ValueError(f"{shown(text)} is longer than ten years")
    return total_s


def duration_text(seconds: float) -> str:
    """`seconds` as a duration, to the millisecond."""
    left_ms = round(seconds * 1000)
    parts: list[str] = []
    for unit, unit_ms in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, left_ms = divmod(left_ms, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0"


def size_bytes(value: object) -> int:
    """The bytes of a size: `64MiB`, `64Mi` (1024), `64MB`, `64M` (1000), or a plain number of
    bytes. Raises: ValueError, one line for the operator."""
    match = None
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError("must be a size, such as 512KiB, 64MiB or 1GiB")
    unit = (match[2] or "").lower()
    count = float(match[1]) * (1024 if unit.endswith("i") else 1000) ** " kmg".index(
        unit[:1] or " "
    )
    if count > _SIZE_MAX_BYTES:  # before it is made an int: 400 digits are infinity
        raise ValueError(f"{shown(value)} is more than 1024GiB")
    return int(count)


def period(least: str, *, most: str = "", zero: bool = False) -> GetPydanticSchema:
    """The type of a duration in seconds of at least `least` and at most `most`, where that is set;
    `zero`: 0 disables what it times."""
    least_s, most_s = duration_s(least), duration_s(most) if most else math.inf
    schema: dict[str, Any] = {
        "type": "string",
        "pattern": f"^{_DURATION}$",
        "examples": ["500ms", "10s", "5m", "1h30m"],
    }
    if zero:
        schema |= {
            "type": ["string", "integer"],
            "pattern": f"^(0|{_DURATION})$",
            "minimum": 0,
            "maximum": 0,
        }

    def parse(value: object) -> float:
        found_s = duration_s(value)
        if found_s < least_s and not (zero and found_s == 0):
            off = ", or 0 to turn it off" if zero else ""
            raise ValueError(f"must be at least {least}{off}, not {duration_text(found_s)}")
        if found_s > most_s:
            raise ValueError(f"must be at most {most}, not {duration_text(found_s)}")
        return found_s

    return _parsed(parse, schema)


def size(least: str) -> GetPydanticSchema:
    """The type of a number of bytes of at least `least`."""
    least_bytes = size_bytes(least)

    def parse(value: object) -> int:
        found = size_bytes(value)
        if found < least_bytes:
            raise ValueError(f"must be at least {least}, not {shown(value)}")
        return found

    schema = {
        "type": ["string", "integer"],
        "pattern": r"^[0-9]+(\.[0-9]+)?(B|[kKMG]i?B?)?$",
        "minimum": least_bytes,
        "examples": ["64MiB"],
    }
    return _parsed(parse, schema)


def _parsed(parse: Callable[[object], Any], schema: dict[str, Any]) -> GetPydanticSchema:
    return GetPydanticSchema(
        lambda _source, _handler: core_schema.no_info_plain_validator_function(parse),
        lambda _core, _handler: schema,
    )


def shown(value: object) -> str:
    """A value in a message."""
    text = str(value)
    return f'"{text if len(text) <= 40 else text[:37] + "..."}"'


# ---- names ---------------------------------------------------------------------------------------

STREAM_ID_MAX: Final = 317
"""The longest derived: the name of a CRD, at most 253 characters, then @ and a namespace."""
TOPIC_MAX: Final = 249
"""Source: Kafka's Topic.java: a log directory's name, suffix included, must fit 255 characters."""

_TOPIC: Final = r"^[a-zA-Z0-9._-]+$"
_STREAM_ID: Final = r"^[a-z0-9.@-]+$"
_PLACEHOLDERS: Final = ("{prefix}", "{cluster}", "{group}", "{resource}")


def _checked(check: Callable[[str], object], **schema: Any) -> GetPydanticSchema:
    """A text that `check` accepts."""

    def validate(value: str) -> str:
        check(value)
        return value

    return GetPydanticSchema(
        lambda source, handler: core_schema.no_info_after_validator_function(
            validate, handler(source)
        ),
        lambda core, handler: handler(core) | schema,
    )


def _name(pattern: str, what: str, use: str, longest: int) -> Callable[[str], None]:
    def check(text: str) -> None:
        if len(text) > longest or not (text.isprintable() and re.fullmatch(pattern, text)):
            raise ValueError(f"{shown(text)} is not {what}: use {use}, at most {longest}")

    return check


_cluster = _name(
    _TOPIC, "the name of a cluster", "letters, digits, dot, underscore and hyphen", TOPIC_MAX
)
_topic = _name(
    r"(?!\.\.?\Z)[a-zA-Z0-9._-]+",
    "a topic name",
    "letters, digits, dot, underscore and hyphen",
    TOPIC_MAX,
)
_stream_id = _name(
    _STREAM_ID, "a stream id", "small letters, digits, dot, @ and hyphen", STREAM_ID_MAX
)
_instance = _name(
    _TOPIC, "the name of a replica", "letters, digits, dot, underscore and hyphen", TOPIC_MAX
)
_namespace = _name(  # an RFC 1123 label, as Kubernetes checks it
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?",
    "a namespace (without the key all are watched)",
    "small letters, digits and hyphens",
    63,
)
_object_name = _name(  # what Kubernetes permits in a URL path, the loosest rule of any resource
    r"(?!\.\.?\Z)[^\s,/%]+",
    "the name of an object",
    "printable text without blank, comma, slash and percent sign",
    253,
)


def _topic_template(text: str) -> None:
    rest = text
    for placeholder in _PLACEHOLDERS:
        rest = rest.replace(placeholder, "x")
    if "{" in rest or "}" in rest:
        raise ValueError(f"{shown(text)}: the placeholders are {', '.join(_PLACEHOLDERS)}")
    _topic(rest)


# ---- selectors -----------------------------------------------------------------------------------

_DOMAIN_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_WORD: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL: Final = rf"(?:(?=[^/]{{1,253}}/){_DOMAIN_LABEL}(?:\.{_DOMAIN_LABEL})*/)?{_WORD}"
_LABEL_TERM: Final = (
    rf"(?:! ?{_LABEL}|{_LABEL}(?: ?(?:==|=|!=)(?: ?{_WORD})?| ?[<>] ?-?[0-9]+"
    rf"| (?:in|notin) ?\((?! ?\)) ?(?:{_WORD} ?)?(?:, ?(?:{_WORD} ?)?)*\))?)"
)
_LABEL_SELECTOR = re.compile(rf" ?{_LABEL_TERM}(?: ?, ?{_LABEL_TERM})* ?")
"""Source: k8s.io/apimachinery/pkg/labels, Parse: what passes here passes there. A blank matches in
one place only: with two, the time to refuse a text doubles with each term."""
_FIELD_TERM = re.compile(r"\s*[^=!\s]+\s*(==|!=|=)")
"""Source: k8s.io/apimachinery/pkg/fields, ParseSelector; what is wrong for every resource."""


def _label_selector(text: str) -> None:
    if not _LABEL_SELECTOR.fullmatch(" ".join(text.split())):
        raise ValueError(
            f"{shown(text)} is not a label selector: write terms such as app=web, tier in (a,b) "
            "or !canary with commas between them, or leave the key out to take all objects"
        )


def _field_selector(text: str) -> None:
    terms = [term for term in re.split(r"(?<!\\),", text) if term.strip()]
    if not terms or not all(_FIELD_TERM.match(term) for term in terms):
        raise ValueError(
            f"{shown(text)} is not a field selector: write field=value or field!=value with "
            "commas between them, or leave the key out to take all objects"
        )


# ---- addresses, files and commands ---------------------------------------------------------------

_HOST: Final = r"[A-Za-z0-9][-A-Za-z0-9_]{0,62}(?:\.[-A-Za-z0-9_]{1,63})*\.?"
_ADDRESS = re.compile(rf"(?P<host>{_HOST}|\[[0-9A-Fa-f:.]+(?:%\w+)?\])?:(?P<port>[0-9]{{1,5}})")


def check_server(text: str) -> None:
    """`host:port`, an IPv6 address in brackets."""
    found = _address(text, "kafka-0:9092")
    if not found["host"] or int(found["port"]) == 0:
        raise ValueError(f"{shown(text)} needs a host and a port, such as kafka-0:9092")


def _address(text: str, example: str) -> re.Match[str]:
    if "@" in text:  # not repeated: before it may be a password, as in URLs
        raise ValueError(
            f"has an @: write host:port alone, such as {example}; users and passwords have keys "
            "of their own"
        )
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise ValueError(
            f"{shown(text)} is not host:port, such as {example}; a port is at most 65535, and an "
            "IPv6 address is written in brackets"
        )
    return found


def _listen(text: str) -> None:
    _address(text, ":8080")


def _web_address(text: str) -> None:
    if not re.fullmatch(r"https?://[^\s/]\S*", text):
        raise ValueError(
            f"{shown(text)} is no address of a web site, such as https://git.example.com"
        )


def _resource(text: str) -> None:
    parse_name(text)


def _file(text: str) -> None:
    if not text.strip():
        raise ValueError("must not be empty: write the path of a file, or leave the key out")


def _command(value: object) -> tuple[str, ...]:
    """A program and its arguments, from a list, or one line as a shell would split it."""
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


def _no_duplicates(values: tuple[str, ...]) -> tuple[str, ...]:
    seen = set[str]()
    for value in values:
        if value in seen:
            raise ValueError(f"{shown(value)} is in the list twice")
        seen.add(value)
    return values


# ---- the types -----------------------------------------------------------------------------------

Flag = StrictBool
Count = StrictInt
Text = StrictStr
ClusterName = Annotated[StrictStr, _checked(_cluster, pattern=r"^[A-Za-z0-9._-]+$")]
TopicPart = Annotated[StrictStr, _checked(_topic, pattern=_TOPIC)]
TopicName = Annotated[StrictStr, _checked(_topic, pattern=_TOPIC, maxLength=TOPIC_MAX)]
TopicTemplate = Annotated[StrictStr, _checked(_topic_template)]
StreamId = Annotated[StrictStr, _checked(_stream_id, pattern=_STREAM_ID, maxLength=STREAM_ID_MAX)]
InstanceName = Annotated[StrictStr, _checked(_instance, pattern=_TOPIC, maxLength=TOPIC_MAX)]
ResourceText = Annotated[StrictStr, _checked(_resource, minLength=1)]
ObjectName = Annotated[StrictStr, _checked(_object_name, minLength=1)]
LabelSelector = Annotated[StrictStr, _checked(_label_selector, minLength=1)]
FieldSelector = Annotated[StrictStr, _checked(_field_selector, minLength=1)]
Namespaces = Annotated[
    tuple[Annotated[StrictStr, _checked(_namespace)], ...], AfterValidator(_no_duplicates)
]
Paths = tuple[Annotated[StrictStr, _checked(parse_path)], ...]
IgnoredPaths = tuple[Annotated[StrictStr, _checked(parse_ignored)], ...]
CountedPaths = tuple[Annotated[StrictStr, _checked(parse_counted)], ...]
Servers = Annotated[tuple[Annotated[StrictStr, _checked(check_server)], ...], Field(min_length=1)]
Listen = Annotated[StrictStr, _checked(_listen)]
WebAddress = Annotated[StrictStr, _checked(_web_address, pattern=r"^https?://.+")]
FilePath = Annotated[StrictStr, _checked(_file, minLength=1)]
Command = Annotated[
    tuple[str, ...],
    BeforeValidator(_command),
    WithJsonSchema(
        {"type": ["string", "array"], "items": {"type": "string"}, "minLength": 1, "minItems": 1}
    ),
]


def _key(name: str) -> str:
    """The key of a field in the file: camelCase, without the unit of the code's name."""
    return to_camel(name.removesuffix("_s"))


class Section(BaseModel):
    """A part of the config: frozen, closed, camelCase in files; every field's docstring is its
    description in the JSON Schema."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=_key,
        validate_default=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _left_out(cls, given: Any) -> Any:
        """A section whose keys are all commented out reads as null: it counts as left out."""
        return {} if given is None else given
