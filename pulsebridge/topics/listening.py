"""Listens at an MQTT broker with a separate client id, a clean session and QoS 0; it leaves no state at the broker.

The link's thread fills the tree; the caller's thread reads it after the link has ended.
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

from bridge.display import printable
from bridge.errors import ConfigError
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message
from bridge.routing.templates import Filter
from bridge.settings.mqtt import MqttSettings
from bridge.settings.presets import preset_names
from pulsebridge.topics.proposing import PresetSigns, Proposal, propose
from pulsebridge.topics.showing import discovery_of
from pulsebridge.topics.tree import TopicTree

__all__ = ["discover", "listen", "proposal"]


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
    """Count the messages on ``filters`` for ``seconds``, or until ``enough``. Return the seconds listened.

    It calls ``begun`` once, on the caller's thread, after the broker has granted the filters.

    Raises TransientError if the broker cannot be reached, RefusedError if it refuses the client or a filter.
    """

    def count(message: Message) -> None:
        tree.add(message.topic, message.payload, retained=message.retain)
        signs.add(message.topic)

    # MQTT 3.1 allows at most 23 characters.
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
    """Listen; return the counts and the proposal. A signal stops it early. Raises the errors of ``listen``."""
    tree, signs, listened = _counted(settings, filters, seconds)
    return discovery_of(tree, signs.seen, propose(tree, signs.seen), listened)


def proposal(settings: MqttSettings, filters: Sequence[str], seconds: float) -> Proposal:
    """Listen as ``discover``; return the proposal."""
    tree, signs, _ = _counted(settings, filters, seconds)
    return propose(tree, signs.seen)


def _counted(settings: MqttSettings, filters: Sequence[str], seconds: float) -> tuple[TopicTree, PresetSigns, float]:
    for text in filters:
        _check(text)
    tree, signs = TopicTree(), PresetSigns(preset_names())
    enough = threading.Event()

    def begun() -> None:
        sys.stderr.write(
            f"listening at {settings.host}:{settings.port} on {printable(', '.join(filters))} for {seconds:g} s, "
            "Ctrl-C stops it early\n"
        )
        sys.stderr.flush()

    with _ended_by_signals(enough), _progress(tree, seconds):
        listened = listen(settings, tree, signs, filters=filters, seconds=seconds, enough=enough, begun=begun)
    return tree, signs, listened


def _check(text: str) -> None:
    try:
        named = any(Filter.parse(text).names)
    except ValueError as e:
        raise ConfigError(f"--filter: {e}") from e
    if named:
        raise ConfigError(f"--filter {text!r}: an MQTT filter has no names", remedy="use + and # without names")


@contextmanager
def _ended_by_signals(enough: threading.Event) -> Iterator[None]:
    """The first signal stops the listening, the second stops the process."""

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
    """Show the progress on a terminal; without one show nothing."""
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
