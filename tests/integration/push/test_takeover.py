"""What happens while a partition is being taken over: lost connections, and successors in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from bridge.contract import (
    C_DEVICE,
    COMMANDS_TOPIC,
    CURSORS_TOPIC,
    DEAD_LETTERS_TOPIC,
    P_DEAD_REASON,
    PUSH_SUBSCRIPTION,
    partition_name,
)
from bridge.contract.commands import CommandPosition, encode_command
from bridge.contract.cursors import OWNER_KEY, TERM_KEY, OwnerRecord, split_key
from bridge.mqtt.client import Link
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Disconnected, LinkHandler
from bridge.push.cursor import Cursor
from bridge.push.cursor_log import CursorLog
from bridge.settings import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.push import (
    Devices,
    all_acknowledged,
    command,
    provision,
    push_in_thread,
    push_settings,
    read_topic,
    receipts,
    write_commands,
)
from tests.support.stack import mqtt_settings
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


def test_h23_mqtt_lost_in_the_midst_of_a_takeover_does_not_pass_for_another_owner(
    stack: LocalStack,
    namespaces: PulsarSettings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with TcpProxy(stack.mqtt_host, stack.mqtt_port) as proxy:
        settings = push_settings(namespaces, mqtt_settings(stack, port=proxy.port))
        provision(settings)
        read = CursorLog.read

        def cut_meanwhile(*given: Any) -> Any:
            found = read(*given)
            monkeypatch.undo()
            proxy.cut()  # before the session has a record of its own and a sign of the connection
            return found

        monkeypatch.setattr(CursorLog, "read", cut_meanwhile)
        one = command(settings, "d", 1)
        direct = settings.model_copy(update={"mqtt": settings.mqtt.model_copy(update={"port": stack.mqtt_port})})
        with Devices(direct) as devices, push_in_thread(settings) as metrics:
            write_commands(settings, [one])
            devices.await_all([one])
            all_acknowledged(settings)
            assert proxy.connections > 1
            assert metrics.counters["partitions_lost"]._value.get() == 0
            assert metrics.counters["takeovers"]._value.get() == 1
    output = capsys.readouterr().out
    assert "MQTT is away" in output
    assert "another process owned it" not in output


def test_h23_a_successor_that_came_and_went_during_a_takeover_is_noticed(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    """The cursors are read, another process still owns the commands: later records of a successor are not missed."""
    settings = push_settings(namespaces, mqtt_settings(stack))
    provision(settings)
    cursors = partition_name(settings.pulsar.system_topic(CURSORS_TOPIC), 0)
    seventh, eighth = command(settings, "d", 7), command(settings, "d", 8)
    client = pulsar.Client(settings.pulsar.service_url)
    former = client.subscribe(settings.pulsar.system_topic(COMMANDS_TOPIC), PUSH_SUBSCRIPTION)
    with Devices(settings) as devices, push_in_thread(settings) as metrics:
        poll_for(lambda: read_topic(settings, CURSORS_TOPIC), 30, "the owner record of the takeover")
        successor = client.create_producer(cursors, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing)
        delivered = Cursor(256)
        delivered.settle(CommandPosition(0, 0, -1), "d-7", delivered=True)
        successor.send(OwnerRecord("successor", 1).encode(), partition_key=OWNER_KEY)
        successor.send(delivered.encode(), partition_key="d")
        with DeviceClient(settings.mqtt, f"{settings.push.client_id}-0"):
            successor.close()
            poll_for(
                lambda: metrics.counters["partitions_lost"]._value.get() == 1, 30, "the owner to notice its successor"
            )
        former.close()
        client.close()
        write_commands(settings, [seventh, eighth])
        devices.await_all([eighth])
        all_acknowledged(settings)
        assert devices.ids("d") == ["d-8"]


def test_a_device_called_like_a_record_of_pushs_own_costs_no_takeover(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    """Another program stores cursors under such names, and writes a command for one."""
    settings = push_settings(namespaces, mqtt_settings(stack))
    provision(settings)
    first, last = command(settings, "d", 1), command(settings, "d", 2)
    theirs = Cursor(256)
    theirs.settle(CommandPosition(0, 0, -1), "theirs", delivered=True)
    client = pulsar.Client(settings.pulsar.service_url)
    cursors = client.create_producer(partition_name(settings.pulsar.system_topic(CURSORS_TOPIC), 0))
    for key in (OWNER_KEY, "\0parked\0x", "\0ids\0d"):
        cursors.send(theirs.encode(), partition_key=key)
    cursors.close()
    commands = client.create_producer(partition_name(settings.pulsar.system_topic(COMMANDS_TOPIC), 0))
    commands.send(b"", partition_key=OWNER_KEY, properties=encode_command(first) | {C_DEVICE: OWNER_KEY})
    client.close()
    with Devices(settings) as devices:
        for one in (first, last):
            with push_in_thread(settings):
                write_commands(settings, [one])
                devices.await_all([one])
                all_acknowledged(settings)
        assert devices.check([first, last]) == 0
    rejected = [one.device for one in receipts(settings)[first.command_id] if one.state == "rejected"]
    assert rejected == [OWNER_KEY]
    (letter,) = read_topic(settings, DEAD_LETTERS_TOPIC)
    assert "U+0000" in letter.properties()[P_DEAD_REASON]


class Losses(LinkHandler):
    def __init__(self) -> None:
        self.lost: list[Disconnected] = []

    def on_disconnected(self, event: Disconnected) -> None:
        self.lost.append(event)


def test_h23_a_former_owners_connection_that_looks_open_has_no_answer_once_its_successor_is_connected(
    stack: LocalStack,
) -> None:
    """The proof for a record of this owner: no successor wrote before the broker answered on our connection."""
    with TcpProxy(stack.mqtt_host, stack.mqtt_port) as proxy:
        settings = mqtt_settings(stack, port=proxy.port)
        losses = Losses()
        link = Link(settings, losses, persistent=False)

        def turned_until(what: str, done: Callable[[], bool]) -> None:
            def turned() -> bool:
                link.turn(0.05)
                return done()

            poll_for(turned, 30, what, every=0.0)

        try:
            turned_until("a connection", lambda: link.connected)
            assert link.ping() == 1
            turned_until("the answer", lambda: link.keepalive.answered == 1)
            proxy.freeze()
            with DeviceClient(mqtt_settings(stack), settings.client_id):  # cuts the other one at the broker
                assert link.connected
                assert link.ping() == 2
                link.turn(0.0)
                answered: list[int] = []

                def ended() -> bool:
                    answered.append(link.keepalive.answered)
                    return bool(losses.lost)

                proxy.thaw()
                turned_until("the end", ended)
                assert set(answered) == {1}
        finally:
            link.close()


def test_h36_nothing_is_pushed_with_a_tag_before_the_secret_behind_it_is_stored(
    stack: LocalStack, namespaces: PulsarSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that dies in between leaves a successor that would refuse what the device says by that tag."""
    settings = push_settings(namespaces, mqtt_settings(stack))
    provision(settings)
    write, held = CursorLog.write_record, []

    def hold(*given: Any) -> None:
        if held or split_key(given[1])[0] == TERM_KEY:
            held.append(given)
        else:
            write(*given)

    monkeypatch.setattr(CursorLog, "write_record", hold)
    one = command(settings, "d", 1)
    write_commands(settings, [one])
    with Devices(settings) as devices, push_in_thread(settings):
        poll_for(lambda: held, 30, "the secret of the partition")
        with pytest.raises(AssertionError, match="a command"):
            poll_for(lambda: devices.ids("d"), 1, "a command")
        monkeypatch.undo()
        for given in held:
            write(*given)
        devices.await_all([one])
        all_acknowledged(settings)
