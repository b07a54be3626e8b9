"""Each tier over TLS with exactly the rights that the README lists, and what it says with one right less."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

from bridge.contract import COMMANDS_TOPIC, RECEIPTS_TOPIC, Receipt, partition_name
from bridge.errors import DeniedError
from bridge.inspect.check import check_rights
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import EARLIEST, PulsarClient
from bridge.settings import IngestSettings, PulsarSettings, PushSettings, Settings, StreamingSettings
from bridge.settings.push import AnswerSettings
from bridge.settings.secret_file import SecretFile
from sources.batch import batch_tasks
from sources.options import connection_options, parse
from sources.planning import Limits
from sources.reading import read_range
from sources.stream import StreamPlanner
from tests.support.certificates import Authority
from tests.support.ingest import running_ingest
from tests.support.secured import SecuredArtemis, SecuredPulsar
from tests.support.secured_tiers import (
    PLANT,
    granted,
    payloads,
    provisioned_for,
    pushing,
    write_command,
    write_reading,
)
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

Modes = pytest.mark.parametrize("mode", ["verify", "off"])


def ingest_of(pulsar: PulsarSettings, artemis: SecuredArtemis, mode: str) -> Settings:
    return Settings(
        mqtt=artemis.settings("ingest"),
        pulsar=pulsar.model_copy(update={"provision": mode}),
        ingest=IngestSettings(routes=(PLANT,)),
    )


def push_of(pulsar: PulsarSettings, artemis: SecuredArtemis, mode: str, user: str = "push") -> Settings:
    return Settings(
        mqtt=artemis.settings(user),
        pulsar=pulsar.model_copy(update={"provision": mode}),
        push=PushSettings(client_id=f"push-{uuid.uuid4().hex[:8]}", retry={"max_wait": "500ms"}),
    )


def states(admin: PulsarSettings) -> dict[str, str]:
    found = [Receipt.decode(data) for data in payloads(admin, admin.system_topic(RECEIPTS_TOPIC))]
    return {receipt.command_id: receipt.state for receipt in found}


# --- ingest -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@Modes
def test_ingest_runs_with_the_right_to_produce_and_a_token_that_rotates(
    mode: str, pulsar: SecuredPulsar, artemis: SecuredArtemis, tmp_path: Path
) -> None:
    admin = provisioned_for(pulsar, {"ingest": "bridge"})
    file = tmp_path / "token"
    ends = time.time() + 5
    file.write_text(pulsar.token("bridge", seconds=5), encoding="utf-8")
    settings = ingest_of(admin.model_copy(update={"token": SecretFile(file)}), artemis, mode)
    device = artemis.settings("device")
    topic = admin.readings_topic("plant")
    with running_ingest(settings), DeviceClient(device, device.client_id) as client:
        client.publish("plant/d1/t", b"first")
        poll_for(lambda: payloads(admin, topic) == [b"first"], 30, "the first reading")
        file.write_text(pulsar.token("bridge", seconds=900), encoding="utf-8")
        poll_for(lambda: time.time() > ends + 2, 30, "the end of the first token")
        client.publish("plant/d1/t", b"second")
        poll_for(lambda: payloads(admin, topic) == [b"first", b"second"], 60, "the reading after the rotation")


@Modes
@pytest.mark.parametrize("less", ["namespace", "system_namespace"])
def test_ingest_without_the_right_to_produce_says_which_grant_is_missing(
    mode: str, less: str, pulsar: SecuredPulsar, artemis: SecuredArtemis
) -> None:
    admin = provisioned_for(pulsar, {"ingest": "bridge"})
    namespace = getattr(admin, less)
    granted(admin, namespace, "bridge", "consume")
    settings = ingest_of(pulsar.as_role(admin, "bridge"), artemis, mode)
    with pytest.raises(DeniedError) as caught, running_ingest(settings):
        pass
    line = str(caught.value)
    assert f"grant-permission {admin.tenant}/{namespace} --role bridge --actions produce" in line
    assert "\n" not in line


def test_ingest_that_may_not_create_says_what_an_operator_has_to_run(
    pulsar: SecuredPulsar, artemis: SecuredArtemis
) -> None:
    admin = provisioned_for(pulsar, {"ingest": "bridge"})
    settings = ingest_of(pulsar.as_role(admin, "bridge"), artemis, "create")
    with pytest.raises(DeniedError) as caught, running_ingest(settings):
        pass
    assert "let an operator run: pulsar-admin" in str(caught.value)
    assert "pulsar.provision=verify" in str(caught.value)


def test_ingest_that_may_not_subscribe_says_who_and_to_what(pulsar: SecuredPulsar, artemis: SecuredArtemis) -> None:
    admin = provisioned_for(pulsar, {"ingest": "bridge"})
    good = ingest_of(pulsar.as_role(admin, "bridge"), artemis, "verify")
    settings = good.model_copy(update={"mqtt": artemis.settings("push")})
    with pytest.raises(DeniedError) as caught, running_ingest(settings):
        pass
    assert "refused the subscription to 'plant/+/+'" in str(caught.value)
    assert "mqtt.username 'push'" in str(caught.value)


# --- push -------------------------------------------------------------------------------------------------------


@Modes
def test_push_runs_with_the_rights_to_produce_and_consume_in_the_system_namespace(
    mode: str,
    pulsar: SecuredPulsar,
    artemis: SecuredArtemis,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.push.inbound._LOGGED", {})
    admin = provisioned_for(pulsar, {"push": "bridge"})
    topic = f"commands/{uuid.uuid4().hex[:8]}"
    got: list[Message] = []
    device = artemis.settings("device")
    with (
        DeviceClient(device, device.client_id, on_message=got.append) as client,
        pushing(push_of(pulsar.as_role(admin, "bridge"), artemis, mode)) as failures,
    ):
        client.subscribe(topic)
        command = write_command(admin, topic)
        poll_for(lambda: failures or states(admin).get(command) == "delivered", 60, "the receipt")
        assert not failures
        # The broker's PUBACK makes the receipt; on its way to the device the command may be slower (confirm: broker).
        poll_for(lambda: failures or got, 60, "the command at the device")
        assert [message.payload for message in got] == [b"reset"]
    assert "let us" not in capsys.readouterr().out, "nothing that it does is refused"


@Modes
@pytest.mark.parametrize(("left", "missing"), [("produce", "consume"), ("consume", "produce")])
def test_push_with_one_right_less_says_which_grant_is_missing(
    mode: str, left: str, missing: str, pulsar: SecuredPulsar, artemis: SecuredArtemis
) -> None:
    admin = provisioned_for(pulsar, {"push": "bridge"})
    granted(admin, admin.system_namespace, "bridge", left)
    with pushing(push_of(pulsar.as_role(admin, "bridge"), artemis, mode)) as failures:
        poll_for(lambda: failures, 60, "push to give up")
    line = str(failures[0])
    assert isinstance(failures[0], DeniedError), line
    assert f"grant-permission {admin.tenant}/{admin.system_namespace} --role bridge --actions" in line
    assert missing in line


def test_push_that_the_mqtt_broker_does_not_let_in_ends_with_the_setting(
    pulsar: SecuredPulsar, artemis: SecuredArtemis
) -> None:
    admin = provisioned_for(pulsar, {"push": "bridge"})
    settings = push_of(pulsar.as_role(admin, "bridge"), artemis, "verify", user="stranger")
    with pushing(settings) as failures:
        poll_for(lambda: failures, 60, "push to give up")
    assert isinstance(failures[0], DeniedError)
    assert "mqtt.username ('stranger')" in str(failures[0])


def test_push_that_may_not_publish_warns_and_retries(
    pulsar: SecuredPulsar, artemis: SecuredArtemis, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = provisioned_for(pulsar, {"push": "bridge"})
    output = ""

    def denied() -> bool:
        nonlocal output
        output += capsys.readouterr().out
        return "does not let us publish commands" in output

    with pushing(push_of(pulsar.as_role(admin, "bridge"), artemis, "verify")) as failures:
        # Users of the role writers may send below commands/ alone.
        write_command(admin, f"plant/{uuid.uuid4().hex[:8]}")
        poll_for(lambda: failures or denied(), 60, "the warning")
        assert not failures
    assert "mqtt.username 'push'" in output


def test_push_that_may_not_probe_for_absent_subscribers_warns_and_delivers(
    pulsar: SecuredPulsar,
    artemis: SecuredArtemis,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.push.inbound._LOGGED", {})
    admin = provisioned_for(pulsar, {"push": "bridge"})
    settings = push_of(pulsar.as_role(admin, "bridge"), artemis, "verify")
    elsewhere = settings.push.model_copy(update={"answers": AnswerSettings(topic="plant/answers")})
    with pushing(settings.model_copy(update={"push": elsewhere})) as failures:
        command = write_command(admin, f"commands/{uuid.uuid4().hex[:8]}")
        poll_for(lambda: failures or states(admin).get(command) == "delivered", 60, "the receipt")
        assert not failures
    output = capsys.readouterr().out
    assert "allow mqtt.username 'push' to write there" in output
    assert "plant/answers/nobody/+" in output


# --- source -----------------------------------------------------------------------------------------------------


def test_the_source_reads_with_the_right_to_consume(pulsar: SecuredPulsar, tmp_path: Path) -> None:
    admin = provisioned_for(pulsar, {"source": "spark"})
    file = tmp_path / "token"
    file.write_text(pulsar.token("spark"), encoding="utf-8")
    options = connection_options(admin.model_copy(update={"token": SecretFile(file)}))
    assert options["pulsar.client.authParams"] == f"file://{file}"
    topic = admin.readings_topic("plant")
    write_reading(admin, topic)
    asked = {"topic": topic, "predefinedSubscription": "q", "startingOffsets": "earliest", "columns": "value"}
    assert _one_trigger({**options, **asked}) == [b"a reading"]


def test_the_source_without_the_right_to_consume_says_which_grant_is_missing(pulsar: SecuredPulsar) -> None:
    admin = provisioned_for(pulsar, {"source": "spark"})
    granted(admin, admin.namespace, "spark", "produce")
    options = connection_options(pulsar.as_role(admin, "spark"))
    topic = admin.readings_topic("plant")
    asked = {"topic": topic, "predefinedSubscription": "q", "startingOffsets": "earliest"}
    planner = StreamPlanner(parse({**options, **asked}, streaming=True))
    try:
        with pytest.raises(DeniedError) as caught:
            planner.initial_offset()
    finally:
        planner.close()
    assert f"grant-permission {admin.tenant}/{admin.namespace} --role spark --actions" in str(caught.value)
    assert "consume" in str(caught.value)


@pytest.mark.parametrize("named", ["by the plug-in", "by its files"])
def test_the_source_reads_with_a_client_certificate_as_the_java_client_names_it(
    named: str, pulsar: SecuredPulsar, authority: Authority
) -> None:
    admin = provisioned_for(pulsar, {"source": "by-certificate"})
    topic = admin.readings_topic("plant")
    write_reading(admin, topic)
    pem = authority.issue("source", common_name="by-certificate")
    options = {
        "service.url": pulsar.service_url,
        "admin.url": pulsar.admin_url,
        "pulsar.client.tlsTrustCertsFilePath": str(authority.file),
        "topic": topic,
        "predefinedSubscription": "q",
        "startingOffsets": "earliest",
        "columns": "value",
    } | (
        {
            "pulsar.client.authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationTls",
            "pulsar.client.authParams": f"tlsCertFile:{pem.certificate},tlsKeyFile:{pem.key}",
        }
        if named == "by the plug-in"
        else {
            "pulsar.client.tlsCertificateFilePath": str(pem.certificate),
            "pulsar.client.tlsKeyFilePath": str(pem.key),
        }
    )
    assert _one_trigger(options) == [b"a reading"]
    anonymous = {name: text for name, text in options.items() if "Key" not in name and "auth" not in name}
    anonymous.pop("pulsar.client.tlsCertificateFilePath", None)
    with pytest.raises(DeniedError, match="it requires credentials"):
        _one_trigger(anonymous)


def _one_trigger(options: dict[str, str]) -> list[bytes]:
    """Return the values of all that a streaming query reads at first."""
    planner = StreamPlanner(parse(options, streaming=True))
    try:
        start = planner.initial_offset()
        end = planner.latest_offset(start, Limits())
        batches = [batch for task in planner.tasks(start, end) for batch in read_range(task)]
        planner.commit(end)
    finally:
        planner.close()
    return [row for batch in batches for row in batch.column("value").to_pylist()]


def test_a_task_whose_right_was_taken_away_says_who_lacks_which_grant(pulsar: SecuredPulsar) -> None:
    admin = provisioned_for(pulsar, {"source": "spark"})
    options = connection_options(pulsar.as_role(admin, "spark"))
    topic = admin.readings_topic("plant")
    write_reading(admin, topic)
    (task,) = batch_tasks(parse({**options, "topic": topic, "columns": "value"}, streaming=False))
    granted(admin, admin.namespace, "spark", "produce")  # a lookup is allowed, to read is not
    grant = f"grant-permission {admin.tenant}/{admin.namespace} --role spark --actions consume"
    errors: list[str] = []
    with PulsarClient(pulsar.as_role(admin, "spark")) as client:
        for read in (lambda: client.reader(task.partition, EARLIEST), lambda: list(read_range(task))):
            with pytest.raises(DeniedError) as caught:
                read()
            errors.append(str(caught.value))
    assert errors[0] == errors[1], "the source's own reader reports the same error as Pulsar's client"
    assert "to the role 'spark'" in errors[0]
    assert grant in errors[0]


# --- check ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_check_of_a_tier_says_what_the_tier_would_say(pulsar: SecuredPulsar, artemis: SecuredArtemis) -> None:
    admin = provisioned_for(pulsar, {"ingest": "bridge", "push": "bridge"})
    ingest = ingest_of(pulsar.as_role(admin, "bridge"), artemis, "verify")
    push = push_of(pulsar.as_role(admin, "bridge"), artemis, "verify")
    assert [f.ok for f in check_rights(ingest, "ingest")] == [True, True], check_rights(ingest, "ingest")
    assert [f.ok for f in check_rights(push, "push")] == [True, True], check_rights(push, "push")
    asking = push.model_copy(
        update={"push": push.push.model_copy(update={"confirm": "device"}), "mqtt": artemis.settings("ingest")}
    )
    (_, mqtt) = check_rights(asking, "push")
    assert not mqtt.ok
    assert "mqtt.username 'ingest'" in mqtt.remedy
    (_, mqtt) = check_rights(ingest.model_copy(update={"mqtt": artemis.settings("push")}), "ingest")
    assert not mqtt.ok
    assert "'plant/+/+'" in mqtt.detail
    assert "mqtt.username 'push'" in mqtt.remedy
    elsewhere = ingest.ingest.model_copy(update={"resume_topic": "commands/resume/+device"})
    (_, without) = check_rights(ingest.model_copy(update={"ingest": elsewhere}), "ingest")
    assert without.ok, "readings come all the same"
    assert (
        "allow mqtt.username 'ingest' to read commands/resume/+, or set ingest.resume_topic to null" in without.detail
    )
    creating = ingest_of(pulsar.as_role(admin, "bridge"), artemis, "create")
    assert "pulsar.provision=verify" in check_rights(creating, "ingest")[0].remedy
    granted(admin, admin.system_namespace, "bridge", "produce")
    (finding, _) = check_rights(push, "push")
    assert not finding.ok
    assert "--actions consume" in finding.remedy


def test_check_of_source_and_sink_needs_what_they_need_and_no_more(pulsar: SecuredPulsar) -> None:
    admin = provisioned_for(pulsar, {"source": "spark", "sink": "writer"})
    named = {"routes": (PLANT,)}
    source = Settings(pulsar=pulsar.as_role(admin, "spark"), ingest=IngestSettings(**named))
    sink = Settings(pulsar=pulsar.as_role(admin, "writer"))
    (reads,) = check_rights(source, "source")
    assert (reads.ok, admin.readings_topic("plant") in reads.detail) == (True, True), reads
    (unnamed,) = check_rights(source.model_copy(update={"ingest": IngestSettings()}), "source")
    assert (unnamed.ok, admin.readings_topic("plant") in unnamed.detail) == (True, True), unnamed
    (writes,) = check_rights(sink, "sink")
    assert (writes.ok, admin.system_topic(COMMANDS_TOPIC) in writes.detail) == (True, True), writes
    nowhere = source.model_copy(update={"streaming": StreamingSettings(topics=("nowhere",))})
    (missing,) = check_rights(nowhere, "source")
    assert (missing.ok, "missing topics" in missing.detail) == (False, True), missing
    for settings, tier, less in (
        (source, "source", {"spark": ("namespace", "produce", "consume")}),
        (sink, "sink", {"writer": ("system_namespace", "produce", "consume")}),
        (sink, "sink", {"writer": ("system_namespace", "consume", "produce")}),
    ):
        ((role, (where, kept, lacking)),) = less.items()
        granted(admin, getattr(admin, where), role, kept)
        (finding,) = check_rights(settings, tier)
        assert not finding.ok, finding
        assert lacking in finding.remedy, finding
    with PulsarAdmin(admin) as rest:
        partition = partition_name(admin.readings_topic("plant"), 0)
        assert rest.stats(partition)["subscriptions"] == {}  # nothing was left behind
