"""Another number of command partitions is a new generation: opened under load, with offline devices (H28)."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from bridge.contract.commands import Command
from bridge.errors import PulsebridgeError, TerminalError
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.command_writer import CommandWriter
from bridge.settings import PulsarSettings, Settings
from pulsebridge.local.stack import LocalStack
from pulsebridge.moving import move
from tests.support.push import (
    Devices,
    PushProcess,
    all_acknowledged,
    command,
    parking_settings,
    provision,
    receipts,
)
from tests.support.waiting import poll_for

pytestmark = [pytest.mark.stack, pytest.mark.chaos, pytest.mark.thorough]

DEVICES = 12
OFFLINE = {"d0", "d1", "d2"}
BEFORE, AFTER = 2, 6
NAMES = (
    "service_url", "admin_url", "namespace", "system_namespace", "command_partitions", "command_generation",
)  # fmt: skip


def generation(settings: Settings, number: int, partitions: int) -> Settings:
    pulsar = settings.pulsar.model_copy(update={"command_generation": number, "command_partitions": partitions})
    return settings.model_copy(update={"pulsar": pulsar})


class Writer:
    """Writes to every device in turn. When Pulsar refuses, it goes on with the settings of the next generation, and writes
    again what has no receipt, as the documentation says.
    """

    def __init__(self, settings: Settings, following: Settings) -> None:
        self.written: list[Command] = []
        self.refusals: list[str] = []
        self._settings, self._following = settings, following
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(0.1):
            some = [command(self._settings, f"d{n}", number) for n in range(DEVICES)]
            self._write(some)
            self.written += some
            number += 1

    def _write(self, some: list[Command]) -> None:
        while True:
            try:
                with PulsarClient(self._settings.pulsar) as client:
                    assert len(list(CommandWriter(client).write(some))) == len(some)
            except PulsebridgeError as e:
                self.refusals.append(str(e))
                self._settings = self._following
                self._ended.wait(0.3)
            else:
                return


def move_ends(old: Settings, new: Settings, folder: Path) -> bool:
    """Run ``pulsebridge commands move``; return False while Pulsar still has the producers of a killed process."""
    for name, one in (("old", old), ("new", new)):
        pulsar = {key: getattr(one.pulsar, key) for key in NAMES}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"pulsar": pulsar}), encoding="utf-8")
    command_line = [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "commands", "move"]
    done = subprocess.run(
        [*command_line, "--config", "old.yaml", "--to", "new.yaml"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 or "a process of push" in done.stderr, done.stderr
    assert done.returncode or "moved" in done.stdout
    return done.returncode == 0


@pytest.mark.timeout(400)
@pytest.mark.parametrize("killed", [False, True])
def test_h28_more_partitions_under_load_lose_nothing_and_keep_the_order(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path, killed: bool
) -> None:
    old = parking_settings(stack, namespaces, command_partitions=BEFORE, offline={"probe_min": "1s"})
    new = generation(old, 1, AFTER)
    provision(old)
    offline = set(OFFLINE)
    writer = Writer(old, new)
    with (
        Devices(old, lambda device, _count: device not in offline) as devices,
        PushProcess(old, tmp_path, "first") as first,
        PushProcess(old, tmp_path, "second") as second,
        writer.running(),
    ):
        poll_for(lambda: (first.log + second.log).count("partition is ours") >= BEFORE, 60, "both partitions")
        poll_for(lambda: len(devices.ids("d9")) > 30, 60, "commands to flow, and three devices to be parked")
        with pytest.raises(TerminalError, match="a process of push"):
            move(old.pulsar, new.pulsar)
        for process in (first, second):
            if killed:
                process.kill()
            else:
                assert process.terminate() == 0
        poll_for(lambda: move_ends(old, new, tmp_path), 60, "no push owns a partition", every=0.5)
        assert move(old.pulsar, new.pulsar) == [], "all was moved before"
        with pytest.raises(TerminalError, match="was terminated"):
            provision(old)
        with pytest.raises(TerminalError, match="generation 2 of the commands is not open"):
            provision(generation(old, 2, AFTER))
        with PushProcess(new, tmp_path, "third") as third, PushProcess(new, tmp_path, "fourth") as fourth:
            poll_for(lambda: (third.log + fourth.log).count("partition is ours") >= AFTER, 60, "six partitions")
            offline.clear()
            before = len(writer.written)
            poll_for(lambda: len(writer.written) > before + 20 * DEVICES, 60, "commands to flow")
            writer._ended.set()
            writer._thread.join()
            devices.await_all(writer.written, 120)
            all_acknowledged(new)
            assert third.terminate() == 0
            assert fourth.terminate() == 0
    print(f"{len(writer.written)} commands, {devices.check(writer.written)} repeats")
    assert set(receipts(new)) == {one.command_id for one in writer.written}
    assert any("terminated" in one for one in writer.refusals)
