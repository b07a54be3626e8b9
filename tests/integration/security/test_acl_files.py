"""The access lists in ``conf/acl``, each on its broker: a device publishes for itself, and reads its own commands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from bridge.errors import DeniedError, TransientError
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message
from bridge.settings.mqtt import MqttSettings
from tests.support.certificates import HOST, Authority
from tests.support.rabbitmq import rabbitmq
from tests.support.secured import PASSWORD, SecuredArtemis, mosquitto
from tests.support.waiting import poll_for

ACL = Path(__file__).parents[3] / "conf/acl"
USERS = ("ingest", "push", "press-7", "press-8")


class Broker(NamedTuple):
    """A broker with its access list."""

    port: int
    protocol: str
    password: str

    def client(self, user: str, client_id: str, got: list[Message]) -> DeviceClient:
        settings = MqttSettings(
            host=HOST,
            port=self.port,
            username=user,
            password=self.password,
            client_id=client_id,
            protocol=self.protocol,  # type: ignore[arg-type]
        )
        return DeviceClient(settings, client_id, on_message=got.append)

    @contextmanager
    def listening(self, user: str, *filters: str) -> Iterator[list[Message]]:
        """A client of this user, and what it gets of filters that it may read."""
        got: list[Message] = []
        with self.client(user, _CLIENT_IDS.get(user, user), got) as client:
            client.subscribe(*filters, timeout=60)
            yield got

    def refuses(self, user: str, theirs: str) -> None:
        """Wait until the broker refuses a subscription, by its SUBACK or by closing the connection."""
        client = self.client(user, user, [])

        def refused() -> bool:
            try:
                client.subscribe(theirs, timeout=1)
            except DeniedError:
                return True
            except TransientError:
                return client.last_loss is not None
            raise AssertionError(f"the subscription to {theirs} was granted")

        with suppress(DeniedError), client:
            poll_for(refused, 60, f"the refusal of {theirs}")

    def publishes(self, user: str, topic: str) -> None:
        """A client tries to publish; the broker may confirm, refuse, or close the connection."""
        with self.client(user, _CLIENT_IDS.get(user, user), []) as client:
            client.publish(topic, topic.encode())
            poll_for(
                lambda: client.link.unconfirmed == 0 or client.last_loss is not None,
                60,
                "the broker's answer",
            )


_CLIENT_IDS = {"ingest": "pulsebridge", "push": "pulsebridge-push-0"}


@contextmanager
def with_mosquitto(folder: Path) -> Iterator[Broker]:
    acl = (ACL / "mosquitto.acl").read_text(encoding="utf-8")
    with mosquitto(folder, users=USERS, acl=acl) as (port, _):
        yield Broker(port, "5", PASSWORD)


@contextmanager
def with_artemis(folder: Path) -> Iterator[Broker]:
    text = (ACL / "artemis-security.xml").read_text(encoding="utf-8")
    common, mark, device = text.partition("<!-- each device -->")
    assert mark
    block = device.replace("</security-settings>", "")
    whole = common + block + block.replace("press-7", "press-8") + "</security-settings>"
    rights = {
        setting.attrib["match"]: {one.attrib["type"]: one.attrib["roles"] for one in setting}
        for setting in ElementTree.fromstring(whole)
    }
    roles = {"operators": ["operator"], **{user: [user] for user in USERS}, "devices": list(USERS[2:])}
    server = SecuredArtemis(folder, Authority(folder, "authority"), roles=roles, rights=rights)
    try:
        server.start()
        yield Broker(server.port, "5", PASSWORD)
    finally:
        server.stop()


@contextmanager
def with_rabbitmq(folder: Path) -> Iterator[Broker]:
    definitions = ACL / "rabbitmq.json"
    (password,) = {one["password"] for one in json.loads(definitions.read_text(encoding="utf-8"))["users"]}
    with rabbitmq(folder, definitions, "press-7", password) as port:
        yield Broker(port, "3.1.1", password)


BROKERS = {"mosquitto": with_mosquitto, "artemis": with_artemis, "rabbitmq": with_rabbitmq}


@pytest.mark.parametrize("name", ["mosquitto", "artemis", pytest.param("rabbitmq", marks=pytest.mark.long)])
def test_h36_a_device_publishes_and_reads_nothing_of_another_device(name: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(BROKERS[name](tmp_path))
        ingest = stack.enter_context(broker.listening("ingest", "plant/#", "pulsebridge/resume/+"))
        push = stack.enter_context(
            broker.listening("push", "pulsebridge/answers/0/0/#", "pulsebridge/answers/group/#", "devices/+/status")
        )
        mine = ["plant/press-7/t", "pulsebridge/resume/press-7"]
        own = [
            *mine,
            "devices/press-7/status",
            "pulsebridge/answers/group/press-7",
            "pulsebridge/answers/group/press-7/0/0/7/1/-1",
            "pulsebridge/answers/0/0/7/1/-1/AAAAAAAAAAAAAAAA",
        ]
        others = [topic.replace("press-7", "press-8") for topic in own[:5]] + [
            "groups/presses/commands",
            "devices/press-8/commands",
            "devices/press-7/commands",
            "pulsebridge/resumed/press-8",
        ]
        for topic in [*others, *own]:
            broker.publishes("press-7", topic)
        poll_for(lambda: len(ingest) + len(push) >= 6, 60, "what a device may publish")
        assert sorted(m.topic for m in ingest) == sorted(mine)
        assert sorted(m.topic for m in push) == sorted(own[2:])


@pytest.mark.parametrize("name", ["mosquitto", "artemis", pytest.param("rabbitmq", marks=pytest.mark.long)])
def test_h36_a_device_reads_its_own_commands_alone(name: str, tmp_path: Path) -> None:
    stolen: list[Message] = []
    filters = ("devices/{}/commands", "devices/{}/commands/#", "pulsebridge/resumed/{}")
    with ExitStack() as stack:
        broker = stack.enter_context(BROKERS[name](tmp_path))
        mine = [*(one.format("press-8") for one in filters), "groups/presses/commands/#"]
        got = stack.enter_context(broker.listening("press-8", *mine))
        for theirs in ("devices/press-8/commands/#", "devices/+/commands/#", "#", "pulsebridge/resumed/+"):
            if name == "mosquitto":  # it confirms every subscription, and serves what may be read
                thief = stack.enter_context(broker.client("press-7", f"thief-{theirs}", stolen))
                thief.subscribe(theirs, timeout=60)
            else:
                broker.refuses("press-7", theirs)
        sent = ["devices/press-8/commands", "devices/press-8/commands/0/0/7/1/-1/AAAAAAAAAAAAAAAA"]
        for topic in [*sent, "pulsebridge/resumed/press-8", "groups/presses/commands"]:
            broker.publishes("push", topic)
        poll_for(lambda: len({m.topic for m in got}) == 4, 60, "what its device may read")
        assert stolen == []


def test_hivemq_has_the_same_topics_as_mosquitto() -> None:
    """HiveMQ's file is not run: its topics are at least those of the file that is."""
    rules = (ACL / "mosquitto.acl").read_text(encoding="utf-8")
    wanted = {t if t else "#" for t in re.findall(r"(?:topic|pattern) \w+ (\S+)", rules)}
    found = ElementTree.parse(ACL / "hivemq-credentials.xml").iter("topic")
    assert {(one.text or "").replace("${{username}}", "%u") for one in found} == wanted
