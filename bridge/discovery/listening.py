"""Listens at an MQTT broker for a while: a client id and a clean session of its own, QoS 0, nothing left behind.

The tree is filled on the link's thread, and read here after that has ended.
"""

from __future__ import annotations

import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from bridge.discovery.proposing import PresetSigns, propose
from bridge.discovery.showing import discovery_of
from bridge.discovery.tree import TopicTree
from bridge.display import printable
from bridge.errors import ConfigError
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message
from bridge.settings.mqtt import MqttSettings
from bridge.settings.presets import preset_names
from bridge.topic_templates import Filter

__all__ = ["discover", "listen"]


def listen(
    settings: MqttSettings,
    tree: TopicTree,
    signs: PresetSigns,
    *,
    filters: Sequence[str],
    seconds: float,
    enough: threading.Event,
    begun: Callable[[], None] = lambda: None,
) -> float:
    """Count what is published on ``filters`` for ``seconds``, or until ``enough``. Returns the seconds listened.

    ``begun`` is called once, on the caller's thread, when the broker has granted the filters.

    Raises TransientError when the broker cannot be reached, RefusedError when it refuses us or a filter.
    """

    def count(message: Message) -> None:
        tree.add(message.topic, message.payload, retained=message.retain)
        signs.add(message.topic)

    # MQTT 3.1 takes at most 23 characters.
    client = DeviceClient(settings, f"pb-discover-{secrets.token_hex(4)}", on_message=count)
    client.connect()
    try:
        client.subscribe(*filters, qos=0)
        begun()
        begin = time.monotonic()
        enough.wait(seconds)
        return time.monotonic() - begin
    finally:
        client.close()


def discover(settings: MqttSettings, filters: Sequence[str], seconds: float) -> dict[str, Any]:
    """Listen, and return what was seen and is proposed. A signal ends it early. Raises what ``listen`` does."""
    for text in filters:
        _check(text)
    tree, signs = TopicTree(), PresetSigns(preset_names())
    enough = threading.Event()

    def begun() -> None:
        sys.stderr.write(
            f"listening at {settings.host}:{settings.port} on {printable(', '.join(filters))} for {seconds:g} s, Ctrl-C for less\n"
        )
        sys.stderr.flush()

    with _ended_by_signals(enough), _progress(tree, seconds):
        listened = listen(settings, tree, signs, filters=filters, seconds=seconds, enough=enough, begun=begun)
    return discovery_of(tree, signs.seen, propose(tree, signs.seen), listened)


def _check(text: str) -> None:
    try:
        named = any(Filter.parse(text).names)
    except ValueError as e:
        raise ConfigError(f"--filter: {e}") from e
    if named:
        raise ConfigError(f"--filter {text!r}: an MQTT filter has no names", remedy="write + and # alone")


@contextmanager
def _ended_by_signals(enough: threading.Event) -> Iterator[None]:
    """The first signal ends the listening, the second kills."""

    def handle(number: int, _frame: FrameType | None) -> None:
        for one in before:
            signal.signal(one, signal.SIG_DFL)
        enough.set()

    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    for one in before:
        signal.signal(one, handle)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def _progress(tree: TopicTree, seconds: float) -> Iterator[None]:
    """Show on a terminal how far it is; say nothing elsewhere."""
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    begin = time.monotonic()

    def show() -> None:
        while not ended.wait(0.5):
            left = max(0, round(seconds - (time.monotonic() - begin)))
            sys.stderr.write(f"\r\033[Klistening, {left} s left: {tree.messages} messages, {tree.topics.count} topics")
            sys.stderr.flush()

    thread = threading.Thread(target=show, name="discover-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()
