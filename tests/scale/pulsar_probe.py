"""Pulsar's own publish latency: a bare client publishes at a low rate, each message when it is due.

Run as ``python -m tests.scale.pulsar_probe SERVICE_URL TOPIC RATE SECONDS``; it writes the latencies in ms as JSON. No
other client writes to the topic. A process of its own: no other thread delays it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pulsar

from tests.support.reading_back import quiet

__all__ = ["publish_latencies_ms"]


def publish_latencies_ms(url: str, topic: str, *, rate: float, seconds: float, core: int) -> list[float]:
    """Publish for some time from a process on one core. Returns how late the receipt of each message came."""
    command = ["taskset", "-c", str(core), sys.executable, "-m", "tests.scale.pulsar_probe", url, topic]
    done = subprocess.run([*command, str(rate), str(seconds)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measure(url: str, topic: str, rate: float, seconds: float) -> list[float]:
    found: list[float] = []
    done = threading.Event()
    client = pulsar.Client(url, logger=quiet())
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    try:
        for _ in range(100):
            producer.send(b"warm")
        begin, total = time.time(), int(rate * seconds)
        for n in range(total):
            due = begin + n / rate
            if (left := due - time.time()) > 0:
                time.sleep(left)

            def stored(_result: object, _id: object, due: float = due) -> None:
                found.append(round((time.time() - due) * 1000, 2))
                if len(found) == total:
                    done.set()

            producer.send_async(b"x" * 128, stored)
        assert done.wait(60), f"{len(found)} of {total} messages stored"
    finally:
        client.close()
    return found


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))))
