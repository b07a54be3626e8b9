from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from bridge.contract.groups import member_of
from bridge.errors import ConfigError, ContractError
from sinks.columns import GROUP_MEMBER_COLUMNS
from sinks.group_rows import check_schema, read_rows
from sinks.messages import BadRow, PulsarMessage
from sinks.options import read_group_options

SCHEMA = pa.schema([("group", pa.string()), ("device", pa.string()), ("member", pa.bool_())])


def read(*rows: dict[str, Any]) -> list[PulsarMessage | BadRow]:
    return list(read_rows([pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)], "members"))


def test_a_row_puts_a_device_into_a_group_or_takes_it_out() -> None:
    found = read(
        {"group": "g", "device": "d"},
        {"group": "g", "device": "d", "member": True},
        {"group": "g", "device": "d", "member": False},
    )
    members = [member_of(m.key or "", m.payload or b"") for m in found if isinstance(m, PulsarMessage)]
    assert members == [("g", "d", True), ("g", "d", True), ("g", "d", False)]
    assert [m.payload is None for m in found] == [False, False, True], "the end is a tombstone"


def test_names_that_look_alike_together_are_different_members() -> None:
    one, other = read({"group": "a/b", "device": "c"}, {"group": "a", "device": "b/c"})
    assert isinstance(one, PulsarMessage)
    assert isinstance(other, PulsarMessage)
    assert one.key != other.key


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"group": None, "device": "d"}, "group: is null"),
        ({"group": "g", "device": None}, "device: is null"),
        ({"group": "", "device": "d"}, "group: is empty"),
        ({"group": "g", "device": "a\0b"}, "U+0000"),
        ({"group": "g", "device": "d" * 70_000}, "70000 bytes"),
    ],
)
def test_a_bad_row_is_named_and_the_others_go_on(row: dict[str, Any], words: str) -> None:
    good, bad, last = read({"group": "g", "device": "d"}, row, {"group": "g", "device": "e"})
    assert isinstance(bad, BadRow)
    assert bad.reason.startswith("row 1 of the task, ")
    assert words in bad.reason
    assert isinstance(good, PulsarMessage)
    assert isinstance(last, PulsarMessage)


def test_the_schema_and_the_options_are_checked() -> None:
    check_schema((name, kinds[0]) for name, kinds in GROUP_MEMBER_COLUMNS.items())
    with pytest.raises(ContractError, match="did you mean device"):
        check_schema([("group", "string"), ("devise", "string")])
    with pytest.raises(ContractError, match="column member is int, wanted boolean"):
        check_schema([("group", "string"), ("device", "string"), ("member", "int")])
    with pytest.raises(ConfigError, match="topic: no such option"):
        read_group_options({"service.url": "pulsar://x:1", "topic": "t"})
    found = read_group_options({"service.url": "pulsar://x:1", "tenant": "t"})
    assert found.topic == "persistent://t/pulsebridge-system/group-members"
