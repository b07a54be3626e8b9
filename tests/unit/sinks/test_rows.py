from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from bridge.contract import C_DEVICE, C_EMITTED, C_GROUP, C_ID, C_QOS, C_TOPIC
from bridge.contract.commands import MAX_COMMAND_BYTES, Command
from bridge.contract.groups import GroupCommand, decode_group_command
from bridge.errors import ContractError, TransientError
from bridge.pending import MAX_PENDING_BYTES
from bridge.pulsar.client import OK
from sinks import group_rows, mqtt_rows, topic_rows
from sinks.columns import COMMAND_COLUMNS
from sinks.messages import BadRow
from sinks.pending import Receipts
from sinks.rows import REQUIRED_COLUMNS, check_schema, message_of, messages_of
from tests.support.command_rows import read_rows

TOPICS = topic_rows.Plan("persistent://a/b/t", False, False, "persistent://public/system/")
MQTT = mqtt_rows.Plan("t", True, False)
messages = partial(messages_of, topic="commands", groups="groups", alerts="alerts", max_name_bytes=1024)
AT = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=timezone.utc)


def micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    whole = {
        "command_id": "c",
        "device": "d",
        "mqtt_topic": "t",
        "payload": b"p",
        "emitted_at": None,
        "qos": None,
    }
    schema = pa.schema(
        [("command_id", pa.string()), ("device", pa.string()), ("mqtt_topic", pa.string()), ("payload", pa.binary()),
         ("emitted_at", pa.timestamp("us", "Europe/Berlin")), ("qos", pa.int32())]
    )  # fmt: skip
    return pa.RecordBatch.from_pylist([whole | row for row in rows], schema=schema)


def test_a_row_becomes_a_command_to_the_microsecond() -> None:
    (command,) = read_rows([batch({"emitted_at": AT, "qos": 2}).append_column("link", pa.array(["far"]))])
    assert isinstance(command, Command)
    assert command.link == "far"
    assert command.emitted_at_us == 1767268800123456
    assert (command.qos, command.retain, command.expires_at_ms) == (2, False, 0)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"device": None}, "device"),
        ({"command_id": None}, "command_id"),
        ({"payload": None}, "payload"),
        ({"qos": 5}, "qos"),
        ({"mqtt_topic": "devices/#"}, "mqtt_topic"),
        ({"mqtt_topic": "devices/\x1b"}, "mqtt_topic"),
        ({"command_id": "a\nb"}, "command_id"),
        ({"command_id": "i" * 65_536}, "command_id"),
    ],
)
def test_a_bad_row_is_named_and_the_others_go_on(row: dict[str, Any], field: str) -> None:
    first, bad, last = read_rows([batch({}), batch(row, {"command_id": "z"})])
    assert isinstance(first, Command)
    assert isinstance(bad, BadRow)
    assert bad.reason.startswith(f"row 1 of the task, {field}: ")
    assert isinstance(last, Command)


@pytest.mark.parametrize("us", [0, 999])
def test_an_expiry_at_the_epoch_is_refused_for_it_would_mean_never(us: int) -> None:
    columns = batch({}, {}).columns[:4]
    times = pa.array([us, 1000], pa.timestamp("us", "UTC"))
    names = ["command_id", "device", "mqtt_topic", "payload", "expires_at"]
    bad, good = read_rows([pa.record_batch([*columns, times], names=names)])
    assert isinstance(bad, BadRow)
    assert bad.reason.startswith("row 0 of the task, expires_at: is 1970-01-01")
    assert isinstance(good, Command)
    assert good.expires_at_ms == 1


def group_batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    whole = {"command_id": "c", "payload": b"p"}
    names = ("command_id", "device", "group", "mqtt_topic")
    schema = pa.schema(
        [
            *((name, pa.string()) for name in names),
            ("payload", pa.binary()),
            ("emitted_at", pa.timestamp("us", "UTC")),
        ]
    )
    return pa.RecordBatch.from_pylist([whole | row for row in rows], schema=schema)


def test_only_a_command_to_a_group_is_broadcast() -> None:
    flags = pa.array([True, False, None, True], pa.bool_())
    rows = group_batch({"group": "g"}, {"group": "g"}, {"group": "g"}, {"device": "d", "mqtt_topic": "t"})
    *groups, device = read_rows([rows.append_column("broadcast", flags)])
    assert [isinstance(one, GroupCommand) and one.broadcast for one in groups] == [True, False, False]
    assert isinstance(device, BadRow)
    assert "broadcast: is true" in device.reason


def test_a_row_is_for_one_device_or_for_one_group() -> None:
    one, group, plain, both, none, no_topic, no_device, template = read_rows(
        [
            group_batch(
                {"device": "d", "mqtt_topic": "t"},
                {"group": "g", "mqtt_topic": "t/{device}"},
                {"group": "g"},
                {"group": "g", "device": "d", "mqtt_topic": "t"},
                {"mqtt_topic": "t"},
                {"device": "d"},
                {"group": "", "mqtt_topic": "t/{device}"},
                {"group": "g", "mqtt_topic": "all"},
            )
        ]
    )
    assert isinstance(one, Command)
    assert isinstance(group, GroupCommand)
    assert isinstance(plain, GroupCommand)
    assert (group.mqtt_topic, plain.mqtt_topic) == ("t/{device}", "")
    bad = [
        row.reason.partition(", ")[2] for row in (both, none, no_topic, no_device, template) if isinstance(row, BadRow)
    ]
    assert [reason.partition(":")[0] for reason in bad] == [
        "group",
        "device",
        "mqtt_topic",
        "group",
        "mqtt_topic",
    ]
    assert "only one of them" in bad[0]
    assert "and so is group" in bad[1]
    assert isinstance(both, BadRow)
    assert both.device == "d"


def test_a_group_command_goes_to_a_topic_of_its_own_keyed_by_group() -> None:
    (command,) = read_rows([group_batch({"group": "g", "emitted_at": AT})])
    assert isinstance(command, GroupCommand)
    message = message_of(3, command, "commands", "group-commands")
    assert (message.topic, message.key, message.payload) == ("group-commands", "g", b"p")
    assert decode_group_command(message.properties, b"p") == command


def test_h22_the_order_of_a_group_is_kept_beside_those_of_devices_that_are_called_like_it() -> None:
    earlier = AT - timedelta(seconds=1)
    rows = [
        {"group": "x", "emitted_at": AT},
        {"device": "x", "mqtt_topic": "t", "emitted_at": earlier},
        {"group": "x", "emitted_at": earlier},
    ]
    kinds = [type(row) for row in read_rows([group_batch(*rows)])]
    assert kinds == [GroupCommand, Command, BadRow]


def test_a_row_is_an_alert_a_command_or_both() -> None:
    rows = [
        {"device": "d", "mqtt_topic": "t"},
        {},
        {"device": "d", "mqtt_topic": "#"},
        {"device": "d", "mqtt_topic": "t"},
    ]
    alerts = pa.array([b"both", b"alert", b"bad command", None], pa.binary())
    found = list(messages([group_batch(*rows).append_column("alert", alerts)]))
    assert [(one.row, one.topic, one.key, one.payload) for one in found] == [
        (0, "alerts", "d", b"both"), (0, "commands", "d", b"p"), (1, "alerts", None, b"alert"),
        (2, "alerts", None, b"bad command"), (2, "", None, b"p"), (3, "commands", "d", b"p"),
    ]  # fmt: skip
    assert [type(one) for one in found].index(BadRow) == 4


def test_an_alert_is_stored_though_the_device_of_its_command_has_a_name_of_megabytes() -> None:
    rows = batch({"device": "d" * 5_000_000}).append_column("alert", pa.array([b"alert"], pa.binary()))
    alert, command = messages([rows])
    assert (alert.topic, alert.key, alert.payload) == ("alerts", None, b"alert")
    assert isinstance(command, BadRow)
    assert command.problem.field == "device"


def test_an_alert_that_pulsar_would_not_store_is_a_bad_row_and_its_command_is_none() -> None:
    large = pa.array([b"x" * (MAX_COMMAND_BYTES + 1)], pa.binary())
    alert, command = messages([batch({}).append_column("alert", large)])
    assert isinstance(alert, BadRow)
    assert alert.reason == f"row 0 of the task, alert: has 5177345 bytes, at most {MAX_COMMAND_BYTES} are stored"
    assert (alert.topic, command.topic) == ("alerts", "commands")


def test_columns_for_groups_alone_need_no_device() -> None:
    check_schema([("command_id", "string"), ("group", "string"), ("payload", "binary")])
    with pytest.raises(ContractError, match="column mqtt_topic"):
        check_schema([("command_id", "string"), ("group", "string"), ("device", "string"), ("payload", "binary")])


def test_h22_a_row_that_breaks_its_devices_order_is_refused() -> None:
    rows = list(
        read_rows(
            [
                batch({"emitted_at": AT}, {"device": "e", "emitted_at": AT - timedelta(hours=1)}),
                batch({"emitted_at": AT - timedelta(seconds=1)}, {"emitted_at": AT}, {}),
            ]
        )
    )
    assert [type(row) for row in rows] == [Command, Command, BadRow, Command, Command]
    assert isinstance(rows[2], BadRow)
    message = message_of(2, Command("c", "d", "t", b"p", emitted_at_us=micros(AT) - 1_000_000), "", "")
    assert (rows[2].payload, rows[2].properties) == (b"p", message.properties), "all that a replay needs"
    assert "1000000 µs before" in rows[2].reason
    assert "repartition by device" in rows[2].reason


def test_a_bad_row_keeps_what_could_be_read_and_is_not_marked_as_a_command() -> None:
    (bad,) = read_rows([batch({"qos": 7, "emitted_at": AT, "mqtt_topic": "devices/d"})])
    assert isinstance(bad, BadRow)
    assert bad.properties == {
        C_ID: "c", C_DEVICE: "d", C_TOPIC: "devices/d", C_QOS: "7", C_EMITTED: str(micros(AT)),
    }  # fmt: skip
    assert bad.topic == "", "the topic of commands"


def test_a_bad_row_for_a_group_was_meant_for_the_groups_topic() -> None:
    earlier = {"group": "g", "emitted_at": AT - timedelta(seconds=1), "mqtt_topic": "t/{device}"}
    _, late, none, both = messages(
        [
            group_batch(
                {"group": "g", "emitted_at": AT}, earlier, {"group": "g", "mqtt_topic": "all"},
                {"group": "g", "device": "d", "mqtt_topic": "t"},
            )
        ]
    )  # fmt: skip
    assert isinstance(late, BadRow)
    assert isinstance(none, BadRow)
    assert isinstance(both, BadRow)
    assert [row.topic for row in (late, none, both)] == ["groups", "groups", ""]
    found = decode_group_command(late.properties, late.payload)
    assert (found.group, found.mqtt_topic) == ("g", "t/{device}")
    assert (none.properties[C_GROUP], none.properties[C_TOPIC]) == ("g", "all")
    assert none.device == "g"


def test_the_contracts_columns_and_the_required_ones_alone_are_accepted() -> None:
    check_schema(COMMAND_COLUMNS)
    check_schema([column for column in COMMAND_COLUMNS if column[0] in (*REQUIRED_COLUMNS, "device", "mqtt_topic")])


def test_every_problem_of_a_schema_is_listed_with_its_remedy() -> None:
    with pytest.raises(ContractError) as e:
        check_schema([("comand_id", "string"), ("device", "string"), ("mqtt_topic", "int"), ("payload", "string"),
                      ("emitted_at", "timestamp_ntz"), ("zzz", "int")])  # fmt: skip
    text = str(e.value)
    assert "column command_id (string) is missing" in text
    assert "column comand_id is unknown: did you mean command_id?" in text
    assert (
        "column mqtt_topic is int, wanted string: .withColumn('mqtt_topic', col('mqtt_topic').cast('string'))" in text
    )
    assert "column payload is string, wanted binary" in text
    assert "column emitted_at is timestamp_ntz, wanted timestamp" in text
    assert "column zzz is unknown: drop it" in text


@pytest.mark.parametrize(
    ("check", "columns", "twice"),
    [
        (check_schema, [*COMMAND_COLUMNS, ("device", "string")], "device"),
        (group_rows.check_schema, [("group", "string"), ("device", "string"), ("group", "string")], "group"),
        (partial(topic_rows.check_schema, plan=TOPICS), [("value", "binary"), ("value", "string")], "value"),
        (
            partial(mqtt_rows.check_schema, plan=MQTT),
            [("payload", "binary"), ("payload", "binary")],
            "payload",
        ),
    ],
)
def test_a_column_that_is_there_twice_is_refused(
    check: Callable[..., None], columns: list[tuple[str, str]], twice: str
) -> None:
    with pytest.raises(ContractError, match=f"column {twice} occurs 2 times.*rename or drop"):
        check(iter(columns))


def test_h1_the_first_error_fails_the_task_whatever_is_answered_after_it() -> None:
    receipts = Receipts()
    for _ in range(3):
        receipts.sent()
    receipts.answered(OK, None)
    receipts.answered("ProducerQueueIsFull", None)
    receipts.answered(OK, None)
    with pytest.raises(TransientError):
        receipts.wait(0, 10)


def test_h1_missing_receipts_fail_the_task() -> None:
    receipts = Receipts()
    receipts.sent()
    receipts.wait(1, 10)
    with pytest.raises(TransientError, match="1 messages have no receipt"):
        receipts.wait(0, 0.01)


def test_what_is_under_way_is_bounded_in_bytes_as_well() -> None:
    receipts = Receipts()
    large = MAX_PENDING_BYTES - 10
    receipts.wait(5, 0.01, 2 * MAX_PENDING_BYTES)  # goes alone
    receipts.sent(large)
    receipts.wait(5, 0.01, 10)
    with pytest.raises(TransientError, match="1 messages have no receipt"):
        receipts.wait(5, 0.01, 11)
    receipts.answered(OK, None, size=large)
    receipts.wait(5, 0.01, MAX_PENDING_BYTES)
