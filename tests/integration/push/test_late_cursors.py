"""Late records of a former owner that compaction made the last ones of their key, before the next takeover."""

from __future__ import annotations

import pulsar
import pytest

from bridge.contract import COMMANDS_TOPIC, CURSORS_TOPIC, PUSH_SUBSCRIPTION, partition_name
from bridge.contract.cursors import OWNER_KEY, OwnerRecord, split_key
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.provisioning_plan import rest_path
from bridge.settings import PulsarSettings, Settings
from pulsebridge.local.stack import LocalStack
from tests.support.push import (
    Devices,
    all_acknowledged,
    command,
    provision,
    push_in_thread,
    push_settings,
    read_topic,
    user,
    write_commands,
)
from tests.support.reading_back import quiet
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


@pytest.mark.thorough
@pytest.mark.parametrize("proves", [False, True], ids=["a cursor alone", "and an owner record"])
def test_h23_a_late_cursor_replaces_nothing_of_the_successor_also_after_a_compaction(
    stack: LocalStack, namespaces: PulsarSettings, proves: bool
) -> None:
    settings = push_settings(namespaces, mqtt_settings(stack))
    provision(settings)
    commands = [command(settings, "d", n) for n in range(1, 5)]
    of_another = [command(settings, "e", n) for n in range(1, 3)]
    with Devices(settings) as devices:
        for written in (commands[:1], [*commands[1:], *of_another]):  # a former owner, and its successor
            with push_in_thread(settings):
                write_commands(settings, written)
                devices.await_all(written)
                all_acknowledged(settings)
        written = [(m.partition_key(), m.data()) for m in read_topic(settings, CURSORS_TOPIC)]
        (former, first), *others = (one for one in written if split_key(one[0])[0] == "d")
        assert (former, b"") in others, "its successor has removed it"
        late = [(former, first)]
        if proves:
            late.append((OWNER_KEY, OwnerRecord("former", 2).encode()))
        _written_late_and_compacted(settings, late)
        _acknowledgements_lost(settings)
        more = [command(settings, one, 9) for one in ("d", "e")]
        with push_in_thread(settings):
            all_acknowledged(settings)  # so it has taken over
            write_commands(settings, more)
            devices.await_all(more)
            all_acknowledged(settings)
        assert devices.check([*commands, *of_another, *more]) == 0
        assert all("repeat" not in user(devices.got[one][-1]) for one in ("d", "e")), "no device had received these"
        last = {m.partition_key(): m.data() for m in read_topic(settings, CURSORS_TOPIC)}
        assert last[former] == b"", "it is removed again"


def _written_late_and_compacted(settings: Settings, records: list[tuple[str, bytes]]) -> None:
    name = partition_name(settings.pulsar.system_topic(CURSORS_TOPIC), 0)
    client = pulsar.Client(settings.pulsar.service_url, logger=quiet())
    producer = client.create_producer(name)
    for key, payload in records:
        producer.send(payload, partition_key=key)
    client.close()
    path = f"/{rest_path(name)}/compaction"
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        admin.request("PUT", path)
        poll_for(lambda: admin.request("GET", path)["status"] == "SUCCESS", 30, "the compaction")


def _acknowledgements_lost(settings: Settings) -> None:
    """All commands are pending again, as they are where the acknowledgements did not arrive."""
    name = partition_name(settings.pulsar.system_topic(COMMANDS_TOPIC), 0)
    client = pulsar.Client(settings.pulsar.service_url, logger=quiet())
    consumer = client.subscribe(name, PUSH_SUBSCRIPTION)
    consumer.seek(pulsar.MessageId.earliest)
    client.close()
