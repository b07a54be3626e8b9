"""Basic authentication and OAuth2 client credentials at a real Pulsar: every tier, renewal, rotation, and refusals."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from bridge.contract import RECEIPTS_TOPIC, Receipt, partition_name
from bridge.errors import DeniedError
from bridge.inspect.check import check_endpoints
from bridge.intake.metrics import INGEST
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.settings import IngestSettings, PulsarSettings, PushSettings, Settings
from bridge.settings.pulsar import OAuth2Settings
from bridge.settings.secret_file import SecretFile
from sources.options import connection_options, parse
from sources.planning import Limits
from sources.reading import read_range
from sources.stream import StreamPlanner
from tests.support.certificates import Authority
from tests.support.ingest import running_ingest
from tests.support.issuer import Issuer
from tests.support.reading_back import patiently
from tests.support.secured import PULSAR_PASSWORDS, PULSAR_USER, SecuredArtemis, SecuredPulsar
from tests.support.secured_tiers import PLANT, payloads, provisioned_for, pushing, write_command
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

TIERS = ("ingest", "push", "source", "sink")
CLIENT = "by-issuer"


def acknowledged() -> float:
    samples = (s for metric in INGEST.counters["acked"].collect() for s in metric.samples)
    return sum(s.value for s in samples if s.name.endswith("_total"))


@contextmanager
def tiers(mine: PulsarSettings, admin: PulsarSettings, artemis: SecuredArtemis) -> Iterator[Callable[[bytes], None]]:
    """Run ingest, push and a streaming query; the function carries a reading to Spark and a command to a device."""
    topic, command_topic = admin.readings_topic("plant"), f"commands/{uuid.uuid4().hex[:8]}"
    mine = mine.model_copy(update={"provision": "verify"})
    ingest = Settings(mqtt=artemis.settings("ingest"), pulsar=mine, ingest=IngestSettings(routes=(PLANT,)))
    push = Settings(
        mqtt=artemis.settings("push"),
        pulsar=mine,
        push=PushSettings(client_id=f"push-{uuid.uuid4().hex[:8]}", retry={"max_wait": "500ms"}),
    )
    asked = {"topic": topic, "predefinedSubscription": "q", "startingOffsets": "earliest", "columns": "value"}
    planner = StreamPlanner(parse({**connection_options(mine), **asked}, streaming=True))
    got: list[Message] = []
    device = artemis.settings("device")
    # Asked again, because a Pulsar that was just restarted answers late.
    outside = admin.model_copy(update={"operation_timeout": 5.0})

    def delivered(command: str) -> bool:
        receipts = map(Receipt.decode, patiently(payloads, outside, admin.system_topic(RECEIPTS_TOPIC)))
        return any(r.command_id == command and r.state == "delivered" for r in receipts)

    def read(start: Any) -> tuple[Any, list[bytes]]:
        end = planner.latest_offset(start, Limits())
        batches = [batch for task in planner.tasks(start, end) for batch in read_range(task)]
        planner.commit(end)
        return end, [value for batch in batches for value in batch.column("value").to_pylist()]

    with (
        running_ingest(ingest),
        pushing(push) as failures,
        DeviceClient(device, device.client_id, on_message=got.append) as client,
    ):
        client.subscribe(command_topic)
        at = planner.initial_offset()

        def carry(reading: bytes) -> None:
            nonlocal at
            before, found, commands = acknowledged(), [], len(got)
            client.publish("plant/d1/t", reading)
            command = patiently(write_command, outside, command_topic)
            poll_for(lambda: reading in patiently(payloads, outside, topic), 60, "the reading in Pulsar")
            poll_for(lambda: acknowledged() > before, 30, "the acknowledgement")

            def reached_spark() -> bool:
                nonlocal at
                at, rows = patiently(read, at)
                found.extend(rows)
                return reading in found

            poll_for(reached_spark, 60, "the reading in Spark's source")
            poll_for(lambda: failures or delivered(command), 60, "the receipt")
            assert not failures
            poll_for(lambda: len(got) > commands, 30, "the command at the device")

        try:
            yield carry
        finally:
            planner.close()


def test_a_user_and_its_password_serve_every_tier(pulsar: SecuredPulsar, artemis: SecuredArtemis) -> None:
    admin = provisioned_for(pulsar, dict.fromkeys(TIERS, PULSAR_USER))
    password = SecretStr(pulsar.password)
    mine = admin.model_copy(update={"token": None, "username": PULSAR_USER, "password": password})
    with tiers(mine, admin, artemis) as carry:
        carry(b"a reading")


@pytest.mark.thorough
def test_a_new_password_needs_no_restart(
    folder: Path, authority: Authority, artemis: SecuredArtemis, tmp_path: Path
) -> None:
    pulsar = SecuredPulsar(folder / "restarted", authority)
    file = tmp_path / "password"
    file.write_text(pulsar.password, encoding="utf-8")
    (second,) = PULSAR_PASSWORDS.keys() - {pulsar.password}
    try:
        pulsar.start()
        admin = provisioned_for(pulsar, dict.fromkeys(TIERS, PULSAR_USER))
        mine = admin.model_copy(update={"token": None, "username": PULSAR_USER, "password": SecretFile(file)})
        with tiers(mine, admin, artemis) as carry:
            carry(b"before")
            file.write_text(second, encoding="utf-8")
            pulsar.restart(second)
            carry(b"after")
    finally:
        pulsar.stop()


@pytest.fixture
def issuer(pulsar: SecuredPulsar, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[Issuer]:
    """Tokens that end after five seconds; the broker looks for ended ones once a second."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = Issuer(lambda role: pulsar.token(role, seconds=5), seconds=5, certificate=authority.issue("issuer"))
    made.clients[CLIENT] = "a-client-secret"
    with made.running():
        yield made


@pytest.mark.thorough
def test_oauth2_tokens_serve_every_tier_and_are_renewed_while_running(
    pulsar: SecuredPulsar, artemis: SecuredArtemis, issuer: Issuer, tmp_path: Path
) -> None:
    admin = provisioned_for(pulsar, dict.fromkeys(TIERS, CLIENT))
    file = tmp_path / "secret"
    file.write_text("a-client-secret", encoding="utf-8")
    oauth2 = OAuth2Settings(
        issuer_url=issuer.url, client_id=CLIENT, client_secret=SecretFile(file), tls_ca=pulsar.authority.file
    )
    mine = admin.model_copy(update={"token": None, "oauth2": oauth2})
    partition = partition_name(admin.readings_topic("plant"), 0)
    with tiers(mine, admin, artemis) as carry, PulsarAdmin(admin) as outside:

        def since() -> list[str]:
            return [p["connectedSince"] for p in outside.stats(partition)["publishers"]]

        def outlived_its_token() -> bool:
            connected, renewed = since(), len(issuer.requests) + 2
            poll_for(lambda: len(issuer.requests) >= renewed, 60, "two more tokens")
            return connected == since() != []

        carry(b"first")
        issuer.clients[CLIENT] = "the-next-secret"
        file.write_text("the-next-secret", encoding="utf-8")
        # The broker asks for a new token on the open connection. If it gets none in a second, it closes the connection.
        poll_for(outlived_its_token, 60, "a new token on the open connection of ingest")
        carry(b"second")
        assert issuer.requests[-1]["client_secret"] == "the-next-secret"
        issuer.answers["token"] = (503, b"")
        poll_for(lambda: not outside.stats(partition)["publishers"], 60, "the end of what has no new token")
        issuer.answers.clear()
        carry(b"third")


@pytest.mark.parametrize(
    ("change", "words", "remedy"),
    [
        ({"username": PULSAR_USER, "password": SecretStr("wr0ng-one")}, "does not accept our credentials", "pulsar.password"),
        ({"client_secret": SecretStr("wr0ng-one")}, "'by-issuer': invalid_client", "pulsar.oauth2.client_id"),
        ({"client_id": "another-client"}, "'another-client': invalid_client", "pulsar.oauth2.client_id"),
        ({"issuer_url": "https://127.0.0.1:1"}, "cannot be reached", "pulsar.oauth2.issuer_url"),
    ],
)  # fmt: skip
def test_what_is_refused_is_one_line_with_the_setting(
    pulsar: SecuredPulsar, issuer: Issuer, change: dict[str, Any], words: str, remedy: str
) -> None:
    if "username" not in change:
        oauth2 = {"issuer_url": issuer.url, "client_id": CLIENT, "client_secret": SecretStr("a-client-secret")}
        change = {"oauth2": OAuth2Settings(**(oauth2 | {"tls_ca": pulsar.authority.file} | change))}
    settings = pulsar.settings(None, operation_timeout="3s", **change)
    findings = [f for f in check_endpoints(Settings(pulsar=settings)) if f.name != "MQTT broker"]
    lines = [f"{f.detail} {f.remedy}" for f in findings]
    if words != "cannot be reached":
        with PulsarClient(settings) as client, pytest.raises(DeniedError) as caught:
            client.partitions("persistent://public/default/x")
        lines.append(str(caught.value))
    assert not any(f.ok for f in findings)
    for line in lines:
        assert words in line
        assert remedy in line
        assert "\n" not in line
        assert "wr0ng-one" not in line
