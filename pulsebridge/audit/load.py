"""Gathers the three records of a run folder, from its files or, for Pulsar, live."""

from __future__ import annotations

from pathlib import Path

from bridge.errors import ConfigError
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.audit.delta_record import read_tables
from pulsebridge.audit.expected import load_rules
from pulsebridge.audit.journals import read_journals
from pulsebridge.audit.pulsar_record import DUMP_FILE, as_record, read_dump, read_live
from pulsebridge.audit.records import Records
from pulsebridge.demo.run_folder import RunFolder

__all__ = ["load_records"]


def load_records(run: RunFolder, *, pulsar: PulsarSettings | None = None) -> Records:
    """Read all three records of a run. ``pulsar``: read Pulsar live instead of the dump that the demo left.

    Raises ConfigError when the folder is not one of a run, or there is no dump, TransientError when Pulsar cannot
    be reached.
    """
    manifest = run.manifest()
    dump = run.root / DUMP_FILE
    if pulsar is None and not dump.exists() and run.devices.exists():
        raise ConfigError(
            f"{dump} is not there: the run ended before Pulsar was read",
            remedy="give --live while its servers are up, or run the demo again",
        )
    lines = read_live(pulsar) if pulsar is not None else read_dump(dump) if dump.exists() else iter(())
    in_pulsar = as_record(lines)
    journals = read_journals(run.devices, [(prefix, metric) for prefix, metric in manifest["metrics"]])
    tables = {name: Path(path) for name, path in manifest["tables"].items()}
    delta = read_tables(*(_moved(run, tables[name]) for name in ("bronze", "silver", "quarantine")))
    return Records(
        published=journals.published,
        acks=journals.acks,
        received=journals.received,
        stored=in_pulsar.stored,
        emitted=in_pulsar.emitted,
        receipts=in_pulsar.receipts,
        bronze=delta.bronze,
        silver=delta.silver,
        quarantine=delta.quarantine,
        rules=tuple(load_rules(run.rules_file)),
        plan=manifest["plan"],
    )


def _moved(run: RunFolder, table: Path) -> Path:
    """A run folder may be copied elsewhere: its own tables are looked for beside its manifest."""
    return table if table.is_absolute() else run.root / table
