"""A process that gets the order to stop ends with code 0, even if one of its threads does not end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from bridge.settings import Settings
from bridge.stopping import CLOSE_S
from tests.support.waiting import patient

PROGRAM = """
import time
from bridge.stopping import stopping_on_signals

ended = []
with stopping_on_signals("ingest", lambda: {stop}, {patience_s}):
    print("runs", flush=True)
    while not ended:
        {blocks}
print("ended by itself", flush=True)
{afterwards}
"""
BLOCKED = "while True: time.sleep(1)"
IN_C = "import threading; t = threading.Thread(target=time.sleep, args=(600,)); t.start(); t.join()"


def stopped(number: signal.Signals, text: str = PROGRAM, **program: object) -> tuple[int, str]:
    """Run the program, send it a signal, and return its exit code and output."""
    defaults = {"stop": "ended.append(1)", "patience_s": 60, "blocks": "time.sleep(0.01)", "afterwards": ""}
    command = [sys.executable, "-c", text.format(**(defaults | program))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        process.send_signal(number)
        try:
            text = process.stdout.read()
            return process.wait(patient(60)), text
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_in_time_is_left_alone(number: signal.Signals) -> None:
    assert stopped(number) == (0, "ended by itself\n")


@pytest.mark.parametrize("program", [{"stop": "None"}, {"afterwards": BLOCKED}, {"afterwards": IN_C}])
def test_what_does_not_stop_is_ended_with_code_0(program: dict[str, str]) -> None:
    code, text = stopped(signal.SIGTERM, patience_s=0.1, **program)
    assert code == 0
    assert "ingest did not stop in time" in text


def test_the_defaults_keep_the_promise_of_25_seconds() -> None:
    assert Settings().ingest.drain + CLOSE_S <= 25
    assert Settings().push.drain + CLOSE_S <= 25


def test_a_signal_sets_the_event_while_the_main_thread_has_its_lock() -> None:
    """A handler would wait for it without end: it runs on the thread that has the lock."""
    program = """
import threading, time
from bridge.stopping import stopping_on_signals

asked = threading.Event()
with stopping_on_signals("push", asked.set, 60):
    with asked._cond:
        print("runs", flush=True)
        for _ in range(100):
            time.sleep(0.01)
    asked.wait()
print("ended by itself", flush=True)
"""
    assert stopped(signal.SIGTERM, program) == (0, "ended by itself\n")
