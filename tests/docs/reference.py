"""Generated pages of the reference: columns of the tables, receipts, metrics, the HTTP API and the Python API."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from bridge.contract import DELIVERIES, FAILURES, RECEIPT_COLUMNS, REMARKS, SOURCE_COLUMNS
from bridge.http import requests
from pulsebridge.cli.metrics_catalogue import catalogue, table
from streaming import built_in, pipelines, readings
from streaming.alerts import ALERTS_SCHEMA
from streaming.checkpoints import RESULT_COLUMNS
from streaming.decoding import _FIRST, _LAST
from streaming.upkeep_log import _EVENT
from streaming.writing import POSITION, QUARANTINE_SCHEMA

__all__ = ["http_page", "metrics_page", "python_page", "receipts_page", "tables_page"]

Rows = Iterable[tuple[str, str, str]]


def cell(text: str) -> str:
    """Return a text as a cell of a table, in one line."""
    return " ".join(text.replace("|", "\\|").split())


def _table(rows: Rows, head: str = "column") -> str:
    body = "".join(f"| `{name}` | {kind and f'`{kind}`'} | {cell(text)} |\n" for name, kind, text in rows)
    return f"\n| {head} | type | meaning |\n|---|---|---|\n{body}"


# --- tables -------------------------------------------------------------------------------------------------------

_TABLES: Final = """\
# Columns of the tables

Every table is a Delta table below `streaming.root`, or in the schema `streaming.schema_name` of a catalog.
`pulsebridge stream` creates it. Which tables run by default: see [the tutorial](../tutorials/every-tier.md).
A column whose name begins with `_` belongs to Pulsebridge. Tables of Sparkplug B: see [Sparkplug B](../guides/sparkplug.md).
"""
_MESSAGE: Final = {
    "value": "the stored bytes; with `decode` of the source, the decoded value",
    "__key": "key of the Pulsar message: the device, or the MQTT topic",
    "__topic": "Pulsar topic",
    "__messageId": "message id, as Pulsar's clients serialize it",
    "__publishTime": "when ingest sent it to Pulsar",
    "__eventTime": "when ingest received it, as Pulsar's event time",
    "__messageProperties": "all properties of the Pulsar message",
    "partition": "partition of the topic",
    "ledger_id": "ledger of the entry",
    "entry_id": "entry in the ledger",
    "batch_index": "index in the entry; 0 without batches",
    "mqtt_topic": "topic that the device published to",
    "device": "device that the route names",
    "payload": "payload of the device, unchanged",
    "qos": "QoS of the publish",
    "retain": "retain flag of the publish",
    "retained": "true if the MQTT broker sent it because of a subscription",
    "arrival_time": "when ingest received it",
    "command_topic": "MQTT topic of commands to the device, if the route names one",
    "content_type": "content type of the publish (MQTT 5)",
    "response_topic": "response topic of the publish (MQTT 5)",
    "correlation_data": "correlation data of the publish (MQTT 5)",
    "user_properties": "user properties of the publish (MQTT 5), in order",
}
_COMMON: Final = {
    "device": ("string", "device of the message, or the `+device` of the filter"),
    "event_time": ("timestamp", "time of the measurement; without one the time of arrival"),
    "arrival_time": ("timestamp", "when ingest received the message"),
    "mqtt_topic": ("string", "topic that the device published to"),
    "command_topic": ("string", "MQTT topic of commands to the device, if the route names one"),
    "_id": ("string", "id of the row: the device's own, else made of the position in Pulsar"),
    "_rescued_data": ("string", "fields that are not declared or do not fit their type, as JSON"),
    "_position": ("struct", f"position of the message in Pulsar: `{POSITION}`"),
}
_READINGS: Final = {
    "metric": ("string", "path of the field in the payload, or the last level of the topic"),
    "value": ("double", "the field if it is a number; 1 and 0 for true and false"),
    "text": ("string", "the field if it is not a number, or has digits that a double loses"),
}
_GOLD: Final = {
    "device": ("string", "device"),
    "metric": ("string", "metric of `readings`"),
    "window_start": ("timestamp", "start of the window of event time (`streaming.gold_window`)"),
    "window_end": ("timestamp", "end of the window, not in it"),
    "readings": ("bigint", "number of readings in the window"),
    "min_value": ("double", "least value"),
    "max_value": ("double", "greatest value"),
    "mean_value": ("double", "mean of the values"),
    "first_time": ("timestamp", "time of the first reading"),
    "first_value": ("double", "its value"),
    "last_time": ("timestamp", "time of the last reading"),
    "last_value": ("double", "its value"),
    "late": ("bigint", "number of readings that arrived after the end of the window"),
}
_UPKEEP: Final = {
    "seq": "number of the event, in order",
    "token": "identity of the event",
    "at": "when it was written",
    "table": "table of the request",
    "message": "result, for people",
    "kind": "kind of the request: `rebuild`, `forget`, `optimise`, …",
}
_COLUMN: Final = re.compile(r"`?(\w+)`? (struct<.*?>|\w+(?:<\w+>)?)(?: COMMENT '([^']*)')?(?:, |$)")
_INTERNAL: Final = frozenset({"_payload", "_fault"})
"""Columns of a flow that no table has: the writer takes them for the quarantine."""


def _ddl(text: str, notes: dict[str, str] | None = None) -> Iterator[tuple[str, str, str]]:
    """Give name, type and comment of each column of a DDL text."""
    for found in _COLUMN.finditer(text):
        name, kind, comment = found.groups()
        yield name, "struct" if kind.startswith("struct") else kind, comment or (notes or {})[name]


def _written(names: Iterable[str], *notes: dict[str, tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    known = {name: note for one in notes for name, note in one.items()}
    for name in names:
        if name not in _INTERNAL:
            kind, text = known[name]
            yield name, kind, text


def _names_of_readings() -> list[str]:
    last = inspect.getsource(readings.long_rows).rpartition("selectExpr(")[2]
    return [m[1] or m[2] for m in re.finditer(r'AS (\w+)"|^ +"(\w+)",$', last, re.MULTILINE)]


def _names_of_gold() -> list[str]:
    source = inspect.getsource(built_in._gold)
    keys = re.search(r"keys=\[(.*?)\]", source)
    assert keys is not None
    return list(dict.fromkeys(re.findall(r'"(\w+)"', keys[1]) + re.findall(r'\.alias\("(\w+)"\)', source)))


def tables_page() -> str:
    """Return the page with the columns of each table."""
    stored = ("stored_at", "timestamp", "start of the micro-batch that stored it")
    messages = [(name, kind, _MESSAGE[name]) for name, kind in SOURCE_COLUMNS]
    sections: list[tuple[str, str, Rows]] = [
        ("bronze", "Each message, as Pulsar stores it, once.", [*messages, stored]),
        ("readings", "One row for each field of a payload.", _written(_names_of_readings(), _COMMON, _READINGS)),
        (
            "Typed tables",
            "Tables of `streaming.tables`, of a module, or of a preset. They have these columns, the captures of their "
            "filter, and their own. A table with a suite also has `_warnings array<string>`: the rules of severity "
            "`warning` that the row failed.",
            _written((*_FIRST, *_LAST), _COMMON),
        ),
        (
            "gold",
            "`readings` by device, metric and window. A late reading corrects its window.",
            _written(_names_of_gold(), _GOLD),
        ),
        ("device_latest", "The newest row of `readings` for each device and metric, with the same columns.", []),
        ("alerts", "What the rules found, with the command, if any.", _ddl(ALERTS_SCHEMA)),
        ("quarantine", "Rows that failed a rule of their table.", _ddl(QUARANTINE_SCHEMA)),
        (
            "quality_results",
            "Verdicts of Great Expectations.",
            [(name, kind, text) for name, kind, text in RESULT_COLUMNS],
        ),
        ("_upkeep", "Requests of `pulsebridge tables`, and the running jobs.", _ddl(_EVENT, _UPKEEP)),
    ]
    filled = ((name, text, list(rows)) for name, text, rows in sections)
    return _TABLES + "".join(f"\n## {name}\n\n{text}\n{_table(rows) if rows else ''}" for name, text, rows in filled)


# --- receipts -----------------------------------------------------------------------------------------------------

_RECEIPTS: Final = """\
# Receipts

A receipt is the result of one command. Push writes it to the topic `command-receipts` of the system namespace, as JSON
with these fields. The key is the device, or the group of a group command. `bridge.receipts()` reads them in Python; there
the times are timestamps named `…_at`. [Commands from any Pulsar client](../guides/any-client.md) shows an example, and
[Push](../guides/push.md#receipts) has the meaning of each state.
"""
_FIELDS: Final = {
    "v": "version of the receipt",
    "command_id": "id of the command",
    "device": "device of the command",
    "mqtt_topic": "MQTT topic of the command",
    "state": "the result, one of the states below",
    "reason": "reason of a failure, in words",
    "position": "position of the command: generation, partition, ledger, entry, index",
    "attempts": "number of PUBLISHes",
    "emitted_at_us": "when the command was written, in µs since 1970; 0 if unknown",
    "pushed_at_us": "time of the last PUBLISH, in µs since 1970; 0 if there was none",
    "confirmed_at_us": "time of the broker's confirmation, in µs since 1970; 0 if there was none",
    "answered_at_us": "time of the device's answer, in µs since 1970; 0 if there was none",
    "answer": "the device's answer in base64, at most its head",
    "answer_length": "length of the answer in bytes",
    "resend_of": "first id of a resent command; empty for others",
    "group": "group of the command, if it was for a group",
    "group_command_id": "id of the group command of which this is the part of one member",
    "members": "number of devices, in the receipt `expanded` of a group command",
}


def receipts_page() -> str:
    """Return the page with the fields and the states of receipts."""
    rows = _table(((name, kind, _FIELDS[name]) for name, kind in RECEIPT_COLUMNS), "field")
    kinds = (("`delivered`: the MQTT broker has it. `answered`: the device has answered", DELIVERIES), ("the device does not get it; `pulsebridge resend` sends it again", FAILURES), ("a remark, and no end", REMARKS), ("a group command has a command for each member", ("expanded",)))  # fmt: skip
    states = "".join(f"| {', '.join(f'`{state}`' for state in names)} | {text} |\n" for text, names in kinds)
    return f"{_RECEIPTS}{rows}\n## States\n\n| state | kind |\n|---|---|\n{states}\nTreat an unknown state as text.\n"


# --- metrics ------------------------------------------------------------------------------------------------------

_METRICS: Final = """\
# Metrics

Counters, gauges and histograms, in base units. No device and no topic is a label (`decoder` is the filter of a decoder,
as the rules file has it). `pulsebridge config metrics` prints this table. [Monitoring](../operate/monitoring.md) says how
to read them, and what MoP's names mean.

"""


def metrics_page() -> str:
    """Return the page of all metrics."""
    return _METRICS + table(catalogue())


# --- HTTP ---------------------------------------------------------------------------------------------------------

_HTTP: Final = """\
# HTTP API

Ingest serves it with `messaging_protocols: [mqtt, http]`. [Messages and commands over HTTP](../devices/http.md) has
examples, the answers with their meaning, and how to grant access.

| method and path | what it does |
|---|---|
| `POST {topics}{{mqtt topic}}` | publishes the body to the MQTT topic, which is percent-encoded once |
| `GET {devices}{{device}}/commands` | waits for the next command of the device |
| `POST {devices}{{device}}/commands/{{position}}` | confirms a command; the body is the device's answer |

With `metrics.port` each process also answers `GET /metrics`, `GET /healthz` and `GET /readyz` there
([Monitoring](../operate/monitoring.md)).
"""
_QUERY: Final = {
    "qos": "`1` (the default) or `0`",
    "retain": "only `false`: Pulsebridge retains no message",
    "contentType": "content type of the message",
    "responseTopic": "response topic of the message",
    "messageExpiry": "seconds until the message expires",
}
_HEADERS: Final = {
    "content-type": "content type",
    "response-topic": "response topic, without wildcards",
    "correlation-data": "correlation data, base64",
    "payload-format-indicator": f"one of {', '.join(f'`{one}`' for one in requests._FORMATS)}",
    "payload-format": "the same",
    "message-expiry": "seconds until the message expires",
}


def http_page() -> str:
    """Return the page of the HTTP API."""
    head = _HTTP.format(topics=requests.PREFIX.decode(), devices=requests.DEVICES_PREFIX.decode())
    query = "".join(f"| `{name}` | {_QUERY[name]} |\n" for name in requests._QUERY)
    assert _HEADERS.keys() == requests._FIELDS.keys()
    named = ("`Content-Type`" if name == "content-type" else f"`MQTT-{name.title()}`" for name in _HEADERS)
    headers = "".join(f"| {name} | {text} |\n" for name, text in zip(named, _HEADERS.values(), strict=True))
    return (
        f"{head}\n## Parameters of a publish\n\n| parameter | meaning |\n|---|---|\n{query}"
        f"\n## Headers of a publish\n\n| header | meaning |\n|---|---|\n{headers}"
        "| `MQTT-User-Property` | `name=value`, percent-encoded; may be repeated |\n"
        "\nThe prefix `x-amz-mqtt5-` works instead of `MQTT-`. A parameter takes precedence over its header.\n"
    )


# --- Python -------------------------------------------------------------------------------------------------------

_PYTHON: Final = """\
# Python API

These are the public functions and classes. Everything else may change without notice.
"""
_PUBLIC: Final = (
    ("pulsebridge", "`import pulsebridge as pb`", ("connect", "spark", "register", "lab")),
    ("pulsebridge.connection", "What `pb.connect()` returns", ("Connection", "Sent", "Records")),
    ("pulsebridge.explore", "What `pb.lab()` returns, for notebooks", ("Lab", "Feed", "Chart", "data_docs", "plot_commands")),
    ("streaming.pipelines", "Your pipeline: `from streaming import pipelines as dp`", ()),
    ("sources", "The source, for a session of your own", ("register", "connection_options")),
    ("sources.progress", "How far a query is behind", ("SourceProgress", "lag_of")),
    ("sinks", "The sinks, for a session of your own", ("register",)),
    ("sinks.receipts", "Commands with their receipts", ("with_receipts", "by_group")),
)  # fmt: skip
_NOT_FOR_USERS: Final = frozenset({"DEVICES", "Declared", "Flow", "Pipeline", "declaring", "running"})
"""Names of ``streaming.pipelines`` that the job uses."""


def python_page() -> str:
    """Return the page of the public Python API, from its docstrings."""
    parts = [_PYTHON]
    for module, about, names in _PUBLIC:
        parts.append(f"\n## {module}\n\n{about}.\n")
        there = importlib.import_module(module)
        for name in names or [one for one in pipelines.__all__ if one not in _NOT_FOR_USERS]:
            parts.extend(_member(getattr(there, name), name))
    return "".join(parts)


def _member(one: Any, name: str) -> Iterator[str]:
    yield f"\n### {name}\n\n"
    if not inspect.isclass(one):
        yield f"{_signature(one, name)}{_prose(one)}"
        return
    yield _prose(one)
    for key, value in vars(one).items():
        if key.startswith(("_", "onQuery")):  # the latter are for Spark
            continue
        if isinstance(value, property):
            yield f"\n**`{key}`** {_prose(value)}"
        elif callable(value) and inspect.getdoc(value):
            yield f"\n**`{key}`**\n\n{_signature(value, key)}{_prose(value)}"


def _signature(one: Callable[..., Any], name: str) -> str:
    shown = inspect.signature(one)
    parameters = [p.replace(annotation=p.empty) for p in shown.parameters.values() if p.name != "self"]
    # Each annotation as it is written: text, because of `from __future__ import annotations`.
    texts = [
        str(plain) + (f": {full.annotation}" if full.annotation is not full.empty else "")
        if plain.default is plain.empty
        else f"{str(plain).partition('=')[0]}{f': {full.annotation}' if full.annotation is not full.empty else ''} = {plain.default!r}"
        for plain, full in zip(parameters, (p for p in shown.parameters.values() if p.name != "self"), strict=True)
    ]
    if any(p.kind is p.KEYWORD_ONLY for p in parameters) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        texts.insert(next(n for n, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), "*")
    result = "" if shown.return_annotation is shown.empty else f" -> {shown.return_annotation}"
    return f"`{name}({', '.join(texts)}){result}`\n\n"


def _prose(one: Any) -> str:
    text = inspect.getdoc(one) or ""
    return "\n\n".join(" ".join(part.split()).replace("``", "`") for part in text.split("\n\n")) + "\n"
