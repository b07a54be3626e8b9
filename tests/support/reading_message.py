"""Payloads of one reading: in protobuf, made without protoc, with its descriptor; and a decoder of a user's own."""

from __future__ import annotations

import itertools

from google.protobuf import descriptor_pb2

from sources.payloads.message import Message

__all__ = ["descriptor_set", "encoded", "hexadecimal"]


def descriptor_set() -> bytes:
    """Return the FileDescriptorSet of ``t.Reading {string id = 1; string ts = 2; double t = 3;}``."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    message = file.message_type.add(name="Reading")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(
        (("id", kinds.TYPE_STRING), ("ts", kinds.TYPE_STRING), ("t", kinds.TYPE_DOUBLE)), 1
    ):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    return bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


def encoded(reading_id: str, ts: str, value: float) -> bytes:
    """Return a reading as its device sends it; zeros are left out, as proto3 has it."""
    import struct

    fields = [
        b"\x0a" + bytes([len(reading_id)]) + reading_id.encode(),
        b"\x12" + bytes([len(ts)]) + ts.encode(),
    ]
    return b"".join(fields) + (b"\x19" + struct.pack("<d", value) if value else b"")


def hexadecimal(payload: bytes, message: Message) -> object:
    """Return the reading in a payload of hexadecimal digits; raises ValueError for another, and ``forever`` blocks it."""
    if payload == b"forever":
        any(map(bool, itertools.repeat(0)))  # in C, with the lock of the interpreter
    return {"id": message.topic, "ts": "2026-01-02T11:00:00Z", "t": int(payload, 16)}
