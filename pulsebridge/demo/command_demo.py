"""Runs a demo for the command line: signals, the end, and the exit code."""

from __future__ import annotations

import json
import threading
import time

from rich.console import Console

from bridge.display import markup
from bridge.errors import PulsebridgeError
from pulsebridge.demo.conclusion import conclude
from pulsebridge.demo.interrupts import EXIT_INTERRUPTED, stop_on_signals
from pulsebridge.demo.options import DemoOptions
from pulsebridge.demo.report import write_report
from pulsebridge.demo.run import Demo, Interrupted

__all__ = ["run_demo"]


def run_demo(options: DemoOptions) -> int:
    """Run a demo and return its exit code: 0 when the audit passed, 1 when not, 130 when interrupted.

    Raises TerminalError or TransientError when a part cannot start; nothing is left running then.
    """
    console = Console(highlight=False)
    console.width = max(console.width, 100) if not console.is_terminal else console.width
    began = time.monotonic()
    stop = threading.Event()
    run = Demo(options, console, stop)
    with stop_on_signals(stop, lambda: run.close(at_once=True)):
        try:
            verdict = run.run()
            run.folder.audit_file.write_text(
                json.dumps(verdict.as_dict(), indent=2, ensure_ascii=False), encoding="utf-8"
            )
            write_report(run.folder, verdict)
            kept = run.addresses if options.keep else None
            conclude(verdict, run.folder, console, time.monotonic() - began, kept=kept)
            if options.keep:
                console.print("[bold]Everything is still running; Ctrl-C ends it.[/bold]")
                while not stop.wait(1.0):
                    run.check_servers()
        except Interrupted:
            console.print("stopping: nothing is left behind")
            return EXIT_INTERRUPTED
        except PulsebridgeError:
            console.print(
                f"[red]the demo could not go on; its logs are in {markup(str(run.folder.logs))}[/red]"
            )
            raise
        finally:
            run.close()
    return 0 if verdict.passed else 1
