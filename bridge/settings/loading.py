"""Loads the settings, with the origin of each value: flag > environment > file > default.

It decides precedence and names, and reports all problems at once. The sections define types and limits. Loading opens
no connection. Secrets come from the environment, from the file, or from a separate file (``password_file``), and are
never printed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from bridge.errors import ConfigError
from bridge.routing.rules import mapping_problems
from bridge.routing.sharding import shard_problems
from bridge.settings import IngestSettings, PulsarSettings, Settings
from bridge.settings.aliases import alias_of, settings_of
from bridge.settings.fields import (
    FILE_SUFFIX,
    field_at,
    has_word_choices,
    is_optional,
    is_plain_text,
    is_secret,
    nearest,
    section_of,
    with_unit,
)
from bridge.settings.files import DEFAULT_FILE, PREFIX, conf_path
from bridge.settings.secret_file import SecretFile

__all__ = [
    "CONFIG_VARIABLE",
    "DEFAULT_FILE",
    "HANDLERS_GROUP",
    "OTHER_VARIABLES",
    "PREFIX",
    "Loaded",
    "conf_path",
    "content_of",
    "file_of",
    "load",
    "load_with_origins",
]

HANDLERS_GROUP: Final = "pulsebridge.protocol_handlers"
"""Entry points of protocol handlers, by the names in ``messaging_protocols``."""
CONFIG_VARIABLE: Final = "PULSEBRIDGE_CONFIG"
"""Names the YAML file if ``--config`` is not given."""
OTHER_VARIABLES: Final = frozenset(
    {
        CONFIG_VARIABLE,
        "PULSEBRIDGE_IVY_SETTINGS",
        "PULSEBRIDGE_KILL_AT",
        "PULSEBRIDGE_KILL_PID",
        "PULSEBRIDGE_KILL_SIGNAL",
    }
)
"""Variables with our prefix that are not settings: of the local stack's downloads, and of ``bridge.killpoints``."""

# Kubernetes sets such variables in every pod of a namespace that has a Service called pulsebridge or pulsebridge-….
_SERVICE_LINK: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)$")

_ADDRESS: Final = re.compile(r"\w+://|\Z")
"""Kubernetes' value of a variable that ends with _PORT."""

_BOUNDS: Final = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
"""Types of pydantic's errors for a value beyond a bound."""

_EXPECTED: Final = {
    "int_parsing": "should be a whole number",
    "int_type": "should be a whole number",
    "int_from_float": "should be a whole number",
    "float_parsing": "should be a number",
    "float_type": "should be a number",
    "bool_parsing": "should be true or false",
    "bool_type": "should be true or false",
    "string_type": "should be text",
    "path_type": "should be a path",
    "tuple_type": "should be a list, as [a, b]",
    "dict_type": "should be a mapping, as {a: b}",
    "model_type": "should be a mapping of settings",
    "missing": "is required",
}
"""Reasons for types of pydantic's errors whose own texts speak of Python."""

_OF_PYDANTIC: Final = re.compile("^(Value error, |Input (?=should be ))")
"""Begins of pydantic's texts that say nothing to a user."""

Keys = tuple[str, ...]
_Given = tuple[Keys, Any, str]
"""A value with its path and its origin."""
Overrides = Mapping[str, object] | Sequence[str]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, with the origins of values that are not defaults, by their path with dots."""

    settings: Settings
    origins: Mapping[str, str]
    file: Path | None


@dataclass(slots=True)
class _Layers:
    """The values of the layers so far, in ascending order of precedence, and their problems."""

    values: dict[Keys, Any] = field(default_factory=dict)
    origins: dict[Keys, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def put(self, path: Keys, value: Any, origin: str) -> None:
        self.values[path] = value
        self.origins[path] = origin

    def has(self, path: Keys, origin: str) -> bool:
        """Return whether the same layer (file, environment, …) has set this value already."""
        return self.origins.get(path, " ").split()[:1] == origin.split()[:1]

    def refuse(self, path: Keys, why: str, origin: str) -> None:
        self.problems.append(f"{'.'.join(path)}: {why} ({origin})")


def load(config: Path | None = None, overrides: Overrides = ()) -> Settings:
    """Return the settings. ``overrides``: a mapping of paths to values, or a sequence of ``path=value``.

    Raises ConfigError that lists every problem with its path and its origin.
    """
    return load_with_origins(config, overrides).settings


def load_with_origins(
    config: Path | None = None,
    overrides: Overrides = (),
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """Load like ``load``, with the origin of each value.

    ``flags`` are a command's own options (path → value, None if not given); they have the highest precedence.
    """
    environ = os.environ if environ is None else environ
    layers = _Layers()
    file = file_of(config, environ)
    if file is not None:
        _put_layer(layers, _flat(content_of(file), (), f"file {file}"), _put_value)
    _put_layer(layers, _variables(environ), _put_text, any_case=True)
    if isinstance(overrides, Mapping):
        _put_layer(layers, _by_path(overrides, "given by the caller"), _put_value)
    else:
        _put_layer(layers, _pairs(layers, overrides), _put_text)
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    _put_layer(layers, _by_path(given, "flag"), _put_value)
    settings = _validate(layers)
    if layers.problems or settings is None:
        raise ConfigError(_listed(layers.problems, file))
    return Loaded(settings, {".".join(p): o for p, o in layers.origins.items()}, file)


# --- the layers ---------------------------------------------------------------------------------------------


def file_of(config: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the settings file for the value of ``--config``; None without one."""
    if config is not None:
        return config
    if environ.get(CONFIG_VARIABLE):
        return Path(environ[CONFIG_VARIABLE])
    return DEFAULT_FILE if DEFAULT_FILE.is_file() else None


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a mapping that has a key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node. Raises ConstructorError, which names key and line."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise yaml.constructor.ConstructorError(
                        problem=f"line {line} has the key {key.value!r} for the second time"
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def content_of(file: Path) -> Mapping[Any, Any]:
    """Return the unchecked content of a settings file. Raises ConfigError if it is not a mapping in YAML."""
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), _UniqueKeys)
    except OSError as e:
        raise ConfigError(f"the settings file {file} cannot be read: {e.strerror}") from e
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise ConfigError(f"the settings file {file} is not YAML: {' '.join(str(e).split())}") from e
    if not isinstance(content, dict | None):
        raise ConfigError(f"the settings file {file} is not a mapping of sections", remedy="see conf/default.yaml")
    return content or {}


def _flat(node: Mapping[Any, Any], above: Keys, origin: str) -> Iterator[_Given]:
    """Yield the settings of a nested mapping. An empty section yields nothing."""
    for key, value in node.items():
        path = (*above, str(key))
        known = field_at(Settings, path)
        section = known is not None and section_of(known.annotation) is not None
        if section and isinstance(value, Mapping):
            yield from _flat(value, path, origin)
        elif value is not None or not section:
            yield path, value, origin


def _variables(environ: Mapping[str, str]) -> Iterator[_Given]:
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in OTHER_VARIABLES:
            continue
        path = tuple(name[len(PREFIX) :].lower().split("__"))
        link = _SERVICE_LINK.search(name)
        if len(path) > 1 or link is None or (link[1] == "PORT" and not _ADDRESS.match(environ[name])):
            yield path, environ[name], f"environment {name}"


def _by_path(values: Mapping[str, object], origin: str) -> Iterator[_Given]:
    for name, value in values.items():
        yield tuple(name.split(".")), value, origin


def _pairs(layers: _Layers, texts: Sequence[str]) -> Iterator[_Given]:
    for text in texts:
        name, equals, value = text.partition("=")
        if equals:
            yield tuple(name.strip().split(".")), value, "--set"
        else:
            layers.problems.append(f"--set {text}: not of the form path=value, for example mqtt.host=127.0.0.1")


def _put_layer(
    layers: _Layers,
    values: Iterable[_Given],
    put: Callable[[_Layers, Keys, Any, str], None],
    *,
    any_case: bool = False,
) -> None:
    """Put the values of one layer. Those under the names of MoP's proxy follow its other values."""
    given: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for path, value, origin in values:
        name = alias_of(path, any_case=any_case)
        if name is None:
            put(layers, path, value, origin)
        else:
            given[name], origins[name] = value, origin
    aliased: set[Keys] = set()
    try:
        for path, value, name in settings_of(given):
            if path not in aliased and layers.has(path, origins[name]):
                layers.refuse(path, f"given twice, also as {name}; keep one", origins[name])
                continue
            aliased.add(path)
            layers.put(path, value, f"{origins[name]}, as {name}")
    except ValueError as e:
        name, _, why = str(e).partition(": ")
        layers.refuse((name,), why, origins[name])


def _put_text(layers: _Layers, path: Keys, text: str, origin: str) -> None:
    """Put a value from text: unchanged for words, numbers and switches, as YAML for lists and mappings."""
    known = field_at(Settings, path)
    value: Any = text
    if known is not None and not is_secret(known.annotation):
        if text == "null" and is_optional(known.annotation):
            value = None
        elif not is_plain_text(known.annotation):
            try:
                value = yaml.safe_load(text)
            except yaml.YAMLError:
                layers.refuse(path, "is neither YAML nor JSON", origin)
                return
    _put_value(layers, path, value, origin)


def _put_value(layers: _Layers, path: Keys, value: Any, origin: str) -> None:
    known = field_at(Settings, path)
    if known is None:
        secret = _secret_of(path)
        if secret is None:
            layers.refuse(path, _unknown(path), origin)
        elif layers.has(secret, origin):
            layers.refuse(path, f"given twice, also as {secret[-1]}; keep one", origin)
        elif (read := _secret_file(layers, path, value, origin)) is not None:
            layers.put(secret, read, f"{origin}, from {value}")
        return
    if section_of(known.annotation) is not None:
        layers.refuse(path, f"is a section; name one of its settings, as in {'.'.join(path)}.…", origin)
        return
    if is_secret(known.annotation) and layers.has(path, origin):
        layers.refuse(path, f"given twice, as {path[-1]} and as {path[-1]}{FILE_SUFFIX}; keep one", origin)
        return
    if has_word_choices(known.annotation) and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    layers.put(path, _with_secrets(layers, path, value, origin), origin)


def _unknown(path: tuple[str | int, ...]) -> str:
    near = nearest(Settings, path)
    return "unknown setting" + (f"; did you mean {near}?" if near else "")


def _secret_of(path: Keys) -> Keys | None:
    """Return the path of the secret for the path of its file, else None."""
    if not path[-1].endswith(FILE_SUFFIX):
        return None
    secret = (*path[:-1], path[-1][: -len(FILE_SUFFIX)])
    known = field_at(Settings, secret)
    return secret if known is not None and is_secret(known.annotation) else None


def _secret_file(layers: _Layers, named: Keys, name: Any, origin: str) -> SecretFile | None:
    if not isinstance(name, str | os.PathLike):
        layers.refuse(named, "is not a path", origin)
        return None
    try:
        return SecretFile(name)
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or ("not text" if isinstance(e, UnicodeDecodeError) else str(e))
        layers.refuse(named, f"cannot be read: {why}: {name}", origin)
        return None


def _with_secrets(layers: _Layers, path: Keys, value: Any, origin: str) -> Any:
    """Return a list of sections, with the secrets of their files."""
    if not isinstance(value, list | tuple):
        return value
    members: list[Any] = []
    for number, member in enumerate(value):
        read = dict(member) if isinstance(member, Mapping) else member
        for key in list(read) if isinstance(read, dict) else ():
            named = (*path, str(number), str(key))
            if _secret_of((*path, str(key))) is None:
                continue
            secret = str(key)[: -len(FILE_SUFFIX)]
            if secret in read:
                layers.refuse(named, f"given twice, also as {secret}; keep one", origin)
            read[secret] = _secret_file(layers, named, read.pop(key), origin)
        members.append(read)
    return members


# --- checking -----------------------------------------------------------------------------------------------


def _validate(layers: _Layers) -> Settings | None:
    tree: dict[str, Any] = {}
    for path, value in layers.values.items():
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = value
    settings = None
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as e:
        layers.problems.extend(_readable(error, layers) for error in e.errors(include_url=False, include_input=True))
    if settings is not None:
        layers.problems.extend(_of_protocols(settings.messaging_protocols, layers))
    layers.problems.extend(_of_routes(tree, layers, sharded=settings is None or "mqtt" in settings.messaging_protocols))
    return settings


def _of_protocols(names: Sequence[str], layers: _Layers) -> Iterator[str]:
    """Yield the problems of protocols that no installed package brings."""
    if names == Settings.model_fields["messaging_protocols"].default:
        return
    known = {point.name for point in entry_points(group=HANDLERS_GROUP)}
    for name in names:
        if known and name not in known:
            origin = _origin(("messaging_protocols",), layers)
            yield f"messaging_protocols: {name!r} is not a protocol of this installation; known are {', '.join(sorted(known))}{origin}"


def _of_routes(tree: Mapping[str, Any], layers: _Layers, *, sharded: bool) -> Iterator[str]:
    """Yield the problems of the routes, also if other sections have problems.

    Workers that are not ``sharded`` do not subscribe, so all filters are valid for them.
    """
    try:
        ingest = IngestSettings.model_validate(tree.get("ingest", {}))
        pulsar = PulsarSettings.model_validate(tree.get("pulsar", {}))
    except ValidationError:
        return  # already reported; problems that follow from them would confuse
    for problem in mapping_problems(ingest, pulsar) or (shard_problems(ingest, pulsar) if sharded else []):
        yield problem + _origin(("ingest", "filters" if "ingest.filters" in problem else "routes"), layers)


def _readable(error: ErrorDetails, layers: _Layers) -> str:
    loc = tuple(error["loc"])
    path = ".".join(str(p) for p in loc) or "settings"
    origin = _origin(loc, layers)
    if error["type"] == "extra_forbidden":
        return f"{path}: {_unknown(loc)}{origin}"
    why = _EXPECTED.get(error["type"]) or _OF_PYDANTIC.sub("", error["msg"])
    known = field_at(Settings, loc)
    if known is not None and error["type"] in _BOUNDS:  # the bound is the last word
        bound = next(iter(error["ctx"].values()))
        why = f"{why.rpartition(' ')[0]} {with_unit(known.annotation, bound)}"
    shown = ""
    if known is not None and not is_secret(known.annotation) and isinstance(error["input"], str | int | float):
        value = repr(error["input"])
        shown = "" if isinstance(error["input"], str) and value in why else f", not {value}"
    return f"{path}: {why}{shown}{origin}"


def _origin(loc: tuple[str | int, ...], layers: _Layers) -> str:
    names = tuple(str(p) for p in loc)
    for length in range(len(names), 0, -1):
        if names[:length] in layers.origins:
            return f" ({layers.origins[names[:length]]})"
    return ""


def _listed(problems: list[str], file: Path | None) -> str:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    read = f" (file read: {file})" if file else ""
    return "\n".join([f"{count} in the settings{read}:", *(f"  {p}" for p in problems)])
