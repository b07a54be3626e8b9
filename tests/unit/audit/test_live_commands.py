from __future__ import annotations

from collections import Counter

import pytest

from pulsebridge.audit.live.commands import Commands, Emitted, Letter, Receipted, Row
from pulsebridge.audit.live.findings import Finding, Hop, Kind

NAMES = ["a", "b", "c"]


def world() -> Commands:
    """Three commands of a device, each with alert and receipt; ``c`` was rejected, with a dead letter."""
    return Commands(
        0,
        1000,
        emitted=[Emitted(name, "d", n, 0, (1, n, 0)) for n, name in enumerate(NAMES)],
        receipts=[Receipted(n, "d", "rejected" if n == "c" else "delivered", 10, 5, "") for n in NAMES],
        letters=[Letter("c", "d", 9)],
        alerts=[Row(name, "d", n) for n, name in enumerate(NAMES)],
        alert_rows=[Row(name, "d", n) for n, name in enumerate(NAMES)],
    )


def found(of: Commands, waiting: str = "") -> tuple[list[tuple[str, str, str]], Counter[str]]:
    copies: Counter[str] = Counter()

    def short(one: Finding) -> tuple[str, str, str]:
        assert one.device == "d"
        return one.hop, one.kind, one.message

    return [short(f) for f in of.findings(lambda c: c.id in waiting, lambda hop: copies.update([hop]))], copies


def test_complete_records_have_no_finding() -> None:
    assert found(world()) == ([], Counter())


def test_a_command_without_a_receipt_is_missing_unless_it_waits() -> None:
    of = world()
    del of.receipts[0]
    assert found(of) == ([(Hop.RECEIPTS, Kind.MISSING, "a")], Counter())
    assert found(of, "a") == ([], Counter())


def test_copies_are_counted_by_hop() -> None:
    of = world()
    of.receipts.append(of.receipts[0])
    of.emitted.append(of.emitted[0]._replace(position=(1, 9, 0)))
    of.alerts.append(of.alerts[0])
    assert found(of) == ([], Counter({Hop.RECEIPTS: 1, Hop.COMMANDS: 1, Hop.ALERTS: 1}))


def test_a_receipt_of_another_device_of_no_command_and_out_of_order() -> None:
    of = world()
    of.receipts[0] = of.receipts[0]._replace(device="e")
    assert (Hop.RECEIPTS, Kind.ALTERED, "a") in found(of)[0]
    of = world()
    of.receipts.append(of.receipts[0]._replace(id="lost"))
    assert found(of)[0] == [(Hop.RECEIPTS, Kind.UNEXPECTED, "lost")]
    of = world()
    of.receipts[:2] = of.receipts[1::-1]
    assert found(of)[0] == [(Hop.RECEIPTS, Kind.REORDERED, "a")]


def test_a_rejected_command_needs_its_dead_letter() -> None:
    of = world()
    of.letters.clear()
    assert found(of)[0] == [(Hop.DEAD_LETTERS, Kind.MISSING, "c")]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda of: of.alert_rows.pop(0), (Hop.ALERTS, Kind.MISSING, "a")),
        (lambda of: of.alert_rows.append(of.alert_rows[0]), (Hop.ALERTS, Kind.REPEATED, "a")),
        (lambda of: of.alert_rows.append(Row("x", "d", 1)), (Hop.ALERTS, Kind.UNEXPECTED, "x")),
        (lambda of: of.alerts.append(Row("y", "d", 1)), (Hop.COMMANDS, Kind.MISSING, "y")),
    ],
)
def test_alerts(change: object, wanted: tuple[str, str, str]) -> None:
    of = world()
    change(of)  # type: ignore[operator]
    assert wanted in found(of)[0]


def test_a_deployment_without_the_table_of_alerts_is_not_compared_with_it() -> None:
    of = world()
    of.alert_rows = None
    assert found(of) == ([], Counter())
