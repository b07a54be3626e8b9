"""Members of one group in a process of their own: MQTT 5 by hand, thousands of connections on one thread.

Each executes the group's commands by the rule of ``group_member``. Some do not subscribe to the topic of broadcasts (deaf),
some execute a broadcast and do not answer it (mute), some connect when they are asked to (``come`` on stdin). It prints a
line of JSON whenever something has changed, and a last one when stdin ends.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Final

from tests.support import mqtt_packets as mqtt
from tests.support.group_member import GroupMember
from tests.support.waiting import patient, poll_for

__all__ = ["GroupFleet", "GroupFleetSpec"]

_DIALS: Final = 200  # connections that wait for CONNACK


@dataclass(frozen=True)
class GroupFleetSpec:
    """Members ``d00000`` to …; the first ones are deaf, the next mute, the last absent."""

    host: str
    port: int
    prefix: str
    group_topic: str
    count: int
    deaf: int = 0
    mute: int = 0
    absent: int = 0

    @property
    def names(self) -> list[str]:
        """All of them."""
        return [f"d{n:05}" for n in range(self.count)]


class _Member:
    def __init__(self, name: str, *, deaf: bool, mute: bool) -> None:
        self.name, self.deaf, self.mute = name, deaf, mute
        self.sock: socket.socket | None = None
        self.received = bytearray()
        self.state = GroupMember()
        self.executed: list[str] = []  # positions of the group's commands
        self.mid = 2


class _Members:
    def __init__(self, spec: GroupFleetSpec) -> None:
        self._spec = spec
        self._members = [
            _Member(name, deaf=n < spec.deaf, mute=spec.deaf <= n < spec.deaf + spec.mute)
            for n, name in enumerate(spec.names)
        ]
        self._selector = selectors.DefaultSelector()
        self._to_dial = self._members[: spec.count - spec.absent]
        self._dialled = 0
        self._ready = 0
        self._by: Counter[str] = Counter()  # how commands came: broadcast, copy; and what was wrong
        self._changed = False

    def run(self) -> None:
        self._selector.register(sys.stdin, selectors.EVENT_READ, None)
        report_at = 0.0
        while True:
            while self._to_dial and self._dialled - self._ready < _DIALS:
                self._dial(self._to_dial.pop(0))
            for key, _ in self._selector.select(0.1):
                if key.data is not None:
                    self._receive(key.data)
                elif not os.read(sys.stdin.fileno(), 4096):
                    self._report(whole=True)
                    return
                else:
                    self._to_dial = self._members[self._spec.count - self._spec.absent :]
            now = time.monotonic()
            if self._changed and now >= report_at:
                self._changed, report_at = False, now + 0.25
                self._report()

    def _report(self, *, whole: bool = False) -> None:
        executed = Counter(position for one in self._members for position in one.executed)
        found: dict[str, Any] = {"ready": self._ready, "by": self._by, "executed": executed}
        if whole:
            found["members"] = {one.name: one.executed for one in self._members}
        print(json.dumps(found), flush=True)

    def _dial(self, one: _Member) -> None:
        self._dialled += 1
        one.sock = socket.create_connection((self._spec.host, self._spec.port), timeout=60)
        one.sock.sendall(mqtt.connect(f"{self._spec.prefix}-{one.name}", "5", clean=True, keep_alive=600))
        self._selector.register(one.sock, selectors.EVENT_READ, one)

    def _receive(self, one: _Member) -> None:
        assert one.sock is not None
        data = one.sock.recv(1 << 18)
        if not data:
            self._by["lost connections"] += 1
            self._selector.unregister(one.sock)
            return
        one.received += data
        for first, body in mqtt.split(one.received):
            kind = first & 0xF0
            if kind == mqtt.CONNACK:
                one.sock.sendall(mqtt.subscribe("5", 1, f"{self._spec.prefix}/{one.name}/commands"))
                if not one.deaf:
                    one.sock.sendall(mqtt.subscribe("5", 2, self._spec.group_topic))
            elif kind == mqtt.SUBACK and body[1] == (1 if one.deaf else 2):
                self._ready += 1
                self._changed = True
            elif kind == mqtt.PUBLISH:
                self._changed = True
                self._command(one, mqtt.delivered("5", first, body))

    def _command(self, one: _Member, got: mqtt.Delivered) -> None:
        assert one.sock is not None
        user, state = dict(got.user), one.state
        position, answers, topic = user["group-position"], True, got.response_topic
        if got.topic == self._spec.group_topic:
            self._by["broadcast"] += 1
            answers = state.had(position) or state.follows(user["after"])
            if answers and not state.had(position):
                self._execute(one, position)
            answers = answers and not one.mute
            topic += f"/{one.name}".encode()
        else:
            self._by["copy"] += 1
            if user.get("repeat") != "1" or not state.had(position):
                self._execute(one, position)
        back = mqtt.puback(got.mid)
        if answers:
            one.mid = one.mid % 65_535 + 1
            back += mqtt.publish("5", topic, f"{one.name} did it".encode(), one.mid, got.correlation_data)
        one.sock.sendall(back)

    @staticmethod
    def _execute(one: _Member, position: str) -> None:
        one.executed.append(position)
        one.state.executed(position)


class GroupFleet:
    """The members' process."""

    def __init__(self, spec: GroupFleetSpec) -> None:
        self.last: dict[str, Any] = {"ready": 0, "by": {}, "executed": {}}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.group_fleet", json.dumps(asdict(spec))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.last = json.loads(line)

    def __enter__(self) -> GroupFleet:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def ready(self, count: int, timeout: float) -> None:
        """Wait until so many are connected and subscribed."""
        poll_for(lambda: self._alive() and self.last["ready"] >= count, timeout, f"{count} members subscribed")

    def _alive(self) -> bool:
        assert self._process.poll() is None, "the fleet has ended"
        return True

    def come(self) -> None:
        """Have the absent members connect."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"come\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, list[str]]:
        """End it. Returns what each member has executed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(patient(30))
        self._thread.join()
        found: dict[str, list[str]] = self.last["members"]
        return found


if __name__ == "__main__":
    _Members(GroupFleetSpec(**json.loads(sys.argv[1]))).run()
