"""The generated page of hazards: each in a sentence, with the rule that prevents it, and the tests that provoke it."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["HAZARDS", "hazard_tests", "hazards_page"]

_TESTS: Final = Path(__file__).resolve().parents[1]
_SHOWN: Final = 2
"""Names of so many tests are shown for each hazard."""
_HEAD: Final = """\
# Hazards

A hazard is a way in which such a bridge loses, reorders or repeats messages, or in which a client disturbs others. Each
was found by trying, by reading code, or by reasoning. Each has tests that provoke it, whose names begin with its number.
A hazard that the present design excludes names a test of that design. This page is generated; it names two tests of each. `make test K="h1 or h2"` runs the tests of some hazards in a checkout.
"""

HAZARDS: Final[dict[str, dict[int, tuple[str, str]]]] = {
    "Ingest": {
        1: ("Pulsar's client refuses a message without an error, and a later receipt looks like a success", "A receipt confirms only what the same producer sent since its last receipt. After an error a successor resends the rest, in order"),
        2: ("A late receipt acknowledges another message on a new connection", "PUBACKs leave on the connection that brought the message, or not at all"),
        3: ("A client that stops reading loses its connection, because it does not see PINGRESP", "A paused link sends pings, and does not count a missing PINGRESP"),
        4: ("One topic over its quota stops its link, because acknowledgements leave in order", "By default the link waits, with a WARNING; `ingest.on_blocked: deadletter` diverts that partition until a replay"),
        5: ("A message is too large for the dead letters, too", "Dead letters are sent in chunks; of a larger one head, length and hash are kept"),
        6: ("Retained messages come again at each subscribe", "Ingest subscribes only for a new session or other filters, and marks retained messages"),
        7: ("Another number of workers leaves sessions without a reader", "Sessions are drained before they are deleted; a session without a reader is an error in `pulsebridge status`"),
        8: ("Commands come back as messages of devices", "Push marks its publishes, and a filter that matches command topics is refused"),
        9: ("A stop loses what is queued", "SIGTERM drains with a deadline; what is not stored stays unacknowledged"),
        10: ("Maps grow with each device, and two processes with one client id fight", "Maps are bounded; the second process ends with one line"),
        11: ("A topic that was created on the fly, or re-created, has messages that no reader finds", "Retention exists before the first message; topics found later are read from their beginning"),
    },
    "Source": {
        12: ("A new checkpoint continues the subscription of another query, and skips messages", "The subscription records its query, and another checkpoint is refused"),
        13: ("Policies of Pulsar delete messages that a query has not read", "They are checked at the start, with the command that corrects them"),
        14: ("A chunked message crosses the border of a batch", "It belongs to the batch with its last chunk"),
        15: ("The end of a range never arrives", "The task asks Pulsar what each missing entry is, or fails; it never counts it as read"),
        16: ("Pulsar ignores an acknowledgement at a position without an entry", "The last existing entry is acknowledged, and the position is read back"),
    },
    "Streaming": {
        17: ("A watermark drops late rows", "Tables merge by key, without a watermark"),
        18: ("Two tables of a batch differ after a crash and a change of rules", "Both commits name flow and batch; the first batch of a run is compared with the table"),
        19: ("A repeated batch sends a command again", "The id follows from rule, device and reading"),
        20: ("One wrong clock stops every window", "A time far ahead of the arrival goes to quarantine; watermarks follow the arrival"),
    },
    "Commands": {
        21: ("Deduplication by sequence drops commands of a retried task", "The id identifies a command; push drops a repeated one"),
        22: ("A task's rows are not in order", "A row that breaks the order of its task goes to the dead letters"),
        23: ("Two processes serve a partition after a failover", "Pulsar grants the partition to one exclusive producer, and a takeover cuts the former owner's connection"),
        24: ("A compacted topic vanishes, or seems empty after a restart", "It has a subscription, and its owner asks the ledgers"),
        25: ("A crash between delivery and acknowledgement loses or repeats a command", "Cursor, receipt, acknowledgement, in this order; a repeat is marked"),
        26: ("The MQTT broker confirms a command for a device that is dead", "`confirm: device` waits for the device. With `confirm: broker` what it confirmed since the last sign of life is sent again"),
        27: ("Live commands overtake those that are sent again", "One queue and one mode for each device"),
        28: ("More partitions put devices elsewhere", "Another number is a new generation of topics, opened after the former one is closed"),
        29: ("Lists of parked commands are rewritten whole", "They are stored in segments of 256"),
        30: ("One absent device keeps all commands in Pulsar", "Commands that wait long move to a topic of their own"),
        31: ("A will arrives after the new birth message", "Absence counts only if it is newer than the last sign of life; a parked device is probed"),
        32: ("The local broker accepts connections above its disk limit, and drops each publish", "`pulsebridge up` refuses to start above the limit"),
    },
    "Foreign input": {
        33: ("A legal MQTT property ends ingest again and again", "Packets are read here; a malformed one is a dead letter with its PUBACK"),
        34: ("A malformed message makes push reject another device's command", "It is no evidence against a command"),
        35: ("A name of megabytes blocks a partition", "Names have one limit (`max_name_bytes`)"),
        36: ("A device answers for another one", "An answer needs the tag of its command"),
        37: ("One payload takes minutes or gigabytes to decode", "Each decoder is bounded in time, memory and output"),
        38: ("Text of a device reaches terminals, YAML and logs unescaped", "One function escapes it everywhere"),
        39: ("HTTP connections use memory before they authenticate", "Connections and heads are bounded first"),
        40: ("A web page publishes through the loopback listener", "Host and Origin are checked; a token names its topics"),
        41: ("A removed certificate authority stays trusted", "TLS files are read again"),
        42: ("A topic that is not UTF-8 ends push", "That publish is refused, and the next one goes"),
        43: ("Invented devices join groups by pattern", "A pattern matches devices that had a command, up to a bound"),
        44: ("A damaged record ends a takeover", "It is skipped, counted and named"),
        45: ("Two wrong clocks stop `gold`", "`gold` is a view without a watermark, so no clock stops it"),
        46: ("Devices use up the number of topics", "Each route and each device has a budget"),
        47: ("Resume requests flood a partition", "Refusals have a rate, and do not use the window of the commands"),
        48: ("A replay of dead letters repeats all of them", "There is one way to read a topic to its end, which asks the ledgers"),
        49: ("An unknown reason code closes the connection of push", "Below 0x80 it is a success; reconnects back off"),
        50: ("A restart of the broker looks like another process with the same client id", "Only the broker's own report, or the start of another session, counts"),
        51: ("A broker sends a QoS above the granted one", "PUBREC waits for Pulsar's receipt"),
    },
    "Clusters": {
        52: ("A hung Pulsar broker in the service URL stops push", "Hosts are probed, and silent ones left out"),
        53: ("One admin host is a single point of failure", "Several may be named, and the start needs one"),
        54: ("A policy that was just set is not visible yet", "It is read again, within a bound"),
        55: ("Lookups work, and the owners cannot be reached", "Push reports it, and begins when it can"),
    },
}  # fmt: skip
"""By part: the number of a hazard, what happens, and the rule."""
_INSTEAD: Final = {45: ("test_a_late_reading_corrects_its_window_alone",)}
"""Tests of hazards that cannot occur in the present design."""


@cache
def hazard_tests() -> dict[int, list[str]]:
    """Return the names of the tests of each hazard, by its number."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted(_TESTS.rglob("test_*.py")):
        for name in re.findall(
            r"^ *(?:async )?def (test_(?:h\d+_)+\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            for number in re.findall(r"(?<=_)h(\d+)(?=_)", name):
                found[int(number)].append(name)
    return found


def hazards_page() -> str:
    """Return the page of all hazards."""
    parts = [_HEAD]
    for part, hazards in HAZARDS.items():
        parts.append(f"\n## {part}\n\n| | what happens | the rule | tests |\n|---|---|---|---|\n")
        for number, (what, rule) in hazards.items():
            names = hazard_tests().get(number) or list(_INSTEAD[number])
            more = f", {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            shown = ", ".join(f"`{name}`" for name in names[:_SHOWN])
            parts.append(f"| H{number} | {what} | {rule} | {shown}{more} |\n")
    return "".join(parts)
