"""``make brokers``: run ``pulsebridge check --broker`` at each broker that is installed, and write the page.

Each broker is started in a folder of its own, checked, stopped and restarted while the check waits; then the same with
SIGKILL instead of a stop. Brokers that are not installed keep their last results.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pulsebridge.local.ports import free_ports
from pulsebridge.local.processes import Server
from tests.brokers.page import PAGE, RESULTS, page
from tests.brokers.servers import BROKERS, Broker, end, newest, started


def main() -> int:
    """Check the brokers that are asked for, all by default. Returns 1 if a check failed to run."""
    parser = argparse.ArgumentParser(prog="make brokers")
    parser.add_argument("--only", choices=BROKERS, action="append", help="only this broker; may be repeated")
    for name in parser.parse_args().only or BROKERS:
        broker = BROKERS[name]
        version = broker.version()
        if version is None:
            print(f"{name}: not installed")
            continue
        print(f"{name}: {version}", flush=True)
        report, killed = checked(broker, kill=False), checked(broker, kill=True)
        restarts = [found for one in (report, killed) for found in one["findings"] if found["name"] == "restart"]
        for found, how in zip(restarts, ("restart after a stop", "restart after SIGKILL"), strict=True):
            found["name"] = how
        report["findings"] = [one for one in report["findings"] if one not in restarts] + restarts
        for one in report["findings"]:
            del one["took_ms"]
        report["address"] = ""
        result = {"title": broker.title, "version": version, "setup": broker.setup, "report": report}
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(list(BROKERS)), encoding="utf-8")
    return 0


def checked(broker: Broker, *, kill: bool) -> dict[str, Any]:
    """Return the report of one check, during which the broker is restarted."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        ports = free_ports(3)
        servers: list[Server] = []
        try:
            servers = started(broker, folder, ports)
            command: list[str] = [
                *(sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "check", "--broker", "--json"),
                *("--wait-for-restart", "--set", f"mqtt.port={ports[0]}", "--set"),
                f"mqtt.protocol={newest(ports[0])}",
            ]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as check:
                assert check.stdout is not None
                assert check.stderr is not None
                for line in check.stderr:
                    if line.startswith("Restart"):
                        end(servers, kill=kill)
                        servers = started(broker, folder, ports)
                (report,) = json.loads(check.stdout.read())["brokers"]
        finally:
            end(servers, kill=True)
    return dict(report)


if __name__ == "__main__":
    sys.exit(main())
