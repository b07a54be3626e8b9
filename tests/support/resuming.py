"""A device that stores its own offset: its received commands, in order, and its requests for the rest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from bridge.contract.commands import Command
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message
from bridge.settings import IngestSettings, PulsarSettings, Settings
from pulsebridge.local.stack import LocalStack
from tests.support.merging import merged
from tests.support.push import push_settings
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for


def resume_settings(
    stack: LocalStack,
    namespaces: PulsarSettings,
    **changes: object,
) -> Settings:
    """Return settings of push and ingest whose topics are those of this test alone."""
    mqtt = mqtt_settings(stack)
    root = mqtt.client_id
    made = push_settings(
        namespaces,
        mqtt,
        **merged({"resume": {"answer_topic": f"{root}/resumed", "interval": "200ms", "allow_earliest": True}}, changes),
    )
    ingest = IngestSettings(filters=(f"{root}/readings/#",), resume_topic=f"{root}/resume/+device")
    return made.model_copy(update={"ingest": ingest})


def _numbers(position: str) -> tuple[int, ...]:
    return tuple(map(int, re.split("[./]", position)[:5]))


class OffsetDevice:
    """A device with a clean session; ``protocol`` is its MQTT version. It compares positions, as docs/devices/protocol.md says,
    and group positions, as docs/devices/broadcasts.md says.
    """

    def __init__(self, settings: Settings, name: str, *, protocol: str = "5") -> None:
        self.name = name
        self.got: list[str] = []
        """Payloads; ``"answer"`` for an answer to a request."""
        self.places: dict[str, str] = {}
        """Payload to the position that came with it."""
        self.repeats: list[bool] = []
        self.executed: list[str] = []
        """Payloads, without those that it takes for a repeat."""
        self._last: tuple[int, ...] = ()
        self._last_of_group: tuple[int, ...] = ()
        self._stored: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        """What it had stored after the command at a position."""
        self.answers: list[dict[str, Any]] = []
        self._settings = settings
        root = settings.mqtt.client_id
        self._commands = f"{settings.push.client_id}/{name}/commands"
        self._asks = f"{root}/resume/{name}"
        self._answers = f"{settings.push.resume.answer_topic}/{name}"
        mqtt = settings.mqtt.model_copy(update={"protocol": protocol})
        self._client = DeviceClient(mqtt, f"{root}-{name}", on_message=self._on_message, persistent=True)

    def __enter__(self) -> OffsetDevice:
        self._client.connect(30)
        self._client.subscribe(f"{self._commands}/#")
        self._client.subscribe(self._answers)
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def _on_message(self, message: Message) -> None:
        if message.topic == self._answers:
            self.answers.append(json.loads(message.payload))
            self.got.append("answer")
            return
        text = message.payload.decode()
        position = message.topic.removeprefix(self._commands).strip("/")
        user = {} if message.properties is None else dict(message.properties.user)
        repeat = position.endswith("/repeat") or (not position and user.get("repeat") == "1")
        self.places[text] = position.removesuffix("/repeat") or user["position"]
        self.repeats.append(repeat)
        self._execute(text, repeat, user.get("group-position", ""))
        self.got.append(text)

    def _execute(self, text: str, repeat: bool, of_group: str) -> None:
        at = _numbers(of_group or self.places[text])
        last = self._last_of_group if of_group else self._last
        if at == last or (repeat and at < last):
            return
        self.executed.append(text)
        if of_group:
            self._last_of_group = at
        else:
            self._last = at
        self._stored[self.places[text]] = self._last, self._last_of_group

    def ask(self, payload: str) -> None:
        """Publish a request, at QoS 1, and wait until the broker has it. From now on it knows no command after that."""
        self._last, self._last_of_group = self._stored.get(payload, ((), ()))
        self._client.publish(self._asks, payload.encode())
        assert self._client.flush()

    @property
    def after_answer(self) -> list[str]:
        """The payloads after the last answer, each once."""
        if "answer" not in self.got:
            return []
        last = len(self.got) - 1 - self.got[::-1].index("answer")
        return list(dict.fromkeys(self.got[last + 1 :]))

    def awaits(self, commands: Iterable[Command], timeout: float = 60) -> None:
        """Wait until it has received all of them."""
        wanted = {one.payload.decode() for one in commands}
        poll_for(lambda: wanted <= set(self.got), timeout, f"every command at {self.name}")

    def goes_on_with(self, commands: Iterable[Command], timeout: float = 60) -> None:
        """Wait until it has had exactly these, in order, since the last answer to a request."""
        wanted = [one.payload.decode() for one in commands]
        try:
            poll_for(lambda: len(self.after_answer) >= len(wanted), timeout, f"what {self.name} asked for")
        except AssertionError as e:
            raise AssertionError(f"{e}; it got {self.got}") from None
        assert self.after_answer == wanted
