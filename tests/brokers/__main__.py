"""``make brokers``: check each broker that is installed, as ``pulsebridge check --broker``, and write the page.

Each broker is started in a folder of its own, checked, stopped and restarted while the check waits. A second check is
about SIGKILL instead of a stop. Brokers that are not installed keep their last results.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bridge.inspect.broker.check import BrokerReport, check_broker
from bridge.inspect.broker.tries import TRIES, Try
from bridge.settings import MqttSettings, Settings
from pulsebridge.local.ports import free_ports
from pulsebridge.local.processes import Server
from pulsebridge.output.broker_check import report_json
from tests.brokers.page import PAGE, RESULTS, page
from tests.brokers.servers import BROKERS, Broker, end, newest, started

_RESTART_S = 180.0
_MESSAGES = 1500


def main() -> int:
    """Check the brokers that are asked for, all by default."""
    parser = argparse.ArgumentParser(prog="make brokers")
    parser.add_argument("--only", choices=BROKERS, action="append", help="only this broker; may be repeated")
    for name in parser.parse_args().only or BROKERS:
        broker = BROKERS[name]
        version = broker.version()
        if version is None:
            print(f"{name}: not installed; its configuration: {broker.setup}")
            continue
        print(f"{name}: {version}", flush=True)
        # What works after a connection is tried once; SIGKILL matters for the restart alone.
        report, killed = checked(broker, TRIES, kill=False), checked(broker, TRIES[:1], kill=True)
        findings = [
            replace(one, name="restart after a stop") if one.name == "restart" else one for one in report.findings
        ]
        findings += [replace(one, name="restart after SIGKILL") for one in killed.findings if one.name == "restart"]
        report = replace(report, address="", findings=tuple(findings))
        result = {"title": broker.title, "version": version, "setup": broker.setup, "report": report_json(report)}
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(list(BROKERS)), encoding="utf-8")
    return 0


def checked(broker: Broker, tries: Sequence[Try], *, kill: bool) -> BrokerReport:
    """Return the report of one check, during which the broker is restarted."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        ports = free_ports(3)
        servers: list[Server] = started(broker, folder, ports)

        def restart(line: str) -> None:
            if line.startswith("Restart"):
                end(servers, kill=kill)
                servers[:] = started(broker, folder, ports)

        try:
            settings = Settings(mqtt=MqttSettings(port=ports[0], protocol=newest(ports[0]) or "5"))
            return check_broker(
                settings, "mqtt", settings.mqtt, messages=_MESSAGES, tries=tries, restart_s=_RESTART_S, report=restart
            )
        finally:
            end(servers, kill=True)


if __name__ == "__main__":
    sys.exit(main())
