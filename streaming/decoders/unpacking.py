"""Decodes in Python what Spark cannot read: compressed payloads, CBOR, protobuf, and by functions of one's own.

Spark's ``from_protobuf`` needs a jar that pyspark does not carry, and drops fields that the descriptor does not know;
protobuf's own package keeps them. Nothing that a device sends raises: what is wrong with a payload is told in words.
"""

from __future__ import annotations

import base64
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bridge.errors import ConfigError, MissingExtraError
from streaming.decoders.compression import expand
from streaming.decoders.documents import json_of
from streaming.decoders.settings import Decoder, parse_decoders

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["ADDED", "Unpacked", "check_packages", "needs_python", "unpack_rows", "unpacker"]

ADDED: Final = "body binary, document string, fault string"
"""The columns that ``unpack_rows`` adds: the payload, expanded; or its document as JSON; or what is wrong with it."""

_BATCH_BYTES: Final = 8 * 1024 * 1024
_WORDS: Final = 300


class Unpacked(NamedTuple):
    """What a payload gave: one of the three."""

    body: bytes | None = None
    document: str | None = None
    fault: str | None = None


Reader = Callable[[bytes, str], object]
"""Payload and MQTT topic in, a value as JSON has it out."""


def needs_python(decoder: Decoder) -> bool:
    """Whether its payloads go through Python."""
    return decoder.compression is not None or decoder.format in _READERS


def unpacker(decoder: Decoder) -> Callable[[bytes, str], Unpacked]:
    """Return what decodes one payload, given with its MQTT topic.

    Raises MissingExtraError for a package that is not installed, ConfigError for a message or a function that is not
    there.
    """
    if decoder.compression == "zstd":
        _package("zstandard")
    make = _READERS.get(decoder.format)
    read = None if make is None else make(decoder)

    def unpack(payload: bytes, topic: str) -> Unpacked:
        what: str | None = decoder.compression
        try:
            body = payload if what is None else expand(payload, what, decoder.max_bytes)
            if read is None:
                return Unpacked(body=body)
            what = decoder.format
            return Unpacked(document=json_of(read(body, topic), decoder.max_bytes))
        except Exception as e:  # noqa: BLE001 — whatever a payload makes a library or a function raise is its fault
            return Unpacked(fault=f"{what}: {type(e).__name__}: {e}"[:_WORDS])

    return unpack


def check_packages(decoders: Sequence[Decoder], where: str) -> None:
    """Raise ConfigError, or MissingExtraError, for the first decoder that could not decode on this machine."""
    for n, decoder in enumerate(decoders):
        try:
            unpacker(decoder)
        except (ConfigError, MissingExtraError) as e:
            raise type(e)(
                f"{where}: readings[{n}] (filter {decoder.filter}): {e.what}", remedy=e.remedy
            ) from e


def _cbor(decoder: Decoder) -> Reader:
    loads = _package("cbor2").loads
    return lambda body, topic: loads(body)


def _protobuf(decoder: Decoder) -> Reader:
    _package("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, unknown_fields

    pool = descriptor_pool.DescriptorPool()
    name = decoder.message or ""
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(decoder.descriptor_set or ""))
        for file in files.file:
            pool.Add(file)
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError as e:
        raise ConfigError(f"the descriptor has no message {name!r}", remedy="give its full name") from e
    except Exception as e:  # whatever it raises about a descriptor, the descriptor is what must change
        raise ConfigError(
            f"protobuf refuses the descriptor: {e}", remedy="make it with protoc --include_imports -o FILE"
        ) from e

    def read(body: bytes, topic: str) -> object:
        message = kind.FromString(body)
        found: dict[str, object] = json_format.MessageToDict(
            message,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            descriptor_pool=pool,
        )
        unknown: Any = unknown_fields.UnknownFieldSet(message)
        for one in unknown:
            if isinstance(one.data, (int, bytes)):
                found.setdefault(f"field{one.field_number}", one.data)
        return found

    return read


def _function(decoder: Decoder) -> Reader:
    module, _, name = (decoder.function or "").partition(":")
    try:
        found = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except Exception as e:  # the module is the user's: importing it may raise anything
        raise ConfigError(
            f"function {decoder.function!r} cannot be imported: {type(e).__name__}: {e}",
            remedy="install its package on driver and executors, or put it on PYTHONPATH",
        ) from e
    if not callable(found):
        raise ConfigError(f"function {decoder.function!r} is no function", remedy="give module:function")
    reader: Reader = found
    return reader


_READERS: Final[Mapping[str, Callable[[Decoder], Reader]]] = {
    "cbor": _cbor,
    "protobuf": _protobuf,
    "python": _function,
}


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise MissingExtraError(
            f"decoding needs the package {name}",
            remedy="pip install 'pulsebridge[decoders]' on driver and executors",
        ) from e


def unpack_rows(rows: DataFrame, decoders: Sequence[Decoder]) -> DataFrame:
    """Add the columns ``ADDED`` to rows with the number of their ``decoder``; others than these are left alone."""
    from pyspark.sql import functions as F

    numbers = [n for n, decoder in enumerate(decoders) if needs_python(decoder)]
    ours = F.coalesce(F.col("decoder").isin(numbers), F.lit(False))
    plain = rows.where(~ours).withColumns(
        {
            "body": F.col("payload"),
            "document": F.lit(None).cast("string"),
            "fault": F.lit(None).cast("string"),
        }
    )
    recipe = [d.model_dump(exclude_defaults=True) for d in decoders]
    unpacked = rows.where(ours).mapInArrow(functools.partial(_unpack_batches, recipe), plain.schema)
    return plain.unionAll(unpacked)


def _unpack_batches(
    recipe: Sequence[Mapping[str, Any]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Called by Spark on an executor for a partition. Gives more batches than it takes, as small payloads grow."""
    decoders = parse_decoders(recipe, "recipe")
    unpackers = {n: unpacker(decoder) for n, decoder in enumerate(decoders) if needs_python(decoder)}
    for batch in batches:
        numbers, payloads, topics = (batch.column(name) for name in ("decoder", "payload", "mqtt_topic"))
        found: list[Unpacked] = []
        size = start = 0
        for at in range(batch.num_rows):
            payload = payloads[at].as_py()
            one = unpackers[numbers[at].as_py()](
                b"" if payload is None else payload, topics[at].as_py() or ""
            )
            found.append(one)
            size += len(one.body or b"") + len(one.document or "")
            if size > _BATCH_BYTES:
                yield _with(batch.slice(start, len(found)), found)
                start, size, found = at + 1, 0, []
        if found:
            yield _with(batch.slice(start, len(found)), found)


def _with(batch: pa.RecordBatch, found: Sequence[Unpacked]) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [
        pa.array([one.body for one in found], pa.binary()),
        pa.array([one.document for one in found], pa.string()),
        pa.array([one.fault for one in found], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(
        [*batch.columns, *columns], [*batch.schema.names, "body", "document", "fault"]
    )
