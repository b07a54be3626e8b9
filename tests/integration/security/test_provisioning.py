"""The printed plan through Pulsar's own tools, what ``verify`` misses, and what ``off`` does not ask."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.contract import ALERTS_TOPIC, DEAD_LETTERS_TOPIC, P_DEAD_REASON, partition_name
from bridge.errors import TerminalError
from bridge.mqtt.device import DeviceClient
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import EARLIEST, PulsarClient
from bridge.pulsar.provisioning import existing_commands, look, provision_commands, verify
from bridge.pulsar.provisioning_plan import ingest_needs, push_needs, rest_path
from bridge.settings import IngestSettings, Settings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from pulsebridge.cli.provision import carry_out
from streaming.pulsar_readiness import provision_alerts
from tests.support.ingest import running_ingest
from tests.support.secured import SecuredArtemis, SecuredPulsar
from tests.support.secured_tiers import PLANT, payloads, provisioned_for
from tests.support.waiting import patient, poll_for

pytestmark = pytest.mark.stack

RULES = (
    PLANT,
    TopicRule(name="lab", filter="plant/+device/lab/+what", topic="lab-{what}", device="{device}"),
)


def run(folder: Path, pulsar: PulsarSettings, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``pulsebridge`` with these settings; the token comes from a file."""
    assert pulsar.token is not None
    (folder / "token").write_text(pulsar.token.get_secret_value(), encoding="utf-8")
    values = pulsar.model_dump(mode="json", exclude_defaults=True, exclude={"token"})
    rules = [rule.model_dump(mode="json", exclude_defaults=True) for rule in RULES]
    config = {"pulsar": {**values, "token_file": str(folder / "token")}, "ingest": {"routes": rules}}
    (folder / "settings.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", *arguments, "-c", f"{folder}/settings.yaml"],
        capture_output=True, text=True, timeout=patient(120), check=False,
    )  # fmt: skip


def shell(pulsar: SecuredPulsar, folder: Path, script: str) -> None:
    """Run an operator's script of pulsar-admin commands in one JVM; a command that fails says so on stderr.

    Not with --fail-on-error: in 4.0.8 that ends it after the first command, failed or not.
    """
    (folder / "plan").write_text(script.replace("pulsar-admin ", "admin "), encoding="utf-8")
    (folder / "client.conf").write_text(
        f"webServiceUrl={pulsar.admin_url}/\nbrokerServiceUrl={pulsar.service_url}/\n"
        "authPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken\n"
        f"authParams=token:{pulsar.token('admin')}\ntlsTrustCertsFilePath={pulsar.authority.file}\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [str(pulsar.home / "bin/pulsar-shell"), "--filename", str(folder / "plan"), "-np"],
        env=os.environ
        | {
            "JAVA_HOME": str(pulsar.java),
            "PULSAR_CLIENT_CONF": str(folder / "client.conf"),
            "PULSAR_MEM": "-Xmx128m",
            "PULSAR_EXTRA_OPTS": f"-Duser.home={folder}",
        },
        capture_output=True,
        text=True,
        timeout=patient(150),
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-3000:]
    assert "Reason:" not in output, output[-3000:]
    assert "Usage:" not in output, output[-3000:]


@pytest.mark.long
def test_the_printed_plan_runs_in_pulsars_own_shell_and_ingest_starts_with_verify(
    pulsar: SecuredPulsar, artemis: SecuredArtemis, tmp_path: Path
) -> None:
    admin = pulsar.namespaces("admin", partitions=2, command_partitions=2)
    roles = (
        "--ingest-role",
        "bridge",
        "--push-role",
        "bridge",
        "--source-role",
        "spark",
        "--sink-role",
        "spark",
    )
    printed = run(tmp_path, admin, "provision", "--dry-run", "--topics", "lab-air=3", *roles)
    assert printed.returncode == 0, printed.stderr
    assert admin.token is not None
    assert admin.token.get_secret_value() not in printed.stdout + printed.stderr
    with PulsarAdmin(admin) as rest:
        assert not rest.has_tenant(admin.tenant)  # a dry run touches nothing
    shell(pulsar, tmp_path, printed.stdout)
    with PulsarAdmin(admin) as rest:
        assert rest.partition_count(admin.readings_topic("lab-air")) == 3
        for needs in (ingest_needs(admin, [admin.readings_topic("plant")]), push_needs(admin)):
            found = look(rest, needs)
            assert (found.missing, found.unchecked) == ([], [])
    settings = Settings(
        mqtt=artemis.settings("ingest"),
        pulsar=pulsar.as_role(admin, "bridge").model_copy(update={"provision": "verify"}),
        ingest=IngestSettings(routes=RULES),
    )
    device = artemis.settings("device")
    with running_ingest(settings), DeviceClient(device, device.client_id) as client:
        client.publish("plant/d1/t", b"21")
        poll_for(lambda: payloads(admin, admin.readings_topic("plant")) == [b"21"], 30, "the reading")


def test_the_command_does_what_it_prints_twice_without_harm(pulsar: SecuredPulsar, tmp_path: Path) -> None:
    admin = pulsar.namespaces("admin", partitions=1, command_partitions=1)
    for _ in range(2):
        done = run(tmp_path, admin, "provision", "--ingest-role", "bridge")
        assert done.returncode == 0, done.stderr
    with PulsarAdmin(admin) as rest:
        assert verify(rest, push_needs(admin)) == []
    refused = run(tmp_path, pulsar.as_role(admin, "bridge"), "provision")
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert "let an operator run: pulsar-admin" in refused.stderr


def test_verify_lists_the_commands_that_create_everything_missing(pulsar: SecuredPulsar) -> None:
    settings = pulsar.namespaces("admin", partitions=1, command_partitions=1, provision="verify")
    with PulsarAdmin(settings, timeout_s=30) as rest:
        with pytest.raises(TerminalError) as caught:
            provision_commands(rest)
        assert f"pulsar-admin tenants create {settings.tenant}" in str(caught.value)
        everything = look(rest, push_needs(settings)).missing
        assert [step.command[1] for step in everything].count("create-partitioned-topic") == len(
            push_needs(settings).topics
        )
        carry_out(rest, everything)
        assert provision_commands(rest) == 1
        # Another client turns on a setting that loses messages, and deletes a retention subscription.
        namespace = f"/namespaces/{settings.tenant}/{settings.system_namespace}"
        rest.request("POST", f"{namespace}/messageTTL", body=60)
        commands = f"persistent/{settings.tenant}/{settings.system_namespace}/commands-partition-0"
        rest.request("DELETE", f"/{commands}/subscription/pulsebridge-push")
        with pytest.raises(TerminalError, match="2 things are missing") as caught:
            provision_commands(rest)
        assert "set-message-ttl" in str(caught.value)
        assert "create-subscription" in str(caught.value)
        carry_out(rest, look(rest, push_needs(settings)).missing)
        assert provision_commands(rest) == 1


def test_off_asks_the_admin_for_nothing(pulsar: SecuredPulsar, artemis: SecuredArtemis) -> None:
    admin = provisioned_for(pulsar, {"ingest": "bridge", "push": "bridge"})
    without_admin = {"provision": "off", "admin_url": "https://127.0.0.1:1"}
    lonely = pulsar.as_role(admin, "bridge").model_copy(update=without_admin)
    settings = Settings(mqtt=artemis.settings("ingest"), pulsar=lonely, ingest=IngestSettings(routes=(PLANT,)))
    device = artemis.settings("device")
    with running_ingest(settings), DeviceClient(device, device.client_id) as client:
        client.publish("plant/d1/t", b"21")
        poll_for(lambda: payloads(admin, admin.readings_topic("plant")) == [b"21"], 30, "the reading")
    assert existing_commands(lonely) == 1


def test_messages_for_a_missing_topic_are_dead_letters_with_the_command_and_the_rest_flows(
    pulsar: SecuredPulsar, artemis: SecuredArtemis
) -> None:
    admin = provisioned_for(pulsar, {"ingest": "bridge"})
    verifying = pulsar.as_role(admin, "bridge").model_copy(update={"provision": "verify"})
    settings = Settings(mqtt=artemis.settings("ingest"), pulsar=verifying, ingest=IngestSettings(routes=RULES))
    device = artemis.settings("device")
    with running_ingest(settings), DeviceClient(device, device.client_id) as client:
        client.publish("plant/d1/lab/ozone", b"nowhere")
        client.publish("plant/d1/t", b"21")
        poll_for(lambda: payloads(admin, admin.readings_topic("plant")) == [b"21"], 30, "the reading")
        dead = admin.system_topic(DEAD_LETTERS_TOPIC)
        poll_for(lambda: payloads(admin, dead) == [b"nowhere"], 30, "the dead letter")
        assert client.flush(10)
    with PulsarClient(admin) as reading:
        reader: Any = reading.reader(reading.partitions(dead)[0], EARLIEST)
        reason = reader.read_next(10_000).properties()[P_DEAD_REASON]
    assert f"pulsar-admin topics create-partitioned-topic {admin.readings_topic('lab-ozone')}" in reason


@pytest.mark.long
def test_no_output_of_any_command_shows_a_secret(
    pulsar: SecuredPulsar, artemis: SecuredArtemis, tmp_path: Path
) -> None:
    """Passwords and tokens, right and wrong, from file and environment, in outputs, logs and errors."""
    token = pulsar.token("without-rights")
    environment = os.environ | {
        "PULSEBRIDGE_MQTT__USERNAME": "device",
        "PULSEBRIDGE_MQTT__PASSWORD": "hunter2-of-mqtt",
        "PULSEBRIDGE_MQTT__HOST": "127.0.0.1",
        "PULSEBRIDGE_MQTT__PORT": str(artemis.tls_port),
        "PULSEBRIDGE_MQTT__TLS": "true",
        "PULSEBRIDGE_MQTT__TLS_CA": str(artemis.authority.file),
        "PULSEBRIDGE_PULSAR__SERVICE_URL": pulsar.service_url,
        "PULSEBRIDGE_PULSAR__ADMIN_URL": pulsar.admin_url,
        "PULSEBRIDGE_PULSAR__TLS_CA": str(pulsar.authority.file),
        "PULSEBRIDGE_PULSAR__CLIENT_LOG": "true",
        "PULSEBRIDGE_LOG__LEVEL": "debug",
    }
    (tmp_path / "token").write_text(token, encoding="utf-8")
    for given in (
        {"PULSEBRIDGE_PULSAR__TOKEN": token},
        {"PULSEBRIDGE_PULSAR__TOKEN_FILE": str(tmp_path / "token")},
    ):
        for arguments, code in (
            (("config", "show", "--origin"), 0),
            (("config", "show", "--json"), 0),
            (("check", "--json"), 1),
            (("ingest",), 1),
            (("push",), 1),
            (("provision",), 1),
            (("provision", "--dry-run"), 0),
        ):
            done = subprocess.run(
                [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", *arguments],
                env=environment | given, capture_output=True, text=True, timeout=patient(120), check=False,
            )  # fmt: skip
            shown = done.stdout + done.stderr
            assert done.returncode == code, (arguments, shown)
            assert "hunter2" not in shown, arguments
            assert token not in shown, arguments
            assert token.rsplit(".", 1)[1] not in shown, arguments
            assert "Traceback" not in shown, (arguments, shown)
            if arguments[0] == "check":
                mqtt = json.loads(done.stdout[done.stdout.index("{\n") :])["endpoints"][0]
                assert "mqtt.password" in mqtt["remedy"]


def test_alerts_are_kept_for_their_table_from_the_first_one_on(namespaces: PulsarSettings) -> None:
    topic = namespaces.system_topic(ALERTS_TOPIC)
    strict = namespaces.model_copy(update={"provision": "verify"})
    with PulsarAdmin(namespaces) as admin:
        provision_commands(admin)  # by push: the topic exists, and has no retention subscription
        with pytest.raises(TerminalError, match=f"{topic} does not exist, or has no subscription 'pulsebridge-alerts'"):
            provision_alerts(strict, "pulsebridge-alerts")
        provision_alerts(namespaces, "pulsebridge-alerts")
        for number in range(admin.partition_count(topic)):
            path = f"/{rest_path(partition_name(topic, number))}/subscriptions"
            assert admin.request("GET", path) == ["pulsebridge-alerts"]
    provision_alerts(strict, "pulsebridge-alerts")
