from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkplug.schema import Payload
from sparkplug.values import NAMES, NUMBERS, Budget, Value, properties_of, set_value, value_of


def metric(**fields: Any) -> Any:
    return Payload().metrics.add(**fields)


def read(kind: str, **fields: Any) -> Value:
    return value_of(metric(**fields), NUMBERS[kind], Budget(1000))


def array(kind: str, packed: bytes) -> Any:
    found = read(kind, bytes_value=packed).json
    assert found is not None
    return json.loads(found)


INTEGERS = {
    "Int8": (-(2**7), 2**7 - 1), "Int16": (-(2**15), 2**15 - 1), "Int32": (-(2**31), 2**31 - 1), "Int64": (-(2**63), 2**63 - 1),
    "UInt8": (0, 2**8 - 1), "UInt16": (0, 2**16 - 1), "UInt32": (0, 2**32 - 1), "UInt64": (0, 2**64 - 1),
}  # fmt: skip


def test_the_data_types_have_the_numbers_of_the_specification() -> None:
    assert [NAMES[n] for n in (1, 8, 11, 13, 16, 19, 21, 22, 32, 34)] == [
        "Int8", "UInt64", "Boolean", "DateTime", "DataSet", "Template", "PropertySetList", "Int8Array", "BooleanArray",
        "DateTimeArray",
    ]  # fmt: skip


@given(st.sampled_from(sorted(INTEGERS)), st.data())
def test_an_integer_of_each_width_comes_back_as_it_was_written(kind: str, data: st.DataObject) -> None:
    number = data.draw(st.integers(*INTEGERS[kind]))
    one = metric()
    set_value(one, NUMBERS[kind], str(number))
    found = value_of(one, NUMBERS[kind], Budget(0))
    if number < 2**63:
        assert found == Value(float(number), number)
    else:
        assert (found.integer, found.text) == (None, str(number))


@pytest.mark.tck(
    "tck-id-operational-behavior-data-commands-dcmd-metric-value",
    "tck-id-operational-behavior-data-commands-ncmd-metric-value",
)  # fmt: skip
@pytest.mark.parametrize("kind", INTEGERS)
def test_a_number_beyond_the_width_is_a_fault_on_both_ways(kind: str) -> None:
    low, high = INTEGERS[kind]
    for number in (low - 1, high + 1):
        with pytest.raises(ValueError, match=f"is not an {kind}"):
            set_value(metric(), NUMBERS[kind], str(number))
    if kind not in ("Int64", "UInt64"):
        with pytest.raises(ValueError, match=f"is not an {kind}"):
            read(kind, long_value=2 * high + 2)


def test_a_negative_number_may_have_the_width_of_the_type_or_of_the_field() -> None:
    assert [read("Int8", int_value=raw).integer for raw in (0xFF, 0xFFFF_FFFF)] == [-1, -1]
    assert read("Int16", long_value=2**64 - 5).integer == -5


def test_basic_types() -> None:
    assert read("Float", float_value=0.5) == Value(0.5)
    assert read("Double", double_value=-1.25) == Value(-1.25)
    assert read("Boolean", boolean_value=True) == Value(1.0, truth=True)
    for kind in ("String", "Text", "UUID"):
        assert read(kind, string_value="Ä") == Value(text="Ä")
    assert read("DateTime", long_value=1_486_144_502_122) == Value(time_ms=1_486_144_502_122)
    for kind in ("Bytes", "File"):
        assert read(kind, bytes_value=b"\x00\xff") == Value(content=b"\x00\xff")


def test_nulls() -> None:
    assert read("Double") == Value()
    assert read("Double", is_null=True, double_value=3.0) == Value()


def test_a_value_of_an_unknown_type_is_what_its_field_shows() -> None:
    one = metric(boolean_value=True)
    assert value_of(one, 0, Budget(0)) == Value(1.0, truth=True)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("Int32", {"string_value": "1"}), ("String", {"int_value": 1}), ("Boolean", {"int_value": 1}),
        ("DateTime", {"long_value": 2**63}), ("Int8Array", {"string_value": ""}), ("Int16Array", {"bytes_value": b"\0"}),
        ("BooleanArray", {"bytes_value": b"\x01"}), ("BooleanArray", {"bytes_value": b"\xff\0\0\0\0"}),
        ("StringArray", {"bytes_value": b"no end"}), ("StringArray", {"bytes_value": b"\xff\0"}),
        ("PropertySet", {"int_value": 1}), ("DoubleArray", {"bytes_value": bytes(8 * 1001)}),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_a_value_error(kind: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        read(kind, **fields)


def test_arrays_as_the_specification_shows_them() -> None:
    assert array("Int8Array", bytes.fromhex("EF7B")) == [-17, 123]
    assert array("Int16Array", bytes.fromhex("D08A3075")) == [-30000, 30000]
    assert array("Int32Array", bytes.fromhex("FFFFFFFFFAAFCB12")) == [-1, 315338746]
    assert array("Int64Array", bytes.fromhex("CE0672AC189CBAC4")) == [-4270929666821191986]
    assert array("UInt8Array", bytes.fromhex("17FA")) == [23, 250]
    assert array("UInt16Array", bytes.fromhex("1E0088CC")) == [30, 52360]
    assert array("UInt32Array", bytes.fromhex("3400000049FB55C4")) == [52, 3293969225]
    assert array("UInt64Array", struct.pack("<2Q", 52, 16444743074749521625)) == [52, 16444743074749521625]
    assert array("FloatArray", struct.pack("<2f", 1.5, float("nan"))) == [1.5, "NaN"]
    assert array("DoubleArray", struct.pack("<2d", 12.354213, float("inf"))) == [12.354213, "Infinity"]
    packed = bytes.fromhex("0C00000034D0")
    bits = [False, False, True, True, False, True, False, False, True, True, False, True]
    assert array("BooleanArray", packed) == bits
    assert array("StringArray", bytes.fromhex("414243 00 68656c6c6f 00")) == ["ABC", "hello"]
    assert array("DateTimeArray", bytes.fromhex("C7D0907524010000B8BAB89781010000")) == [1256102875335, 1656107875000]


def test_a_data_set() -> None:
    one = metric()
    found = one.dataset_value
    found.num_of_columns = 3
    found.columns.extend(["a", "b", "c"])
    found.types.extend([NUMBERS["Int8"], NUMBERS["String"], NUMBERS["Double"]])
    row = found.rows.add()
    row.elements.add(int_value=0xFF)
    row.elements.add(string_value="x")
    row.elements.add()
    made = json.loads(value_of(one, NUMBERS["DataSet"], Budget(0)).json or "")
    assert made == {"columns": ["a", "b", "c"], "types": ["Int8", "String", "Double"], "rows": [[-1, "x", None]]}
    found.rows.add().elements.add(int_value=1)
    with pytest.raises(ValueError, match="1 elements for 3 columns"):
        value_of(one, NUMBERS["DataSet"], Budget(0))
    del found.types[0]
    with pytest.raises(ValueError, match="2 types"):
        value_of(one, NUMBERS["DataSet"], Budget(0))


def test_templates_with_their_definition_nested_and_with_parameters() -> None:
    one = metric()
    found = one.template_value
    found.is_definition, found.version = True, "v1"
    found.parameters.add(name="p", type=NUMBERS["Int32"], int_value=0xFFFF_FFFF)
    inner = found.metrics.add(name="inner", datatype=NUMBERS["Template"]).template_value
    inner.template_ref, inner.is_definition = "other", False
    inner.metrics.add(name="t", datatype=NUMBERS["Float"], float_value=0.5)
    inner.metrics.add(alias=7, datatype=NUMBERS["Bytes"], bytes_value=b"\xff")
    inner.metrics.add(name="many", datatype=NUMBERS["Int8Array"], bytes_value=b"\xff")
    inner.metrics.add(name="none", datatype=NUMBERS["Int8"], is_null=True)
    made = json.loads(value_of(one, NUMBERS["Template"], Budget(1)).json or "")
    assert made["is_definition"] is True
    assert made["parameters"] == {"p": -1}
    (member,) = made["metrics"]
    assert member["value"]["template_ref"] == "other"
    assert member["value"]["metrics"] == [
        {"name": "t", "datatype": "Float", "value": 0.5}, {"alias": 7, "datatype": "Bytes", "value": "/w=="},
        {"name": "many", "datatype": "Int8Array", "value": [-1]}, {"name": "none", "datatype": "Int8", "value": None},
    ]  # fmt: skip


def test_properties_and_their_sets() -> None:
    one = metric().properties
    one.keys.extend(["Quality", "none", "set", "sets"])
    one.values.add(type=NUMBERS["Int32"], int_value=192)
    one.values.add(type=NUMBERS["String"], is_null=True)
    inner = one.values.add(type=NUMBERS["PropertySet"]).propertyset_value
    inner.keys.append("deep")
    inner.values.add(type=NUMBERS["Double"], double_value=float("-inf"))
    one.values.add(type=NUMBERS["PropertySetList"]).propertysets_value.propertyset.add()
    assert properties_of(one) == {"Quality": 192, "none": None, "set": {"deep": "-Infinity"}, "sets": [{}]}
    one.keys.append("more")
    with pytest.raises(ValueError, match="5 keys and 4 values"):
        properties_of(one)


@pytest.mark.parametrize(
    ("kind", "text", "field", "value"),
    [
        ("Float", "0.5", "float_value", 0.5), ("Double", "1e3", "double_value", 1000.0),
        ("Boolean", "TRUE", "boolean_value", True), ("Boolean", "0", "boolean_value", False),
        ("String", "x", "string_value", "x"), ("DateTime", "5", "long_value", 5), ("Int16", "-1", "int_value", 2**32 - 1),
        ("Int64", "-1", "long_value", 2**64 - 1), ("UInt32", "5", "long_value", 5), ("Int32", "1e3", "int_value", 1000),
        ("Bytes", "/w==", "bytes_value", b"\xff"),
    ],
)  # fmt: skip
def test_values_of_commands_from_text(kind: str, text: str, field: str, value: Any) -> None:
    one = metric()
    set_value(one, NUMBERS[kind], text)
    assert (one.WhichOneof("value"), getattr(one, field)) == (field, value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("Boolean", "yes"), ("Int8", "1.5"), ("Int8", "x"), ("Double", "warm"), ("DateTime", "-1"), ("DataSet", "{}"), ("Bytes", "é")],
)  # fmt: skip
def test_values_that_no_command_can_have(kind: str, text: str) -> None:
    with pytest.raises(ValueError):
        set_value(metric(), NUMBERS[kind], text)
