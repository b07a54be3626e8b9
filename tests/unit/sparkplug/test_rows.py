from __future__ import annotations

import json
import pickle
import random
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from sparkplug.nodes import Births, NodeState
from sparkplug.payloads import PayloadError, Topic, command, parse_topic, read_payload
from sparkplug.processor import EventProcessor, MetricProcessor, Processor, replayed, unpacked
from sparkplug.rows import EVENT_ROW, METRIC_ROW, Message, event_rows, metric_rows, node_of
from sparkplug.schema import Payload
from sparkplug.values import NUMBERS
from tests.support.sparkplug_node import EdgeNode, Sent, hour, in_log, payload

EVERY_US = 60_000_000


def metrics(sent: list[Sent]) -> list[dict[str, Any]]:
    return [_named(METRIC_ROW, row) for row in metric_rows(NodeState(), Births({}), in_log(sent), EVERY_US)]


def events(sent: list[Sent]) -> list[dict[str, Any]]:
    return [_named(EVENT_ROW, row) for row in event_rows(NodeState(), in_log(sent), EVERY_US)]


def _named(columns: Any, row: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip([name for name, _ in columns], row, strict=True))


def test_topics() -> None:
    assert parse_topic("spBv1.0/G/NDATA/N") == Topic("G", "NDATA", "N", None)
    assert parse_topic("spBv1.0/G 1/DBIRTH/N/D") == Topic("G 1", "DBIRTH", "N", "D")
    assert node_of("spBv1.0/G/DDATA/N/D") == "G/N"
    for other in ("spBv1.0/STATE/host", "spBv1.0/G/NCMD/N", "spBv1.0/G/NDATA/N/D", "spBv1.0/G/DDATA/N", "spAv1.0/G/NDATA/N",
                  "spBv1.0//NDATA/N", "spBv1.0/G/NDATA/N\n/x", "x/spBv1.0/G/NDATA/N"):  # fmt: skip
        assert parse_topic(other) is None
        assert node_of(other) is None


def test_metrics_get_name_and_type_from_the_birth() -> None:
    node = EdgeNode("G/N", [("temp", "Double", "1.5"), ("count", "Int16", "3"), ("on", "Boolean", "true")])
    rows = metrics([node.birth(), node.data("2.5", "-4", "false")])
    born, data = rows[:5], rows[5:]
    assert [row["metric"] for row in born] == ["bdSeq", "Node Control/Rebirth", "temp", "count", "on"]
    assert [(row["metric"], row["datatype"], row["value"], row["integer"], row["truth"]) for row in data] == [
        ("temp", "Double", 2.5, None, None), ("count", "Int16", -4.0, -4, None), ("on", "Boolean", 0.0, None, False),
    ]  # fmt: skip
    assert {(row["device"], row["group_id"], row["edge_node_id"], row["device_id"]) for row in rows} == {
        ("G/N", "G", "N", None)
    }
    assert [row["element"] for row in data] == [0, 1, 2]
    assert (data[0]["alias"], data[0]["seq"], data[0]["mark"]) == (Decimal(100), 1, None)
    assert data[0]["metric_ms"] == data[0]["sent_ms"] == node.now_ms


def test_metrics_of_devices_have_aliases_of_their_own() -> None:
    node = EdgeNode()
    rows = metrics([node.birth(), node.device_birth("D", 100), node.device_data("D", "7", base=100)])
    assert (rows[-1]["metric"], rows[-1]["device_id"], rows[-1]["value"]) == ("temp", "D", 7.0)


def test_an_unknown_alias_is_marked_and_its_value_kept() -> None:
    node = EdgeNode()
    sent = [
        node.birth(),
        Sent(node.topic("NDATA"), payload([(None, 9, "Float", "2")], seq=1, typed=False), node.now_ms),
    ]
    row = metrics(sent)[-1]
    assert (row["metric"], row["alias"], row["value"], row["mark"]) == (None, Decimal(9), 2.0, "alias")


def test_a_payload_that_is_not_sparkplug_is_a_fault_and_then_a_gap() -> None:
    node = EdgeNode()
    sent = [node.birth(), node.data("1"), node.data("2"), node.data("3")]
    sent[2] = sent[2]._replace(payload=b"\xff\xff")
    first, fault, last = metrics(sent)[3:]
    assert (first["mark"], fault["_payload"], last["mark"]) == (None, b"\xff\xff", "gap")
    assert "sparkplug: " in fault["_fault"]
    assert [row["event"] for row in events(sent)] == ["online", "gap", "rebirth"]


def test_a_metric_that_does_not_fit_fails_alone() -> None:
    node = EdgeNode()
    bad = Payload(seq=1, timestamp=5)
    bad.metrics.add(alias=100).string_value = "warm"
    bad.metrics.add(alias=100).double_value = 2.0
    bad.metrics.add(alias=100, timestamp=2**63).double_value = 2.0
    fault, good, late = metrics([node.birth(), Sent(node.topic("NDATA"), bad.SerializeToString(), node.now_ms)])[3:]
    assert fault["_fault"] == "sparkplug: Double in the field string_value"
    assert Payload().metrics.add().FromString(fault["_payload"]).string_value == "warm"
    assert (good["value"], good["_fault"], good["_payload"]) == (2.0, None, None)
    assert "after the year 9999" in late["_fault"]


def test_all_that_a_metric_can_carry() -> None:
    node = EdgeNode()
    made = Payload(seq=1, timestamp=5)
    one = made.metrics.add(
        name="file", alias=2**64 - 1, datatype=NUMBERS["File"], is_historical=True, is_transient=True
    )
    one.bytes_value = b"\x01"
    one.metadata.file_name = "a.bin"
    one.metadata.size = 1
    one.properties.keys.append("unit")
    one.properties.values.add(type=NUMBERS["String"], string_value="°C")
    made.metrics.add(name="none", datatype=NUMBERS["Int32"], is_null=True)
    file, none = metrics([node.birth(), Sent(node.topic("NDATA"), made.SerializeToString(), node.now_ms)])[3:]
    assert (file["bytes"], file["is_historical"], file["is_transient"], file["is_null"]) == (b"\x01", True, True, False)
    assert json.loads(file["metadata"]) == {"size": 1, "file_name": "a.bin"}
    assert json.loads(file["properties"]) == {"unit": "°C"}
    assert file["alias"] == Decimal(2**64 - 1)
    assert (none["is_null"], none["value"], none["datatype"]) == (True, None, "Int32")


def test_limits_of_a_payload() -> None:
    with pytest.raises(PayloadError, match="max_size"):
        read_payload(bytes(2 * 1024 * 1024))
    with pytest.raises(PayloadError, match="more values"):
        read_payload(b"\x12\x00" * 200_000)
    deep = b"\x12\x00"  # the metrics of a template, as those of a payload, are its second field
    for _ in range(40):
        metric = b"\x92\x01" + _length(deep) + deep
        deep = b"\x12" + _length(metric) + metric
    with pytest.raises(PayloadError, match="nested deeper"):
        read_payload(deep)


def _length(data: bytes) -> bytes:
    size, found = len(data), b""
    while size > 127:
        found, size = found + bytes([size & 127 | 128]), size >> 7
    return found + bytes([size])


@pytest.mark.tck(
    "tck-id-payloads-alias-data-cmd-requirement", "tck-id-payloads-dcmd-seq", "tck-id-payloads-dcmd-timestamp",
    "tck-id-payloads-name-cmd-requirement", "tck-id-payloads-ncmd-seq",
    "tck-id-payloads-ncmd-timestamp",
)  # fmt: skip
def test_commands_have_a_timestamp_no_seq_and_an_alias_instead_of_a_name() -> None:
    made = Payload.FromString(command(77, "speed", "-3", NUMBERS["Int32"], 5))
    assert (made.timestamp, made.HasField("seq")) == (77, False)
    (one,) = made.metrics
    assert (one.alias, one.HasField("name"), one.datatype, one.int_value) == (5, False, 3, 2**32 - 3)
    (one,) = Payload.FromString(command(77, "Node Control/Rebirth", "true", NUMBERS["Boolean"], 5)).metrics
    assert (one.name, one.HasField("alias"), one.boolean_value) == ("Node Control/Rebirth", False, True)


def _by_node(messages: list[Message]) -> dict[str, list[Message]]:
    found: dict[str, list[Message]] = {}
    for one in messages:
        node = node_of(one.mqtt_topic)
        assert node is not None
        found.setdefault(node, []).append(one)
    return found


def test_an_hour_cut_at_a_thousand_random_places_gives_equal_rows() -> None:
    dice = random.Random(27)
    sent = hour(27)
    cuts = sorted({0, len(sent), *dice.sample(range(1, len(sent)), 1000)})
    log = in_log(sent)
    whole: dict[str, list[Any]] = {}
    for node, messages in _by_node(log).items():
        rows = list(metric_rows(NodeState(), Births({}), messages, EVERY_US))
        whole[node] = [rows, list(event_rows(NodeState(), messages, EVERY_US))]
    cut: dict[str, list[Any]] = {node: [[], []] for node in whole}
    kept: dict[str, tuple[str, dict[str, str], str]] = {}
    for begin, end in pairwise(cuts):
        for node, messages in _by_node(log[begin:end]).items():
            state, stored, of_events = kept.get(node, (NodeState().to_json(), {}, NodeState().to_json()))
            one, other = NodeState.of_json(state), NodeState.of_json(of_events)
            cut[node][0] += metric_rows(one, Births(stored), messages, EVERY_US)
            cut[node][1] += event_rows(other, messages, EVERY_US)
            kept[node] = one.to_json(), stored, other.to_json()
    assert cut == whole
    marks = {row[7] for rows, _ in whole.values() for row in rows}
    assert marks == {None, "gap", "unborn", "repeat", "stale"}
    found = {row[-3] for _, rows in whole.values() for row in rows}
    assert found == {"online", "offline", "stale", "gap", "rebirth"}


@pytest.mark.parametrize("processor", [MetricProcessor(EVERY_US), EventProcessor(EVERY_US)])
def test_packed_rows_and_replayed_messages_of_nodes_become_the_same_columns(processor: Processor) -> None:
    pa = pytest.importorskip("pyarrow")
    by_node = _by_node(in_log([*hour(3, 400), EdgeNode("G/none", [("nan", "Double", "nan")]).birth()]))
    parts = [part for messages in by_node.values() for _, part in processor.parts(NodeState(), Births({}), messages)]
    packed = pa.RecordBatch.from_pydict({"packed": [pickle.dumps(part) for part in parts]})
    (found,) = unpacked(processor)([packed])
    given = [(node, *message) for node, messages in by_node.items() for message in messages]
    sizes = (150, len(given) - 150)
    cut = [given[: sizes[0]], given[sizes[0] :]]
    names = ["node", *Message._fields]
    (again,) = replayed(processor)(
        [pa.RecordBatch.from_pylist([dict(zip(names, one, strict=True)) for one in part]) for part in cut]
    )
    assert found.schema == again.schema
    assert found.schema.names == [name for name, _ in processor.columns]
    rows = [tuple(row.values()) for row in found.to_pylist()]
    assert list(map(repr, rows)) == [repr(tuple(row.values())) for row in again.to_pylist()]
    texts = [list(map(_text, row)) for row in rows]
    assert texts == [list(map(_text, row)) for part in parts for row in part]


def _text(value: Any) -> str:
    return str(int(value) if isinstance(value, Decimal) else value)


def test_rows_of_many_or_long_messages_come_in_several_batches() -> None:
    pa = pytest.importorskip("pyarrow")
    node = EdgeNode("G/N", [("note", "String", "x")])
    sent = [node.birth(), *(node.data("y" * 200_000) for _ in range(200))]
    parts = list(MetricProcessor(EVERY_US).parts(NodeState(), Births({}), in_log(sent)))
    assert [len(part) for _, part in parts[:2]] == [5, 2]  # the birth has three metrics
    packed = pa.RecordBatch.from_pydict({"packed": [pickle.dumps(part) for _, part in parts]})
    found = [batch.num_rows for batch in unpacked(MetricProcessor(EVERY_US))([packed])]
    assert sum(found) == 203
    assert len(found) == 3
    few = pa.RecordBatch.from_pydict({"packed": [pickle.dumps(parts[0][1] * 1_000)] * 7})
    assert [batch.num_rows for batch in unpacked(MetricProcessor(EVERY_US))([few])] == [10_000, 10_000, 10_000, 5_000]
