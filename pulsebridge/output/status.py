"""Output of ``pulsebridge status``: ingest and push processes, MQTT sessions, and the partitions of push."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bridge.inspect.devices.status import PushStatus
from bridge.inspect.instances import Instances
from bridge.inspect.sessions import Sessions
from pulsebridge.output.devices import age
from pulsebridge.output.text import markup

__all__ = ["instances_json", "push_json", "sessions_json", "show_instances", "show_push", "show_sessions"]


def instances_json(found: Instances) -> dict[str, Any]:
    """Return the instances for ``--json``."""
    return {
        "instances": [
            asdict(record) | {"state": state, "owners": {t: found.owners.get(t, {}) for t in record.topics}}
            for record, state in found.records
        ],
        "instances_problem": found.problem,
        "push_processes": [asdict(one) for one in found.push],
    }


def sessions_json(found: Sessions) -> dict[str, Any]:
    """Return the unserved sessions for ``--json``."""
    return {
        "unserved_sessions": [
            {
                "client_id": session.client_id or name,
                "broker": session.broker,
                "filters": list(session.granted),
                "remedy": found.remedies[name],
            }
            for name, session in found.unserved.items()
        ],
        "sessions_problem": found.problem,
    }


def push_json(found: PushStatus) -> dict[str, Any]:
    """Return the state of push for ``--json``."""
    return {
        "push": [asdict(one) | {"unserved": one.unserved} for one in found.partitions],
        "push_problem": found.problem,
    }


_COLOURS: Final = {"running": "green", "gone": "red"}


def show_instances(found: Instances, console: Console) -> None:
    """Print a line for each instance, and the owners of its topics by broker; nothing without instances. Then a line for
    each push process.
    """
    if found.records:
        table = Table(title="Instances of ingest", title_justify="left")
        for column in ("instance", "state", "protocol", "listens on", "ready", "topics"):
            table.add_column(column)
        for record, state in found.records:
            colour = _COLOURS.get(state, "yellow")
            for number, (name, protocol) in enumerate(sorted(record.protocols.items())):
                table.add_row(
                    markup(record.instance) if number == 0 else "",
                    f"[{colour}]{state}[/]" if number == 0 else "",
                    markup(name),
                    "\n".join(map(markup, protocol.listeners)),
                    "\n".join(markup(f"{part}: {'yes' if ok else 'no'}") for part, ok in protocol.ready.items()),
                    str(record.topics_count) if number == 0 else "",
                )
        console.print(table)
    by_broker: dict[str, list[str]] = {}
    for partitions in found.owners.values():
        for partition, broker in partitions.items():
            by_broker.setdefault(broker, []).append(partition.split("/", 4)[-1])
    for broker, names in sorted(by_broker.items()):
        shown = ", ".join(sorted(names)[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        console.print(f"{markup(broker)} owns {markup(shown)}", soft_wrap=True)
    if found.push:
        table = Table(title="Push processes", title_justify="left")
        for column in ("instance", "state", "partitions", "groups"):
            table.add_column(column)
        for one in found.push:
            state, share = f"[{_COLOURS.get(one.state, 'yellow')}]{one.state}[/]", ", ".join(map(str, one.partitions))
            table.add_row(markup(one.instance), state, share, "yes" if one.groups else "")
        console.print(table)
        for one in found.push:
            if one.away and one.state != "gone":
                links = markup(", ".join(one.away))
                console.print(f"{markup(one.instance)} cannot push at {links}: see its log", soft_wrap=True)
    if found.problem:
        console.print(f"Instances: {markup(found.problem)}", soft_wrap=True)


def show_sessions(found: Sessions, console: Console, *, reported: str = "") -> None:
    """Print a line for each unserved session, and the problem unless it is ``reported`` already."""
    for name, session in found.unserved.items():
        broker = f" at {session.broker}" if session.broker else ""
        filters = ", ".join(session.granted) or "no filter"
        line = (
            f"the MQTT session {session.client_id or name!r}{broker} ({filters}) queues messages that no process reads"
        )
        console.print(f"[red]{markup(line)}[/]: {markup(found.remedies[name])}", soft_wrap=True)
    if found.problem not in ("", reported):
        console.print(f"MQTT sessions: {markup(found.problem)}", soft_wrap=True)


def show_push(found: PushStatus, console: Console, *, reported: str = "") -> None:
    """Print a line for each partition, and a remedy for unserved commands; ``reported``: problem already printed."""
    now_us = time.time_ns() // 1000
    if any(one.owner.serves or one.backlog or one.parked for one in found.partitions):
        table = Table(title="Push", title_justify="left")
        for column in ("partition", "served by", "backlog", "oldest", "devices offline", "parked"):
            table.add_column(column)
        for one in found.partitions:
            more = "" if one.whole else "+"
            table.add_row(
                str(one.partition),
                f"[green]{markup(one.owner.process)}[/]" if one.owner.serves else "[yellow]no process[/]",
                str(one.backlog),
                age(one.oldest_us, now_us),
                f"{one.parked_devices}{more}",
                f"{one.parked}{more}",
            )
        console.print(table)
    unserved = [str(one.partition) for one in found.partitions if one.unserved]
    if unserved:
        console.print(
            f"[red]commands wait in partitions {', '.join(unserved)} and no process serves them[/]: start pulsebridge "
            "push, without --partitions or with these partitions",
            soft_wrap=True,
        )
    if found.problem not in ("", reported):
        console.print(f"Push: {markup(found.problem)}", soft_wrap=True)
