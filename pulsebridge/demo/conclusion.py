"""What the demo prints when it is over: the audit's table, where things are, and three next commands."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from pulsebridge.audit.show import show
from pulsebridge.audit.verdict import Verdict
from pulsebridge.demo.run_folder import RunFolder
from pulsebridge.demo.servers import Addresses

__all__ = ["conclude", "next_commands"]


def next_commands(run: RunFolder, *, kept: Addresses | None) -> list[tuple[str, str]]:
    """Return three commands to go on with, each with what it does."""
    if kept is not None:
        third = (
            f"pulsebridge audit {run.root} --live",
            f"audit it with Pulsar as it is now; your devices publish to {kept.mqtt_host}:{kept.mqtt_port}",
        )
    else:
        third = (
            "pulsebridge demo --chaos pulsar --keep",
            "kill Pulsar as well, and keep everything running afterwards",
        )
    return [
        (
            f"pulsebridge audit {run.root} --self-test",
            "audit this run again, and test the audit on tampered copies",
        ),
        (f"python -m webbrowser file://{run.report_file}", "look at the report"),
        third,
    ]


def conclude(
    verdict: Verdict, run: RunFolder, console: Console, seconds: float, *, kept: Addresses | None
) -> None:
    """Print the end of a demo."""
    console.print()
    show(verdict, console)
    console.print(
        Text(
            "The fleet is one wearable's and one buoy's recording, cut into virtual devices. "
            f"The run took {seconds:.0f} s; its folder is {run.root}.",
            style="dim",
        )
    )
    console.print(Text("Next:", style="bold"))
    for command, why in next_commands(run, kept=kept):
        console.print(Text(f"  {command}", style="cyan"), soft_wrap=True)
        console.print(Text(f"      {why}", style="dim"))
