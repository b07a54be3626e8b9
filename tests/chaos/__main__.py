"""``make chaos``: kill the worker, the MQTT broker and Pulsar at random under load; ``make crashes`` kills at named points.

Of ingest, or with ``--push`` of push, with devices that come and go: that one at its named points first. With ``--hostile`` nothing is killed: hostile devices
attack ingest, push and the pipeline beside 1,000 honest ones. With ``--roam`` devices change at random between two MQTT
brokers, which two push processes serve; nothing is killed unless ``--push`` says so.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import threading
import time
from typing import NoReturn

from bridge.settings import LocalSettings
from pulsebridge.local.stack import LocalStack
from tests.chaos.hostile_world import hostile_world
from tests.chaos.push_world import PUSH_POINTS, push_world
from tests.chaos.world import VICTIMS, World, world
from tests.support.fleet import Fleet
from tests.support.folders import own_folder
from tests.support.stack import new_stack

_EACH = 3
_HEAP_FOR_OLD_MB = 8192
"""Of the broker with --push --old: where devices before MQTT 5 are to read positions, each command has a topic of its own.
4 GB were full after 150,000 commands when Artemis still kept each topic that was ever used; not measured since.
"""


def main() -> int:
    """Run it. Returns 0 when nothing acknowledged is missing or out of order and each repeat has its cause."""
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long to kill at random")
    parser.add_argument("--rate", type=float, help="messages per second: 2000, of push 100 commands")
    parser.add_argument("--devices", type=int, help="100, of push 1000")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--no-points", action="store_true", help="of push: leave out the named points")
    parser.add_argument("--hostile", action="store_true", help="hostile devices, and no kills")
    parser.add_argument("--mqtt", choices=("artemis", "mosquitto"), default="artemis", help="of --hostile: the broker")
    parser.add_argument("--push", action="store_true", help="kill push instead of ingest")
    parser.add_argument(
        "--roam", action="store_true", help="devices change between two MQTT brokers; --push: and kills"
    )
    parser.add_argument("--cluster", action="store_true", help="Pulsar is a cluster, whose parts die, hang and move")
    parser.add_argument("--victim", choices=VICTIMS, help="of push: at named points kill this one alone")
    parser.add_argument("--old", type=float, default=0.0, help="of push: share of devices with MQTT 3.1.1")
    parser.add_argument("--away", type=float, default=20.0, help="of push: how long devices are away, in s")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # also where the shell had SIGINT ignored, as with nohup
        signal.signal(number, _end)
    seed = random.randrange(2**32) if args.seed is None else args.seed
    mode = f"--hostile --mqtt {args.mqtt} " if args.hostile else "--push " if args.push else ""
    mode += "--roam " if args.roam else ""
    mode += "--cluster " if args.cluster else ""
    args.no_points = args.no_points or args.cluster  # at a named point the standalone is killed
    _say(f"seed {seed}: repeat with ARGS='{mode}--seed {seed}'")
    if args.hostile:
        return _hostile(args, seed)
    if args.roam:
        return _roam(args, seed)
    return _push(args, seed) if args.push else _ingest(args, seed)


def _hostile(args: argparse.Namespace, seed: int) -> int:
    with (
        own_folder("chaos") as folder,
        LocalStack(LocalSettings(start_timeout="5m", mqtt_server=args.mqtt)) as stack,
        hostile_world(
            stack,
            folder,
            devices=args.devices or 1000,
            rate=args.rate or 500.0,
            command_rate=50.0,
            seed=seed,
            with_tables=True,
        ) as one,
    ):
        _say(f"attacks for {args.seconds:.0f} s")
        pause, until, reported = threading.Event(), time.monotonic() + args.seconds, 0
        while (left := until - time.monotonic()) > 0:
            pause.wait(min(left, 10.0))  # how long the attacks last: nothing is waited for
            broken = one.interruptions()
            if len(broken) > reported:
                reported = len(broken)
                _say(f"{left:5.0f} s left: {'; '.join(broken)}")
        found = one.account(_say)
        _say(found.text())
    return 1 if found.broken else 0


def _push(args: argparse.Namespace, seed: int) -> int:
    chance = random.Random(seed)
    devices = args.devices or 1000
    with (
        own_folder("chaos") as folder,
        LocalStack(
            LocalSettings(
                start_timeout="5m", mqtt_heap=f"{_HEAP_FOR_OLD_MB if args.old else 0}MiB", cluster=args.cluster
            )
        ) as stack,
        push_world(
            stack,
            folder,
            devices=devices,
            rate=args.rate or 100.0,
            seed=seed,
            present_s=args.away,
            away_s=args.away,
            processes=max(1, devices // 500),
            old_share=args.old,
        ) as (one, fleet),
    ):
        if not args.no_points:
            for victim in [args.victim] if args.victim else VICTIMS:
                for point in PUSH_POINTS:
                    one.kill_at(point, victim, (1, 2, 3) if point == "after_takeover" else (1, 5, 20))
                    _say(f"{victim} killed {_EACH} times at {point}; {one.writer.stored} written")
        _say(f"at random for {args.seconds:.0f} s, {fleet.there} of {devices} devices are there")
        one.at_random(args.seconds, chance, _say)
        found = one.account(fleet, say=_say)
        _say(f"at points {dict(one.points)}, at random {dict(one.kills)}; {found.text()}")
    return 1 if found.broken else 0


def _roam(args: argparse.Namespace, seed: int) -> int:
    with (
        own_folder("chaos") as folder,
        LocalStack(LocalSettings(start_timeout="5m")) as stack,
        new_stack(pulsar_url=stack.pulsar_url, admin_url=stack.admin_url) as other,
        push_world(
            stack,
            folder,
            devices=args.devices or 1000,
            rate=args.rate or 100.0,
            seed=seed,
            present_s=10,
            away_s=1,
            processes=2,
            other=other,
        ) as (one, fleet),
    ):
        _say(f"devices change brokers for {args.seconds:.0f} s")
        one.roam(args.seconds, random.Random(seed) if args.push else None, _say)
        found = one.account(fleet, say=_say)
        _say(f"kills {dict(one.kills)}, {len(one.interruptions())} MQTT connections lost; {found.text()}")
    return 1 if found.broken else 0


def _ingest(args: argparse.Namespace, seed: int) -> int:
    with (
        own_folder("chaos") as folder,
        LocalStack(LocalSettings(start_timeout="5m", cluster=args.cluster)) as stack,
        world(stack, folder) as one,
    ):
        one.start()
        with one.fleet(devices=args.devices or 100, rate=args.rate or 2000.0) as fleet:
            _say(f"at random for {args.seconds:.0f} s")
            begin = time.monotonic()
            one.at_random(args.seconds, random.Random(seed), _say)
            rate = fleet.total / (time.monotonic() - begin)
            _say(f"{rate:.0f} messages per second were acknowledged, kills included")
            return _account(one, fleet)


def _account(one: World, fleet: Fleet) -> int:
    found = one.account(fleet)
    _say(f"{fleet.total} acknowledged, kills {one.kills}; {found.text()}")
    return 1 if found.missing or found.disordered or found.unexplained else 0


def _end(number: int, _: object) -> NoReturn:
    """End what was started: each with block does."""
    sys.exit(128 + number)


def _say(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
