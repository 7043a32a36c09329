"""The types of the config's values: what each accepts, its JSON Schema, and its error messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StrictBool,
    StrictInt,
    StrictStr,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from watchrelay.config import grammar
from watchrelay.config.units import (
    DURATION_PATTERN,
    PERIOD_PATTERN,
    SIZE_PATTERN,
    duration_s,
    duration_text,
    size_bytes,
    size_text,
)
from watchrelay.model.names import parse_name
from watchrelay.model.paths import parse_path

REFUSED = "watchrelay"
"""The pydantic error type of our own messages, which are reported unchanged."""


_T = TypeVar("_T")


def _refuse(message: str) -> PydanticCustomError:
    return PydanticCustomError(REFUSED, "{message}", {"message": message})


def _parsed(parse: Callable[[Any], _T], value: object) -> _T:
    try:
        return parse(value)
    except ValueError as error:
        raise _refuse(str(error)) from error


def _checked(check: Callable[[str], Any]) -> AfterValidator:
    def validate(value: str) -> str:
        _parsed(check, value)
        return value

    return AfterValidator(validate)


@dataclass(frozen=True, slots=True)
class Period:
    """A duration in seconds of at least `least`; `zero`: 0 is legal too, and disables what it
    times."""

    least: str
    zero: bool = False

    def __get_pydantic_core_schema__(
        self, _source: Any, _handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.validate)

    def __get_pydantic_json_schema__(
        self, _core: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema: dict[str, Any] = {
            "type": "string",
            "pattern": DURATION_PATTERN,
            "examples": ["500ms", "10s", "5m", "1h30m"],
        }
        if self.zero:
            schema |= {
                "type": ["string", "integer"],
                "pattern": PERIOD_PATTERN,
                "minimum": 0,
                "maximum": 0,
            }
        return schema

    def validate(self, value: object) -> float:
        """The seconds."""
        found_s = _parsed(duration_s, value)
        if found_s == 0 and not self.zero:
            raise _refuse(f"cannot be 0: the least is {self.least}")
        if 0 < found_s < duration_s(self.least):
            off = ", or 0 to turn it off" if self.zero else ""
            raise _refuse(f"must be at least {self.least}{off}, not {duration_text(found_s)}")
        return found_s


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes of at least `least`."""

    least: str

    def __get_pydantic_core_schema__(
        self, _source: Any, _handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.validate)

    def __get_pydantic_json_schema__(
        self, _core: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {
            "type": ["string", "integer"],
            "pattern": SIZE_PATTERN,
            "minimum": size_bytes(self.least),
            "examples": ["64MiB"],
        }

    def validate(self, value: object) -> int:
        """The bytes."""
        found = _parsed(size_bytes, value)
        if found < size_bytes(self.least):
            raise _refuse(f"must be at least {self.least}, not {size_text(found)}")
        return found


def _command(value: object) -> tuple[str, ...]:
    return _parsed(grammar.check_command, value)


def _resource(value: str) -> None:
    parse_name(value)


def _server(value: str) -> None:
    grammar.check_address(value, host_needed=True)


def _listen(value: str) -> None:
    grammar.check_address(value, host_needed=False)


def _no_duplicates(values: tuple[str, ...]) -> tuple[str, ...]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise _refuse(f'"{value}" is in the list twice')
    return values


def _file(value: str) -> None:
    if not value.strip():
        raise ValueError("must not be empty: write the path of a file, or leave the key out")


Flag = StrictBool
Text = StrictStr
ClusterName = Annotated[
    StrictStr,
    _checked(grammar.check_cluster),
    Field(json_schema_extra={"pattern": grammar.CLUSTER_PATTERN}),
]
TopicPart = Annotated[
    StrictStr,
    _checked(grammar.check_topic),
    Field(json_schema_extra={"pattern": grammar.TOPIC_PATTERN}),
]
TopicName = Annotated[
    StrictStr,
    _checked(grammar.check_topic),
    Field(json_schema_extra={"pattern": grammar.TOPIC_PATTERN, "maxLength": grammar.TOPIC_MAX}),
]
TopicTemplate = Annotated[StrictStr, _checked(grammar.check_topic_template)]
StreamId = Annotated[
    StrictStr,
    _checked(grammar.check_stream_id),
    Field(
        json_schema_extra={"pattern": grammar.STREAM_ID_PATTERN, "maxLength": grammar.STREAM_ID_MAX}
    ),
]
ResourceText = Annotated[StrictStr, _checked(_resource), Field(json_schema_extra={"minLength": 1})]
ObjectName = Annotated[
    StrictStr, _checked(grammar.check_object_name), Field(json_schema_extra={"minLength": 1})
]
LabelSelector = Annotated[
    StrictStr, _checked(grammar.check_label_selector), Field(json_schema_extra={"minLength": 1})
]
FieldSelector = Annotated[
    StrictStr, _checked(grammar.check_field_selector), Field(json_schema_extra={"minLength": 1})
]
Namespaces = Annotated[
    tuple[Annotated[StrictStr, _checked(grammar.check_namespace)], ...],
    AfterValidator(_no_duplicates),
]
Paths = tuple[Annotated[StrictStr, _checked(parse_path)], ...]
Servers = Annotated[tuple[Annotated[StrictStr, _checked(_server)], ...], Field(min_length=1)]
Listen = Annotated[StrictStr, _checked(_listen)]
FilePath = Annotated[StrictStr, _checked(_file), Field(json_schema_extra={"minLength": 1})]
Command = Annotated[
    tuple[str, ...],
    BeforeValidator(_command),
    WithJsonSchema(
        {"type": ["string", "array"], "items": {"type": "string"}, "minLength": 1, "minItems": 1}
    ),
]
Count = StrictInt


def _key(name: str) -> str:
    """The key in the file of a field in the code: camelCase, without the unit that the code's name
    ends in."""
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
        """A section whose keys are all commented out reads as null: it means the same as a section
        left out."""
        return {} if given is None else given
