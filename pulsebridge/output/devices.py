"""Output of ``pulsebridge devices`` and ``pulsebridge commands``: tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from bridge.contract import GROUP_COMMANDS_TOPIC, PARKED_TOPIC, Receipt
from bridge.contract.commands import Command
from bridge.dead_letters.history import Copy
from bridge.display import printable
from bridge.inspect.devices.reading import Budget, Owner, PushTopics, ReceiptsRead, emitted_us, waiting_command
from bridge.inspect.devices.view import DeviceView, Waiting
from bridge.settings import Settings
from pulsebridge.output.overview import Overview, Selection
from pulsebridge.output.text import CELL_CHARACTERS, iso, markup, text_of

__all__ = [
    "age",
    "backlog_json",
    "copy_json",
    "device_json",
    "device_of",
    "device_text",
    "families_json",
    "families_text",
    "overview_json",
    "overview_text",
    "pending_json",
    "read_device",
    "reading_shown",
    "receipt_json",
    "table",
]

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def age(us: int, now_us: int) -> str:
    """Return the time since ``us`` in its two largest units, ``-`` if it is not known."""
    if not us:
        return "-"
    left = max(0, now_us - us) // 1_000_000
    parts: list[str] = []
    for size, unit in _UNITS:
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join(parts[:2])


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table with aligned columns. A cell is printable and bounded."""
    lines = [list(headings), *([printable(cell, CELL_CHARACTERS) for cell in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(headings))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines]  # fmt: skip


def _time(us: int) -> str | None:
    return iso(us) if us else None


def device_json(device: DeviceView, presence: str) -> dict[str, Any]:
    """Return a device's line for programs; times are ISO 8601 in UTC, null if they are not known."""
    return {
        "device": device.device,
        "partition": device.partition,
        "presence": presence,
        "last_seen": _time(device.seen_us),
        "link": device.link or None,
        "pending": device.pending,
        "parked": device.parked,
        "oldest_pending": _time(device.oldest_us),
        "last_delivery": _time(device.delivered_at_ms * 1000),
    }


def backlog_json(budget: Budget) -> dict[str, Any]:
    """Return how much of the backlog was read."""
    return {"backlog": budget.read, "backlog_cut": budget.spent, "backlog_left_out": budget.left_out}


def overview_json(overview: Overview, now_us: int, read: dict[str, Any]) -> dict[str, Any]:
    """Return the list for programs."""
    lines = [device_json(one, overview.selection.presence(one, now_us)) for one in overview.lines]
    return {"devices": lines, "totals": overview.totals(), "read": read}


def overview_text(overview: Overview, now_us: int, read: dict[str, Any]) -> str:
    """Return the list for people."""
    rows = [
        (
            one.device,
            overview.selection.presence(one, now_us),
            age(one.seen_us, now_us),
            str(one.pending),
            str(one.parked),
            age(one.oldest_us, now_us),
            age(one.delivered_at_ms * 1000, now_us),
        )
        for one in overview.lines
    ]
    shown = table(("device", "presence", "seen", "pending", "parked", "oldest pending", "last delivery"), rows)
    left_out = overview.selected - len(rows)
    totals = overview.totals()
    lines = shown if rows else []
    if left_out:
        lines.append(f"… and {left_out} more; --limit 0 shows all")
    lines += [
        f"{totals['devices']} devices, {totals['absent']} absent, {totals['pending']} commands pending, "
        f"{totals['parked']} of them parked"
    ]
    if read["backlog_cut"]:
        lines.append(f"only {read['backlog']} messages of the backlog were read, more commands wait: raise --backlog")
    lines += _left_out(read)
    return text_of(lines)


def _left_out(read: dict[str, Any]) -> list[str]:
    count = read["backlog_left_out"]
    return (
        [f"{count} messages of the backlog are not valid commands: push writes them to the dead letters"]
        if count
        else []
    )


def pending_json(waiting: Waiting, command: Command | None, emitted_us: int, position: str) -> dict[str, Any]:
    """Return a waiting command for programs; ``command`` is None if Pulsar has deleted it. ``position`` is its text."""
    one = waiting.parked
    return {
        "id": command.command_id if command is not None else None,
        "group": command.ref.group if command is not None and command.ref is not None else None,
        "topic": command.mqtt_topic if command is not None else None,
        "bytes": command.size if command is not None else None,
        "position": position,
        "state": "parked" if one is not None else "waiting",
        "emitted": _time(emitted_us),
        "expires": _time((command.expires_at_ms if command is not None else 0) * 1000),
        "maybe_seen": one.maybe_seen or one.resend if one is not None else None,
    }


def receipt_json(receipt: Receipt) -> dict[str, Any]:
    """Return a receipt for programs: times in ISO 8601, the answer as text, escaped if not UTF-8."""
    fields = {name: value for name, value in asdict(receipt).items() if not name.endswith("_us")}
    times = ("emitted", "pushed", "confirmed", "answered")
    fields |= {name: _time(getattr(receipt, f"{name}_at_us")) for name in times}
    fields["answer"] = receipt.answer.decode("utf-8", "backslashreplace")
    return fields


def device_text(shown: dict[str, Any]) -> str:
    """Return the output of ``devices show`` for people."""
    owner = shown["owner"]
    serves = f"{owner['process']} serves it" if owner["serves"] else "no process serves it"
    if not owner["serves"] and owner["process"]:
        serves += f" (the last one was {owner['process']})"
    lines = [
        f"device         {shown['device']}",
        f"presence       {shown['presence']}, last seen {shown['last_seen'] or 'unknown'}"
        + (f" at {shown['link']}" if shown["link"] else ""),
        f"partition      {shown['partition']}; {serves}",
        f"cursor         {shown['cursor'] or 'none: no command is settled yet'}",
        f"last delivery  {shown['last_delivery'] or 'none'}",
        f"pending        {shown['pending']}, {shown['parked']} of them parked",
    ]
    if shown["presence"] == "unknown" and not (shown["cursor"] or shown["pending"] or shown["last_seen"]):
        lines.append("Pulsar has no record of the device: check its name")
    if shown["commands"]:
        rows = [
            (
                (one["id"] or "(not in Pulsar any more)") + f", to group {one['group']}" * bool(one["group"]),
                one["state"] + (", maybe seen" if one["maybe_seen"] else ""),
                one["emitted"] or "-",
                one["expires"] or "-",
                one["position"],
                one["topic"] or "-",
            )
            for one in shown["commands"]
        ]
        lines += ["", *table(("command", "state", "emitted", "expires", "position", "topic"), rows)]
        if shown["pending"] > len(rows):
            lines.append(f"… and {shown['pending'] - len(rows)} more; --limit 0 shows all")
    if shown["receipts"]:
        last = [
            (
                one["command_id"],
                one["state"],
                str(one["attempts"]),
                one["answered"] or one["confirmed"] or one["emitted"] or "-",
                one["reason"],
            )
            for one in shown["receipts"]
        ]
        lines += ["", *table(("last receipts", "state", "attempts", "time", "reason"), last)]
    elif shown["read"]["receipts"]:
        lines += ["", f"no receipt of the device in the last {shown['read']['receipts']} entries of its partition"]
    lines += _left_out(shown["read"])
    return text_of(lines)


def device_of(
    device: DeviceView,
    *,
    cursor: str,
    presence: str,
    owner: Owner,
    commands: list[dict[str, Any]],
    receipts: ReceiptsRead,
    read: dict[str, Any],
) -> dict[str, Any]:
    """Return the output of ``devices show`` for programs."""
    return device_json(device, presence) | {
        "cursor": None if device.cursor.ledger < 0 else cursor,
        "owner": asdict(owner),
        "commands": commands,
        "receipts": [receipt_json(one) for one in receipts.receipts],
        "read": read | {"receipts": receipts.entries, "all_receipts": receipts.whole},
    }


def read_device(
    topics: PushTopics,
    settings: Settings,
    device: str,
    *,
    now_us: int,
    budget: Budget,
    limit: int | None = None,
    receipts: int = 10,
) -> dict[str, Any]:
    """Return the output of ``devices show`` for programs: the first ``limit`` waiting commands, the last receipts."""
    partition = topics.partition_of(device)
    view = topics.records(partition)
    for position, command, _published_ms in topics.unacknowledged(partition, budget):
        if command.device == device:
            view.take_unacknowledged(position, device)
    waiting = view.waiting(device)[:limit]
    commands: list[dict[str, Any]] = []
    found = view.device(device)
    for one, message in topics.read(partition, waiting):
        command_ = waiting_command(message)
        at_us = 0 if message is None or command_ is None else emitted_us(command_, message.published_ms)
        found.oldest_us = found.oldest_us or at_us
        commands.append(pending_json(one, command_, at_us, topics.shown(partition, one.position)))
    return device_of(
        found,
        cursor=topics.shown(partition, found.cursor),
        presence=Selection.of(settings).presence(found, now_us),
        owner=topics.owner(view),
        commands=commands,
        receipts=topics.last_receipts(device, receipts),
        read=backlog_json(budget),
    )


def copy_json(copy: Copy, queue: str | None, topics: PushTopics) -> dict[str, Any]:
    """Return one command of a family for programs; ``queue`` is the queue of a pending command."""
    command = copy.command
    return {
        "id": copy.command_id,
        "state": copy.state,
        "queue": queue,
        "topic": command.mqtt_topic if command is not None else None,
        "bytes": command.size if command is not None else None,
        "emitted": _time(command.emitted_at_us) if command is not None else None,
        "expires": _time(command.expires_at_ms * 1000) if command is not None else None,
        "positions": [topics.shown(partition, position) for partition, position in copy.positions],
        "moved": [topics.shown(partition, position) for partition, position in copy.moved],
        "in_group": [
            {"group": one.group, "position": topics.shown(one.partition, one.position), "how": one.how}
            for one in copy.in_group
        ],
        "dead_letters": [str(one.id) for one in copy.letters],
        "receipts": [receipt_json(one) for one in copy.receipts],
    }


def families_json(command_id: str, families: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the output of ``commands show`` for programs: a command, or those of several devices."""
    return families[0] if len(families) == 1 else {"id": command_id, "devices": families}


def families_text(shown: dict[str, Any]) -> str:
    """Return the output of ``commands show`` for people."""
    if "devices" not in shown:
        return _family_text(shown)
    several = printable(f"{len(shown['devices'])} devices have a command {shown['id']}")
    return "\n\n".join([several, *map(_family_text, shown["devices"])])


_HOW: Final = {
    "waiting": "waits for its expansion to the members of the group (pulsebridge status shows whether push runs)",
    "begun": "push expands it to the members of the group",
    "done": "finished",
}


def _family_text(shown: dict[str, Any]) -> str:
    of_group = f"the group {shown['group']}" if shown["group"] else "an unknown device"
    lines = [f"{shown['id']} for {shown['device'] or of_group}: {shown['state']}"]
    for copy in shown["copies"]:
        lines += [
            "",
            copy["id"],
            f"  state         {copy['state']}" + (f", {copy['queue']}" * bool(copy["queue"])),
        ]
        for name in ("topic", "emitted", "expires"):
            if copy[name]:
                lines.append(f"  {name:<13} {copy[name]}")
        if not copy["in_group"]:
            lines.append(f"  in the log    {', '.join(copy['positions']) or 'removed'}")
        for one in copy["in_group"]:
            lines.append(f"  in the log    {one['position']} of {GROUP_COMMANDS_TOPIC}: {_HOW[one['how']]}")
        if copy["moved"]:
            lines.append(f"  relocated to  {', '.join(copy['moved'])} of {PARKED_TOPIC}")
        if copy["dead_letters"]:
            lines.append(f"  dead letter   {', '.join(copy['dead_letters'])}")
        for receipt in copy["receipts"]:
            when = receipt["answered"] or receipt["confirmed"] or receipt["pushed"] or ""
            line = " ".join(part for part in (receipt["state"], when, receipt["reason"]) if part)
            lines.append(f"  receipt       {line}")
    return text_of(lines)


@contextmanager
def reading_shown() -> Iterator[Callable[[str, int], None]]:
    """Yield a function of a topic's name and the number of messages read; stderr shows both inside the context."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _topic, _count: None
        return
    with console.status("reading Pulsar") as status:
        yield lambda topic, count: status.update(f"reading {markup(topic)}: {count:,}")
