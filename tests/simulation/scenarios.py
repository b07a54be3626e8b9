"""The kinds of worlds that are simulated, and the limits that they vary."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tests.simulation import ingest_world
from tests.simulation.broadcast_world import BroadcastWorld
from tests.simulation.contested_world import ContestedWorld
from tests.simulation.engine import Scenario
from tests.simulation.ingest_world import IngestWorld
from tests.simulation.push_world import SECOND, PushWorld
from tests.support.push_limits import Limits

__all__ = ["BROKER", "CHANGES", "DEVICE", "GROUP", "LINKS", "MOVES", "SCENARIOS"]

BROKER: Final = Limits(
    remembered_ids=16,
    retry_min_us=SECOND // 10,
    retry_max_us=2 * SECOND,
    park_after=2,
    replay_rate=100,
    probe_min_us=2 * SECOND,
    probe_max_us=10 * SECOND,
    resume_every_us=SECOND // 2,
    awake=1,
)
DEVICE: Final = replace(BROKER, answers=True, answer_timeout_us=SECOND)
CHANGES: Final[list[dict[str, int]]] = [
    {},
    {"awake": 100},
    {"window": 2, "pending": 4, "device_pending": 2, "parked_max": 3, "replay_window": 2},
    {"attempts": 2},
    {"attempts": 1, "parked_max": 2},
    {"move_after_us": 2 * SECOND},
    {"pending_bytes": 6},
    {"resume_max": 3, "move_after_us": SECOND},
    {"silence_us": 3 * SECOND, "replay_rate": 10},
    {"puback_timeout_us": SECOND},
    {"window": 1, "pending": 10},
]
OVERFLOWS: Final[list[dict[str, int]]] = [{"attempts": 1, "parked_max": most} for most in (1, 2, 2, 3)]
"""Few commands of an offline device are kept: many are given up beside others that are sent."""
EVENTS: Final = (
    "write_command", "write_command", "receive", "receive", "arrive", "arrive", "puback", "puback", "answer", "publish",
    "hear", "copy", "trim", "store", "store", "store", "pull", "pull", "find", "ask", "leave", "come_back", "work",
    "connect", "pass_time", "pass_time", "write_bad", "read_again", "lose_link", "close_link", "kill_broker", "forget",
    "write_again", "lose_cursors", "crash", "hand_over",
)  # fmt: skip
MOVES: Final = (*EVENTS, "move", "move", "will")
"""With several brokers, between which devices move."""
LINKS: Final = [("",), ("a", "b"), ("a", "b", "c")]
RARE: Final = frozenset(
    [
        "write_bad",
        "read_again",
        "lose_link",
        "close_link",
        "kill_broker",
        "forget",
        "write_again",
        "lose_cursors",
        "crash",
        "hand_over",
        "ask",
        "fence",
        "compact",
        "end_former",
        "age",
    ]
)
GROUP: Final = ("write_group", "write_group", "expand", "expand", "expand", "broadcast", "answer_broadcast")


CONTESTED: Final = (
    *(one for one in MOVES if one not in ("ask", "find", "forget", "write_again", "lose_cursors")),
    "fence", "fence", "usurp", "usurp", "hand_over", "compact", "end_former", "age", "rewrite", "reach", "drop_out", "notice", "notice",
    *["act_as_former"] * 6, *["work"] * 4, *["write_command"] * 2,
)  # fmt: skip


def _connected(kind: Callable[..., Any], limits: Limits, **more: Any) -> PushWorld:
    world: PushWorld = kind(limits, **more)
    world.connect_all()
    return world


def _push(chance: random.Random) -> Callable[[], PushWorld]:
    limits = replace(chance.choice((BROKER, DEVICE)), **chance.choice((*CHANGES, *OVERFLOWS)))  # type: ignore[arg-type]
    return partial(_connected, PushWorld, limits, poison_every=chance.choice((0, 0, 5)), links=chance.choice(LINKS))


def _broadcast(chance: random.Random) -> Callable[[], PushWorld]:
    limits = replace(DEVICE, **chance.choice(CHANGES))  # type: ignore[arg-type]
    more = {"poison_every": chance.choice((0, 0, 5)), "links": chance.choice(LINKS), "elsewhere": chance.random() < 0.5}
    return partial(_connected, BroadcastWorld, limits, **more)


def _contested(chance: random.Random) -> Callable[[], PushWorld]:
    limits = replace(chance.choice((BROKER, DEVICE)), **chance.choice(CHANGES))  # type: ignore[arg-type]
    return partial(_connected, ContestedWorld, limits, links=chance.choice(LINKS) if limits.answers else LINKS[0])


def _ingest(_chance: random.Random) -> Callable[[], IngestWorld]:
    return IngestWorld


SCENARIOS: Final = {
    one.name: one
    for one in (
        Scenario("push", _push, MOVES, RARE, finishes=0.5),
        Scenario("broadcast", _broadcast, (*MOVES, *GROUP, *GROUP), RARE, finishes=0.25),
        Scenario("contested", _contested, CONTESTED, RARE, finishes=0.5, weights=(2, 6)),
        Scenario("ingest", _ingest, ingest_world.EVENTS, ingest_world.RARE, finishes=1.0),
    )
}
"""By name."""
