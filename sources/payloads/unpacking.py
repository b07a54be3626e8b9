"""Decodes in Python payloads that Spark cannot read.

These are compressed payloads, Avro, CBOR, protobuf, and payloads for user functions. Spark's ``from_avro`` and
``from_protobuf`` need jars that pyspark lacks. No payload raises an error: an invalid one has a fault, in words. Its
cost is checked before it is parsed (``limits``), and bounded during that (``process``).
"""

from __future__ import annotations

import base64
import functools
import importlib
import io
import itertools
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bridge.errors import ConfigError, MissingExtraError
from bridge.routing.templates import Filter
from bridge.settings.tables import Decoding
from sources.payloads.compression import expand
from sources.payloads.documents import json_of
from sources.payloads.limits import MessageFields, check_cbor, check_protobuf, check_size
from sources.payloads.message import Message
from sources.payloads.process import DecoderProcess, Limits, Unpacked

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["Unpacked", "needs_python", "unpack_rows", "unpacker", "with_descriptor"]

_ADDED: Final = (("_body", "binary"), ("_document", "string"), ("_broken", "string"))
_BATCH_BYTES: Final = 8 * 1024 * 1024
_ASKED_ROWS: Final = 256
_ASKED_BYTES: Final = 2 * 1024 * 1024
"""Most payloads sent to the decoders' process together. If one of them ends it, each is resent alone."""
_WORDS: Final = 300

Reader = Callable[[bytes, Message], object]
"""Converts payload and message to a value of JSON types."""


def needs_python(decoding: Decoding) -> bool:
    """Whether its payloads need Python."""
    return decoding.compression is not None or decoding.format in (*_READERS, "python")


def with_descriptor(decoding: Decoding) -> Decoding:
    """Return it with the content of its descriptor file, which executors need. Raises ConfigError."""
    if decoding.descriptor is None:
        return decoding
    try:
        content = decoding.descriptor.read_bytes()
    except OSError as e:
        raise ConfigError(
            f"the descriptor of filter {decoding.filter} cannot be read: {e}",
            remedy="make it with protoc --include_imports -o FILE",
        ) from e
    return decoding.model_copy(update={"descriptor": None, "descriptor_set": base64.b64encode(content).decode()})


def unpacker(decoding: Decoding, function: Callable[..., Any] | None = None) -> Callable[[bytes, Message], Unpacked]:
    """Return the decoder of one payload with its message. ``function`` is that of the decoding, already imported.

    Raises MissingExtraError for a package that is not installed, ConfigError for a missing message or function. The
    decoder itself raises only MemoryError.
    """
    if decoding.compression == "zstd":
        _package("zstandard")
    read: Reader | None = None
    if decoding.format == "python":
        read = _rows_of(decoding, function or _function(decoding))
    elif decoding.format in _READERS:
        read = _READERS[decoding.format](decoding)

    def unpack(payload: bytes, message: Message) -> Unpacked:
        what = decoding.compression or decoding.format
        try:
            check_size(len(payload), decoding.max_size)
            body = expand(payload, decoding.compression, decoding.max_size) if decoding.compression else payload
            if read is None:
                return Unpacked(body=body)
            what = decoding.format
            document = json_of(
                read(body, message),
                decoding.max_size,
                max_depth=decoding.max_depth,
                max_values=decoding.max_values,
            )
            return Unpacked(document=document)
        except MemoryError:
            raise  # earlier payloads may have caused it
        except Exception as e:  # noqa: BLE001 — any error of a library or a function is a fault of the payload
            return Unpacked(fault=f"{what}: {type(e).__name__}: {e}"[:_WORDS])

    return unpack


def _avro(decoding: Decoding) -> Reader:
    fastavro = _package("fastavro")
    try:
        schema = fastavro.parse_schema(json.loads(decoding.avro_schema or ""))
    except Exception as e:  # any error about a schema requires another schema
        raise ConfigError(f"fastavro refuses the schema: {e}", remedy="correct avro_schema") from e

    def read(body: bytes, message: Message) -> object:
        stream = io.BytesIO(body)
        found: object = fastavro.schemaless_reader(stream, schema, None)
        if stream.tell() < len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes after the record")
        return found

    return read


def _cbor(decoding: Decoding) -> Reader:
    loads = _package("cbor2").loads

    def read(body: bytes, message: Message) -> object:
        check_cbor(body, max_depth=decoding.max_depth, max_values=decoding.max_values)
        found: object = loads(body)
        return found

    return read


def _protobuf(decoding: Decoding) -> Reader:
    _package("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, unknown_fields

    pool = descriptor_pool.DescriptorPool()
    name = decoding.message or ""
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(decoding.descriptor_set or ""))
        for file in files.file:
            pool.Add(file)
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError as e:
        raise ConfigError(f"the descriptor has no message {name!r}", remedy="give its full name") from e
    except Exception as e:  # any error about a descriptor requires another descriptor
        raise ConfigError(
            f"protobuf refuses the descriptor: {e}", remedy="make it with protoc --include_imports -o FILE"
        ) from e

    fields = MessageFields.of(kind.DESCRIPTOR)

    def read(body: bytes, of: Message) -> object:
        check_protobuf(body, fields, max_depth=decoding.max_depth, max_values=decoding.max_values)
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


def _function(decoding: Decoding) -> Callable[..., Any]:
    module, _, name = (decoding.function or "").partition(":")
    try:
        call = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except Exception as e:  # importing the user's module may raise anything
        raise ConfigError(
            f"function {decoding.function!r} cannot be imported: {type(e).__name__}: {e}",
            remedy="install its package on driver and executors, or put it on PYTHONPATH",
        ) from e
    if not callable(call):
        raise ConfigError(f"function {decoding.function!r} is not a function", remedy="give module:function")
    found: Callable[..., Any] = call
    return found


def _rows_of(decoding: Decoding, call: Callable[..., Any]) -> Reader:
    def read(body: bytes, message: Message) -> object:
        given = call(body, message)
        if given is None or isinstance(given, Mapping):
            return [] if given is None else [given]
        rows = list(itertools.islice(given, decoding.max_elements + 1))
        if len(rows) > decoding.max_elements:
            raise ValueError(f"more rows than max_elements, {decoding.max_elements}")
        for row in rows:
            if not isinstance(row, Mapping):
                raise TypeError(f"{decoding.function} returns a {type(row).__name__}, a row must be a mapping")
        return rows

    return read


_READERS: Final[Mapping[str, Callable[[Decoding], Reader]]] = {
    "avro": _avro,
    "cbor": _cbor,
    "protobuf": _protobuf,
}
_EXTRAS: Final = {"fastavro": "avro"}


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise MissingExtraError(
            f"decoding needs the package {name}",
            remedy=f"pip install 'pulsebridge[{_EXTRAS.get(name, 'decoders')}]' on driver and executors",
        ) from e


_Decoders = Sequence[tuple[Decoding, bytes | None]]
"""The decodings for executors, with the code of their functions."""


def unpack_rows(rows: DataFrame, decodings: Sequence[Decoding]) -> DataFrame:
    """Add ``_body`` (the expanded payload), ``_document`` (JSON) or ``_broken`` (the fault) to rows.

    Column ``_n`` has the number of a row's decoding. All rows go through Python, so that a stream is read once. Raises
    ConfigError or MissingExtraError, with the filter, for a decoding that this machine cannot run.
    """
    for one in decodings:
        try:
            unpacker(one)
        except (ConfigError, MissingExtraError) as e:
            raise type(e)(f"filter {one.filter}: {e.what}", remedy=e.remedy) from e
    from pyspark import cloudpickle

    dumps: Any = cloudpickle.dumps
    # A function of a module loaded from its file is pickled with its code.
    decoders = [(one, dumps(_function(one)) if one.format == "python" else None) for one in decodings]
    schema = rows.selectExpr("*", *(f"CAST(NULL AS {kind}) AS {name}" for name, kind in _ADDED)).schema
    return rows.mapInArrow(functools.partial(_unpack_batches, decoders), schema)


_of_worker: tuple[object, DecoderProcess] | None = None
"""A Python worker of Spark runs many tasks, mostly of one query. It keeps this process."""


def _process_of(decoders: _Decoders) -> DecoderProcess:
    global _of_worker
    if _of_worker is not None:
        known, process = _of_worker
        if known == decoders:
            return process
        process.close()
    process = DecoderProcess(
        {n: unpacker(one, None if code is None else pickle.loads(code)) for n, (one, code) in enumerate(decoders)},
        {n: Limits(one.max_time, one.max_memory // 1024**2) for n, (one, _) in enumerate(decoders)},
    )
    _of_worker = decoders, process
    return process


def _unpack_batches(decoders: _Decoders, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Called by Spark on an executor for a partition. Yields more batches than it reads, as small payloads grow."""
    process = _process_of(decoders)
    filters = [Filter.parse(one.filter) for one, _ in decoders]
    for batch in batches:
        found: list[Unpacked] = []
        size = start = 0
        for rows in _asked(batch, filters):
            for one in process.decode(rows):
                found.append(one)
                size += len(one.body or b"") + len(one.document or "")
                if size > _BATCH_BYTES:
                    yield _with(batch.slice(start, len(found)), found)
                    start, size, found = start + len(found), 0, []
        if found:
            yield _with(batch.slice(start, len(found)), found)


def _asked(batch: pa.RecordBatch, filters: Sequence[Filter]) -> Iterator[list[tuple[int, bytes, Message]]]:
    """Yield the rows of a batch in groups."""
    names = ("_n", "payload", "mqtt_topic", "device", "arrival_time", "user_properties")
    rows: list[tuple[int, bytes, Message]] = []
    size = 0
    for start in range(0, batch.num_rows, _ASKED_ROWS):
        part = batch.select(names).slice(start, _ASKED_ROWS)
        for row in part.to_pylist():
            topic = row["mqtt_topic"] or ""
            user = tuple((one["name"], one["value"]) for one in row["user_properties"] or ())
            captures = filters[row["_n"]].match(topic.split("/")) or {}
            message = Message(topic, row["device"], captures, row["arrival_time"], user)
            rows.append((row["_n"], row["payload"] or b"", message))
            size += len(rows[-1][1])
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
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], [*batch.schema.names, *(name for name, _ in _ADDED)])
