"""Reads the schemas of topics from Pulsar's admin REST for ``sources.decoding``."""

from __future__ import annotations

from typing import Any

from bridge.errors import ConfigError
from bridge.pulsar.admin import PulsarAdmin, rest_path
from sources.decoding import Decoding, columns_of, require_avro
from sources.options import SourceOptions
from sources.value_types import TopicSchema

__all__ = ["decoding_of", "schema_version"]


def schema_version(admin: PulsarAdmin, topic: str, version: int) -> TopicSchema:
    """Return one version. Raises RefusedError if there is none, TransientError if the admin is unreachable."""
    return _schema(admin.request("GET", f"{_path(topic)}/{version}"))


def decoding_of(options: SourceOptions) -> Decoding | None:
    """Return the decoding by the newest schema of the topics. None if values stay raw bytes.

    Raises ConfigError if a topic has no schema, if schemas differ, or if theirs is unsupported.
    """
    if options.decode == "none":
        return None
    with PulsarAdmin(options.pulsar) as admin:
        topics = options.topics
        if options.pattern is not None:
            topics = options.pattern.matching(admin.topics(options.pattern.folder))
        found = {topic: _newest(admin, topic) for topic in topics}
    schemas = set(found.values())
    if None in schemas or not schemas:
        without = [topic for topic, schema in found.items() if schema is None]
        raise ConfigError(
            f"decode={options.decode}: no schema exists for {', '.join(without) or 'any topic'}",
            remedy="start a producer with a schema, upload one (pulsar-admin schemas upload), or set decode=none",
        )
    if len(schemas) > 1:
        raise ConfigError(
            f"decode={options.decode}: the topics have different schemas: {', '.join(sorted(found))}",
            remedy="read those with one schema in one query, or set decode=none",
        )
    (schema,) = schemas
    assert schema is not None
    require_avro(schema)
    decoding = Decoding(schema, options.decode == "fields", options.null_undecodable)
    columns_of(decoding)
    return decoding


def _newest(admin: PulsarAdmin, topic: str) -> TopicSchema | None:
    body = admin.request("GET", _path(topic), accept=(404,))
    return None if body is None else _schema(body)


def _path(topic: str) -> str:
    return f"/schemas/{rest_path(topic).partition('/')[2]}/schema"


def _schema(body: Any) -> TopicSchema:
    return TopicSchema(str(body["type"]), str(body.get("data") or ""))
