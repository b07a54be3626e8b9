"""Spark reads and writes on a Pulsar with TLS and authorization, each with the token of its own role from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bridge.contract import COMMANDS_TOPIC, partition_name
from bridge.pulsar.client import PulsarClient
from bridge.settings.pulsar import OAuth2Settings
from bridge.settings.secret_file import SecretFile
from sources.options import connection_options
from tests.support.certificates import Authority
from tests.support.issuer import Issuer
from tests.support.secured import PULSAR_USER, SecuredPulsar
from tests.support.secured_tiers import granted, payloads, provisioned_for, write_reading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark]

COMMAND = """
    SELECT 'c-1' AS command_id, 'd1' AS device, 'commands/d1' AS mqtt_topic, encode('reset', 'UTF-8') AS payload
"""


@pytest.mark.thorough
def test_spark_reads_a_stream_and_writes_commands_with_the_least_rights(
    spark: SparkSession, pulsar: SecuredPulsar, tmp_path: Path
) -> None:
    admin = provisioned_for(pulsar, {"source": "reader", "sink": "writer"})
    options: dict[str, dict[str, str]] = {}
    for role in ("reader", "writer"):
        (tmp_path / role).write_text(pulsar.token(role), encoding="utf-8")
        settings = admin.model_copy(update={"token": SecretFile(tmp_path / role)})
        options[role] = connection_options(settings)
        assert pulsar.token(role) not in str(options[role])
    topic = admin.readings_topic("plant")
    with PulsarClient(admin) as client:
        producer: Any = client.producer(partition_name(topic, 0))
        for number in range(3):
            producer.send(f"{number}".encode())
        producer.close()
    readings = (
        spark.readStream.format("pulsebridge")
        .options(**options["reader"], topic=topic, predefinedSubscription="q", startingOffsets="earliest")
        .load()
        .select("value")
    )
    query = (
        readings.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "table"))
    )
    assert query.awaitTermination(120)
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted(bytes(row.value) for row in rows) == [b"0", b"1", b"2"]

    where = {"tenant": admin.tenant, "namespace": admin.namespace, "system.namespace": admin.system_namespace}

    def write() -> None:
        commands = spark.sql(COMMAND).write.format("pulsebridge_commands")
        commands.options(**options["writer"], **where, provision="false").mode("append").save()

    write()
    assert payloads(admin, admin.system_topic(COMMANDS_TOPIC)) == [b"reset"]
    granted(admin, admin.system_namespace, "writer", "produce")
    with pytest.raises(Exception, match=r"grant-permission .* --role writer --actions consume"):
        write()


@pytest.mark.thorough
def test_tasks_read_with_a_client_certificate(spark: SparkSession, pulsar: SecuredPulsar, authority: Authority) -> None:
    admin = provisioned_for(pulsar, {"source": "tasks"})
    topic = admin.readings_topic("plant")
    write_reading(admin, topic)
    pem = authority.issue("tasks", common_name="tasks")
    settings = admin.model_copy(update={"token": None, "tls_certificate": pem.certificate, "tls_private_key": pem.key})
    rows = spark.read.format("pulsebridge").options(**connection_options(settings), topic=topic).load()
    assert [bytes(row.value) for row in rows.select("value").collect()] == [b"a reading"]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["basic", "oauth2"])
def test_tasks_read_and_write_with_a_user_and_with_tokens_of_an_issuer(
    kind: str, spark: SparkSession, pulsar: SecuredPulsar, authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(pulsar.password, encoding="utf-8")
    secret = SecretFile(tmp_path / "secret")
    admin = provisioned_for(pulsar, {"source": PULSAR_USER, "sink": PULSAR_USER})
    topic = admin.readings_topic("plant")
    write_reading(admin, topic)
    with Issuer(pulsar.token, certificate=authority.issue("issuer")).running() as issuer:
        issuer.clients[PULSAR_USER] = secret.get_secret_value()
        values: dict[str, object] = {"username": PULSAR_USER, "password": secret}
        if kind == "oauth2":
            found = {"client_id": PULSAR_USER, "client_secret": secret, "tls_ca": authority.file}
            values = {"oauth2": OAuth2Settings(issuer_url=issuer.url, **found)}
        options = connection_options(admin.model_copy(update={"token": None} | values))
        rows = spark.read.format("pulsebridge").options(**options, topic=topic).load()
        assert [bytes(row.value) for row in rows.select("value").collect()] == [b"a reading"]
        where = {"tenant": admin.tenant, "namespace": admin.namespace, "system.namespace": admin.system_namespace}
        commands = spark.sql(COMMAND).write.format("pulsebridge_commands")
        commands.options(**options, **where, provision="false").mode("append").save()
    assert payloads(admin, admin.system_topic(COMMANDS_TOPIC)) == [b"reset"]
    assert bool(issuer.requests) == (kind == "oauth2")
