"""Decodes in Python what Spark cannot read: compressed payloads, CBOR, protobuf, and by functions of one's own.

Spark's ``from_protobuf`` needs a jar that pyspark does not carry, and drops fields that the descriptor does not know;
protobuf's own package keeps them. Nothing that a device sends raises: what is wrong with a payload is told in words.
What a payload may cost is checked before it is parsed (``limits``), and bounded while it is (``process``).
"""

from __future__ import annotations

import base64
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bridge.errors import ConfigError, MissingExtraError
from streaming.decoders.compression import expand
from streaming.decoders.documents import json_of
from streaming.decoders.limits import MessageFields, check_cbor, check_protobuf, check_size
from streaming.decoders.process import DecoderProcess, Limits, Unpacked
from streaming.decoders.settings import Decoder, parse_decoders

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["ADDED", "Unpacked", "check_packages", "needs_python", "unpack_rows", "unpacker"]

ADDED: Final = "body binary, document string, fault string"
"""The columns that ``unpack_rows`` adds: the payload, expanded; or its document as JSON; or what is wrong with it."""

_BATCH_BYTES: Final = 8 * 1024 * 1024
_ASKED_ROWS: Final = 256
_ASKED_BYTES: Final = 2 * 1024 * 1024
"""So many payloads go to the decoders' process together; where one of them ends it, each goes once more alone."""
_WORDS: Final = 300


Reader = Callable[[bytes, str], object]
"""Payload and MQTT topic in, a value as JSON has it out."""


def needs_python(decoder: Decoder) -> bool:
    """Whether its payloads go through Python."""
    return decoder.compression is not None or decoder.format in _READERS


def unpacker(decoder: Decoder) -> Callable[[bytes, str], Unpacked]:
    """Return what decodes one payload, given with its MQTT topic.

    Raises MissingExtraError for a package that is not installed, ConfigError for a message or a function that is not
    there. What is returned raises MemoryError alone.
    """
    if decoder.compression == "zstd":
        _package("zstandard")
    make = _READERS.get(decoder.format)
    read = None if make is None else make(decoder)

    def unpack(payload: bytes, topic: str) -> Unpacked:
        what = decoder.compression or decoder.format
        try:
            check_size(len(payload), decoder.max_bytes)
            body = expand(payload, decoder.compression, decoder.max_bytes) if decoder.compression else payload
            if read is None:
                return Unpacked(body=body)
            what = decoder.format
            document = json_of(
                read(body, topic),
                decoder.max_bytes,
                max_depth=decoder.max_depth,
                max_values=decoder.max_values,
            )
            return Unpacked(document=document)
        except MemoryError:
            raise  # it may be what earlier payloads have left
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

    def read(body: bytes, topic: str) -> object:
        check_cbor(body, max_depth=decoder.max_depth, max_values=decoder.max_values)
        found: object = loads(body)
        return found

    return read


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

    fields = MessageFields.of(kind.DESCRIPTOR)

    def read(body: bytes, topic: str) -> object:
        check_protobuf(body, fields, max_depth=decoder.max_depth, max_values=decoder.max_values)
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
    plain = _plain(rows.where(~ours), decoders)
    if not numbers:
        return plain
    recipe = [d.model_dump(exclude_defaults=True) for d in decoders]
    unpacked = rows.where(ours).mapInArrow(functools.partial(_unpack_batches, recipe), plain.schema)
    return plain.unionAll(unpacked)


def _plain(rows: DataFrame, decoders: Sequence[Decoder]) -> DataFrame:
    from pyspark.sql import functions as F

    size = F.octet_length("payload")
    fault = F.lit(None).cast("string")
    for n, decoder in enumerate(decoders):
        words = F.concat(size.cast("string"), F.lit(f" bytes, max_bytes is {decoder.max_bytes}"))
        fault = F.when((F.col("decoder") == n) & (size > decoder.max_bytes), words).otherwise(fault)
    rows = rows.withColumn("fault", fault)
    return rows.withColumns(
        {"body": F.when(F.col("fault").isNull(), F.col("payload")), "document": F.lit(None).cast("string")}
    ).select(*(c for c in rows.columns if c != "fault"), "body", "document", "fault")


_of_worker: tuple[object, DecoderProcess] | None = None
"""A Python worker of Spark works for one task after the other, mostly of one query; the process stays with it."""


def _process_of(recipe: Sequence[Mapping[str, Any]]) -> DecoderProcess:
    global _of_worker
    if _of_worker is not None:
        known, process = _of_worker
        if known == recipe:
            return process
        process.close()
    decoders = {n: d for n, d in enumerate(parse_decoders(recipe, "recipe")) if needs_python(d)}
    process = DecoderProcess(
        {n: unpacker(decoder) for n, decoder in decoders.items()},
        {n: Limits(decoder.max_seconds, decoder.max_memory_mb) for n, decoder in decoders.items()},
    )
    _of_worker = recipe, process
    return process


def _unpack_batches(
    recipe: Sequence[Mapping[str, Any]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Called by Spark on an executor for a partition. Gives more batches than it takes, as small payloads grow."""
    process = _process_of(recipe)
    for batch in batches:
        found: list[Unpacked] = []
        size = start = 0
        for rows in _asked(batch):
            for one in process.decode(rows):
                found.append(one)
                size += len(one.body or b"") + len(one.document or "")
                if size > _BATCH_BYTES:
                    yield _with(batch.slice(start, len(found)), found)
                    start, size, found = start + len(found), 0, []
        if found:
            yield _with(batch.slice(start, len(found)), found)


def _asked(batch: pa.RecordBatch) -> Iterator[list[tuple[int, bytes, str]]]:
    """Yield the rows of a batch, some at a time."""
    columns = [batch.column(name) for name in ("decoder", "payload", "mqtt_topic")]
    rows: list[tuple[int, bytes, str]] = []
    size = 0
    for start in range(0, batch.num_rows, _ASKED_ROWS):
        of = [column.slice(start, _ASKED_ROWS) for column in columns]
        for number, payload, topic in zip(of[0].to_pylist(), of[1], of[2].to_pylist(), strict=True):
            body = payload.as_py() or b""
            rows.append((number, body, topic or ""))
            size += len(body)
            if len(rows) >= _ASKED_ROWS or size > _ASKED_BYTES:
                yield rows
                rows, size = [], 0
    if rows:
        yield rows


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
