"""The protobuf messages of a Sparkplug B payload (specification, chapter 6, "Google Protocol Buffer schema").

Their fields have the specification's numbers, so any peer can read and write them. The syntax is proto3 instead of
proto2, because only then the protobuf package rejects text that is not UTF-8. This is the only module that imports it.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from sources.payloads.limits import MessageFields

__all__ = ["FIELDS", "DecodeError", "Payload"]

_VALUES: Final = (
    "uint32 int_value", "uint64 long_value", "float float_value", "double double_value", "bool boolean_value",
    "string string_value",
)  # fmt: skip
"""The first fields of each ``oneof value``, in order."""
_MESSAGES: Final[dict[str, tuple[tuple[str, ...], int, tuple[str, ...]]]] = {
    "Payload": (
        ("uint64 timestamp", "*Metric metrics", "uint64 seq", "string uuid", "bytes body"), 0, (),
    ),
    "Metric": (
        ("string name", "uint64 alias", "uint64 timestamp", "uint32 datatype", "bool is_historical",
         "bool is_transient", "bool is_null", "MetaData metadata", "PropertySet properties"),
        10, (*_VALUES, "bytes bytes_value", "DataSet dataset_value", "Template template_value"),
    ),
    "MetaData": (
        ("bool is_multi_part", "string content_type", "uint64 size", "uint64 seq", "string file_name",
         "string file_type", "string md5", "string description"), 0, (),
    ),
    "PropertySet": (("*string keys", "*PropertyValue values"), 0, ()),
    "PropertySetList": (("*PropertySet propertyset",), 0, ()),
    "PropertyValue": (
        ("uint32 type", "bool is_null"), 3,
        (*_VALUES, "PropertySet propertyset_value", "PropertySetList propertysets_value"),
    ),
    "DataSet": (("uint64 num_of_columns", "*string columns", "*uint32 types", "*Row rows"), 0, ()),
    "Row": (("*DataSetValue elements",), 0, ()),
    "DataSetValue": ((), 1, _VALUES),
    "Template": (
        ("string version", "*Metric metrics", "*Parameter parameters", "string template_ref", "bool is_definition"),
        0, (),
    ),
    "Parameter": (("string name", "uint32 type"), 3, _VALUES),
}  # fmt: skip
"""By message: its fields, numbered from 1 on, ``*`` marks repeated ones; and the fields of its ``oneof value``, with the
number of the first."""


def _payload() -> Any:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="sparkplug_b.proto", package="pulsebridge.sparkplug", syntax="proto3"
    )
    for name, (plain, first, values) in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if values:
            message.oneof_decl.add(name="value")
        for number, text in (*enumerate(plain, 1), *enumerate(values, first)):
            kind, field_name = text.lstrip("*").split()
            label = kinds.LABEL_REPEATED if text.startswith("*") else kinds.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=number, label=label)
            if kind in _MESSAGES:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{file.package}.{kind}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
            if number >= first > 0:
                field.oneof_index = 0
            elif label == kinds.LABEL_OPTIONAL and kind not in _MESSAGES:
                field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field_name}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.Payload"))


Payload: Final[Any] = _payload()
"""The class of payloads."""
FIELDS: Final = MessageFields.of(Payload.DESCRIPTOR)
"""What a check of the bytes needs to know of a payload's fields."""
