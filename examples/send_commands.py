"""Sends three commands to each device with Pulsar's Python client alone. docs/guides/any-client.md describes the messages.

Run it: python examples/send_commands.py pulsar://127.0.0.1:6650 public/pulsebridge-system press-3 press-4
"""

import sys
import time
import uuid

import pulsar

BITS_32 = 0xFFFFFFFF


def partition_of(device: str, partitions: int) -> int:
    """Return the partition of a device: Pulsar's Murmur3_32Hash, which its Python client does not offer."""
    return (murmur3(device.encode()) & 0x7FFFFFFF) % partitions


def murmur3(data: bytes) -> int:
    whole = len(data) // 4 * 4
    found = 0
    for at in range(0, whole, 4):
        found ^= mixed(data[at : at + 4])
        found = (found << 13 | found >> 19) & BITS_32
        found = (found * 5 + 0xE6546B64) & BITS_32
    found ^= mixed(data[whole:]) ^ len(data)
    found = (found ^ found >> 16) * 0x85EBCA6B & BITS_32
    found = (found ^ found >> 13) * 0xC2B2AE35 & BITS_32
    return found ^ found >> 16


def mixed(block: bytes) -> int:
    found = int.from_bytes(block, "little") * 0xCC9E2D51 & BITS_32
    found = (found << 15 | found >> 17) & BITS_32
    return found * 0x1B873593 & BITS_32


def main(service_url: str, namespace: str, *devices: str) -> None:
    client = pulsar.Client(service_url)
    partitions = client.get_topic_partitions(f"persistent://{namespace}/commands")
    producers = [client.create_producer(name) for name in partitions]
    run = uuid.uuid4().hex[:8]
    for step in range(1, 4):
        for device in devices:
            now_ms = time.time_ns() // 1_000_000
            properties = {
                "pb.v": "1",
                "command.id": f"{run}-{step}",
                "command.device": device,
                "command.mqtt_topic": f"devices/{device}/commands",
                "command.expires_at_ms": str(now_ms + 3_600_000),
                "command.emitted_at_us": str(now_ms * 1000),
            }
            producer = producers[partition_of(device, len(partitions))]
            # send() returns when Pulsar has stored the command; send_async() with a callback is faster for many.
            stored = producer.send(f'{{"step": {step}}}'.encode(), properties=properties, partition_key=device)
            print(f"{run}-{step} for {device}: stored at {stored}")
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
