"""What a decoder of the rules file says, typed and checked before Spark is started.

A decoder names the form of the payloads on one filter of MQTT topics, and where in them a reading's id, time and value
are. What becomes of a payload is decided by ``streaming.readings``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from bridge.errors import ConfigError
from streaming.decoders.paths import JsonPath
from streaming.decoders.times import TimeUnit
from streaming.evolution import Evolution
from streaming.rule_fields import Part, RuleFields, rule_says

__all__ = ["NO_ID", "Decoder", "as_recipe", "check_rules", "load_decoders", "parse_decoders"]

NO_ID: Final = "none"
"""In place of a path: each reading is one of its own, named by its place in Pulsar; what repeats is counted."""
_OF_FORM: Final = {
    "fields": ("csv", True),
    "separator": ("csv", False),
    "descriptor_set": ("protobuf", True),
    "message": ("protobuf", True),
    "function": ("python", True),
}
"""Settings that belong to one form, and whether it needs them."""
_MORE_FIELDS: Final = 64
"""How many fields a CSV line may have beyond those that are named; they are unknown ones."""
_EXAMPLE: Final = "see conf/rules.yaml for an example"


class Decoder(BaseModel):
    """How the payloads on one filter of MQTT topics become readings.

    Paths are JSON paths: ``$.id`` in the reading, ``$$.id`` in the whole message where it holds several readings.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    filter: str = Field(min_length=1, description="MQTT topics whose payloads it decodes.")
    metric: str = Field(min_length=1, description="Name of what is measured, or its path.")
    value: str = Field(description="Path of the number.")
    id: str | None = Field(
        None, description="Path of the reading's id, or NO_ID; left out, the topic rule's reading_id says it."
    )
    time: str | None = Field(
        None, description="Path of the reading's time; none leaves it to the topic rule's reading_time."
    )
    time_unit: TimeUnit = Field(
        "iso",
        description="How the time is given: ISO 8601, or a number since 1970 in s, ms, us or ns; auto: by its size.",
    )
    unit: str | None = Field(None, description="Unit of the value, or its path.")
    sent: str | None = Field(None, description="Path of the time of publishing, µs since the epoch.")
    elements: str | None = Field(
        None, description="Path of an array of which each element is a reading; none: the payload is one."
    )
    max_elements: int = Field(
        10_000, ge=1, description="Elements that one message may hold; beyond it: quarantine."
    )

    ignored: tuple[str, ...] = Field(
        (), description="Paths of fields that are known and not wanted; others are unknown ones."
    )
    schema_evolution: Evolution | None = Field(
        None,
        description="What becomes of unknown fields: rescue, add_columns or fail; none: streaming.schema_evolution.",
    )

    format: Literal["json", "csv", "cbor", "protobuf", "raw", "python"] = Field(
        "json", description="Form of the payloads. raw: the payload is the value itself, as text."
    )
    compression: Literal["gzip", "zstd"] | None = Field(
        None, description="Compression of the payloads, undone before anything else."
    )
    max_bytes: int = Field(
        1_048_576,
        ge=1,
        description="Bytes of a payload, also when it is expanded, and of the document that it gives; beyond it: "
        "quarantine.",
    )
    max_depth: int = Field(
        64,
        ge=1,
        le=400,
        description="cbor, protobuf, python: levels of arrays and objects; beyond it: quarantine. The library for protobuf "
        "reads 100; Spark reads JSON up to 1,000.",
    )
    max_values: int = Field(
        100_000,
        ge=1,
        description="cbor, protobuf, python: values and keys of a payload; beyond it: quarantine. A protobuf message "
        "counts all fields that it can have.",
    )
    max_seconds: float = Field(
        1.0,
        gt=0,
        description="cbor, protobuf, python, and compressed ones: processor time for a payload, in seconds, and a tenth of "
        "the time that it may take in all; beyond it: quarantine.",
    )
    max_memory_mb: int = Field(
        512,
        ge=16,
        description="The same: memory that decoding may take beside what Python itself has, in MiB; beyond it: "
        "quarantine. Linux enforces it.",
    )
    fields: tuple[str, ...] = Field((), description="csv: the names of a line's fields, in order.")
    separator: str = Field(",", min_length=1, max_length=1, description="csv: what is between two fields.")
    descriptor_set: str | None = Field(
        None,
        description="protobuf: base64 of a FileDescriptorSet; in the file, descriptor names one instead.",
    )
    message: str | None = Field(None, description="protobuf: full name of the message.")
    function: str | None = Field(
        None,
        pattern=r"^[\w.]+:[\w.]+$",
        description="python: module:function, given the payload and the MQTT topic.",
    )

    @field_validator("time", "value", "sent", "elements")
    @classmethod
    def _path(cls, text: str | None) -> str | None:
        if text is not None:
            JsonPath.parse(text)
        return text

    @field_validator("id")
    @classmethod
    def _path_or_none(cls, text: str | None) -> str | None:
        return text if text == NO_ID else cls._path(text)

    @field_validator("ignored")
    @classmethod
    def _paths(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        for text in texts:
            JsonPath.parse(text)
        return texts

    @field_validator("metric", "unit")
    @classmethod
    def _word_or_path(cls, text: str | None) -> str | None:
        return cls._path(text) if text is not None and text.startswith("$") else text

    @field_validator("elements")
    @classmethod
    def _of_the_message(cls, text: str | None) -> str | None:
        if text is not None and JsonPath.parse(text).of_message:
            raise ValueError(f"{text!r} begins at the message anyway, give {text[1:]}")
        return text

    @model_validator(mode="after")
    def _of_one_form(self) -> Decoder:
        for name, (form, needed) in _OF_FORM.items():
            given = getattr(self, name) != type(self).model_fields[name].default
            if given and self.format != form:
                raise ValueError(f"{name} is for format {form}, and this one's is {self.format}")
            if needed and not given and self.format == form:
                raise ValueError(f"format {form} needs {'descriptor' if name == 'descriptor_set' else name}")
        if self.elements is not None and self.format == "raw":
            raise ValueError("elements: a raw payload is one value")
        if self.elements not in (None, "$") and self.format == "csv":
            raise ValueError("elements: give $ for a reading on each line")
        if len(set(self.fields)) < len(self.fields) or not all(self.fields):
            raise ValueError("fields: each needs a name of its own")
        return self

    @property
    def csv_names(self) -> tuple[str, ...]:
        """Names for a line's fields: those given, and some for fields that come to be after them."""
        more = (f"field{n}" for n in range(len(self.fields) + 1, len(self.fields) + 1 + _MORE_FIELDS))
        return (*self.fields, *(name for name in more if name not in self.fields))


def load_decoders(path: Path) -> tuple[Decoder, ...]:
    """Read the decoders of a rules file. Raises ConfigError naming the file and what is wrong."""
    try:
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as e:
        raise ConfigError(f"rules file {path}: {e}", remedy=_EXAMPLE) from e
    entries = body.get("readings") if isinstance(body, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"rules file {path} has no list `readings`", remedy=_EXAMPLE)
    return parse_decoders(_with_descriptors(entries, path), str(path))


def _with_descriptors(entries: Sequence[Any], path: Path) -> list[Any]:
    """Return the entries with the descriptors that they name: a batch is judged again by what it began with."""
    found = []
    for n, entry in enumerate(entries):
        if isinstance(entry, Mapping) and isinstance(entry.get("descriptor"), str):
            rest = {k: v for k, v in entry.items() if k != "descriptor"}
            try:
                content = (path.parent / entry["descriptor"]).read_bytes()
            except OSError as e:
                raise ConfigError(
                    f"rules file {path}: readings[{n}].descriptor: {e} (filter {entry.get('filter')})",
                    remedy="make it with protoc --include_imports -o FILE",
                ) from e
            entry = rest | {"descriptor_set": base64.b64encode(content).decode()}
        found.append(entry)
    return found


def parse_decoders(entries: Sequence[Any], where: str) -> tuple[Decoder, ...]:
    """Check decoders as they stand in a file. Raises ConfigError listing all problems, each with its filter."""
    problems: list[str] = []
    found: list[Decoder] = []
    for n, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            problems.append(f"readings[{n}] is not a mapping")
            continue
        try:
            found.append(Decoder.model_validate(dict(entry)))
        except ValidationError as e:
            of = f" (filter {entry['filter']})" if "filter" in entry else ""
            problems += [_problem(f"readings[{n}]", of, dict(one)) for one in e.errors()]
    if problems:
        raise ConfigError(f"{where}: " + "; ".join(problems), remedy=_EXAMPLE)
    return tuple(found)


def _problem(at: str, of: str, one: Mapping[str, Any]) -> str:
    place = ".".join(map(str, (at, *one["loc"])))
    if one["type"] == "extra_forbidden":
        return f"{place} is unknown{of}"
    if one["type"] == "missing":
        return f"{place} is missing{of}"
    return f"{place}: {str(one['msg']).removeprefix('Value error, ')}{of}"


def check_rules(decoders: Sequence[Decoder], rules: Sequence[RuleFields], where: str) -> None:
    """Raise ConfigError for a decoder that leaves its id or time to topic rules of which none says anything of it."""
    problems = []
    for n, decoder in enumerate(decoders):
        parts: tuple[Part, ...] = ("id", "time")
        for part in parts:
            if getattr(decoder, part) is not None:
                continue
            try:
                said = rule_says(rules, part, decoder.filter)
            except ValueError as e:
                raise ConfigError(f"{where}: readings[{n}]: {e}", remedy="correct the filter") from e
            if not said:
                problems.append(
                    f"readings[{n}].{part} is missing, and no topic rule has a reading_{part} for it "
                    f"(filter {decoder.filter})"
                )
    if problems:
        raise ConfigError(f"{where}: " + "; ".join(problems), remedy=f"{_EXAMPLE}, or ingest.rules")


def as_recipe(decoders: Sequence[Decoder]) -> list[dict[str, Any]]:
    """Return decoders as plain data, for the recipe of a batch; what is left to its default is left out."""
    return [d.model_dump(exclude_defaults=True) for d in decoders]
