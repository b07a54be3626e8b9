"""What a line of the log looks like, what is left out of it, and that a WARNING says what to do."""

from __future__ import annotations

import ast
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge import logs
from bridge.display import printable
from bridge.logs import Repeats, masked
from bridge.settings.log import LogSettings

ROOT = Path(__file__).resolve().parents[3]


def test_json_lines_name_logger_level_time_and_event(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogSettings(format="json"))
    structlog.get_logger("ingest").warning("topic is blocked", topic="a/b")
    line = json.loads(capsys.readouterr().out)
    assert (line["logger"], line["level"], line["event"], line["topic"]) == (
        "ingest",
        "warning",
        "topic is blocked",
        "a/b",
    )
    assert line["timestamp"].endswith("Z")


def test_every_line_is_json_also_of_libraries_and_of_errors(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogSettings(format="json"))
    logging.getLogger("some.library").warning("retrying %s", "in vain")
    logging.getLogger("some.library").info("a detail")
    structlog.get_logger("ingest").info("plant ß 工場", topic="a\nb")
    try:
        raise ValueError("bad")
    except ValueError:
        structlog.get_logger("ingest").exception("a fault of ours; report it")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["logger"], line["level"]) for line in lines] == [
        ("some.library", "warning"),
        ("ingest", "info"),
        ("ingest", "error"),
    ]
    assert lines[0]["event"] == "retrying in vain"
    assert "ValueError: bad" in lines[2]["exception"]
    assert all(line["timestamp"].endswith("Z") for line in lines)


def test_lines_for_people_have_no_colours_beside_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogSettings())
    structlog.get_logger("ingest").warning("topic is blocked; fix it", topic="a/b")
    logging.getLogger("some.library").error("broke")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    first, second = out.splitlines()
    for part in ("warning", "topic is blocked; fix it", "[ingest]", "topic=a/b"):
        assert part in first
    assert "broke" in second
    assert "some.library" in second


def test_no_line_is_logged_below_the_level(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogSettings(level="warning"))
    structlog.get_logger("push").info("healthy")
    structlog.get_logger("push").error("broken")
    out = capsys.readouterr().out
    assert "healthy" not in out
    assert "broken" in out


# --- repeats ---


def test_a_warning_that_repeats_is_left_out_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogSettings(format="json"))
    log = structlog.get_logger("ingest")
    for number in range(100):
        log.warning("producer given up; check it", partition="p-0", unstored=number)
    log.warning("producer given up; check it", partition="p-1")
    for number in range(100):
        log.info("a topic was made", number=number)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["unstored"] for line in lines if line.get("partition") == "p-0"] == [0, 1, 2, 3, 4]
    assert sum(line.get("partition") == "p-1" for line in lines) == 1
    assert sum(line["level"] == "info" for line in lines) == 100


def test_after_a_minute_it_is_shown_again_with_the_number_left_out() -> None:
    repeats = Repeats(shown=2, window_s=60)
    assert [repeats.take("a", now) for now in (0, 1, 2, 3, 59)] == [0, 0, None, None, None]
    assert repeats.take("b", 59) == 0
    assert repeats.take("a", 60) == 3
    assert [repeats.take("a", now) for now in (61, 62)] == [0, None]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 30)), max_size=200),
    st.integers(1, 4),
    st.integers(1, 2),
)
def test_every_event_is_shown_or_counted_and_few_are_remembered(
    events: list[tuple[str, float]], shown: int, keys: int
) -> None:
    roomy, small = Repeats(shown, 60, 10), Repeats(shown, 60, keys)
    now = 0.0
    counted = dict.fromkeys("abc", 0)
    given_out = dict.fromkeys("abc", 0)
    for key, seconds in events:
        now += seconds
        given_out[key] += 1
        left_out = roomy.take(key, now)
        if left_out is not None:
            counted[key] += 1 + left_out
        small.take(key, now)
        assert len(small._seen) <= keys
    now += 61
    for key, count in given_out.items():
        left_out = roomy.take(key, now)
        assert left_out is not None
        assert counted[key] + left_out == count


# --- what devices choose ---

anything = st.text(st.characters(exclude_categories=()), max_size=30) | st.sampled_from(
    ["a\n12:00:00 [error    ] forged", "\x1b[2J", "\x9b31m", "\u202eabc", "a\u2028b", "\ud800", "\ufeff"]
)


class Named:
    """An object that a log call passes unchanged."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(anything, st.sampled_from(["json", "console"]))
def test_h38_an_event_is_one_printable_line_whatever_a_device_chose(
    capsys: pytest.CaptureFixture[str], text: str, form: str
) -> None:
    logs.configure(LogSettings(format=form))  # type: ignore[arg-type]
    log = structlog.get_logger("ingest")
    log.info(f"left out: {text}", topic=text, nested={text: [text, (text, Named(text))]}, error=ValueError(text))
    logging.getLogger("some.library").error("refused %s", text)
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 3  # two events, and nothing after the last line's end
    assert all(line.isprintable() for line in lines)
    if form == "json":
        records = [json.loads(line) for line in lines[:2]]
        assert records[0]["topic"] == printable(text)
        assert records[0]["nested"] == {printable(text): [printable(text), [printable(text)] * 2]}
        assert records[1]["event"] == printable(f"refused {text}")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(anything, st.sampled_from(["json", "console"]))
def test_h38_the_lines_of_a_traceback_are_indented(capsys: pytest.CaptureFixture[str], text: str, form: str) -> None:
    logs.configure(LogSettings(format=form))  # type: ignore[arg-type]
    try:
        raise ValueError(text)
    except ValueError:
        structlog.get_logger("ingest").exception("a fault of ours; report it")
    first, *more = capsys.readouterr().out.removesuffix("\n").split("\n")
    assert "a fault of ours" in first
    assert all(line.isprintable() for line in (first, *more))
    assert all(line.startswith("    ") for line in more)
    assert (not more) == (form == "json")


def test_h38_a_value_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogSettings(format="json"))
    structlog.get_logger("ingest").warning("not a topic; see it", topic="x" * 1_000_000)
    try:
        raise ValueError("y\n" * 1_000_000)
    except ValueError:
        structlog.get_logger("ingest").exception("a fault of ours; report it")
    assert [len(line) < 200_000 for line in capsys.readouterr().out.splitlines()] == [True, True]


# --- secrets ---


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("connecting to mqtt://ann:hunter2@host:1883/x", "connecting to mqtt://ann:***@host:1883/x"),
        ("https://:only@host", "https://:***@host"),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer ***"),
        ("auth token:abcdefghijk failed", "auth token: *** failed"),
        ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln is old", "token *** is old"),
        ("pulsar://127.0.0.1:6650", "pulsar://127.0.0.1:6650"),
        ("persistent://public/pulsebridge/a@b:c", "persistent://public/pulsebridge/a@b:c"),
        ("http://[::1]:8080/admin@v2", "http://[::1]:8080/admin@v2"),
        ("a topic such as plant/7/token", "a topic such as plant/7/token"),
    ],
)
def test_credentials_are_masked_and_nothing_else(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_line_shows_a_secret(capsys: pytest.CaptureFixture[str], form: str) -> None:
    logs.configure(LogSettings(format=form))  # type: ignore[arg-type]
    secret = "-".join(["hunter", "2"])
    url = f"pulsar+ssl://ann:{secret}@host"
    structlog.get_logger("ingest").warning(f"dialling {url}; check it", why=url, password=secret)
    logging.getLogger("some.library").warning("dialling %s", url)
    try:
        raise ValueError(url)
    except ValueError:
        structlog.get_logger("push").exception("failed; report it")
    out = capsys.readouterr().out
    assert out.count("***") >= 4
    assert "ValueError: pulsar+ssl://ann:***@host" in out
    assert secret not in out


# --- what the messages say ---

_ACTION = re.compile(
    r"\b(check|see|allow|run|raise|lower|set|switch it off|look for|limit|start it|start again|report|do not delete"
    r"|no action needed|action:)(?!\w)",
    re.IGNORECASE,
)


def _warnings() -> Iterator[tuple[str, ast.expr]]:
    """Yield the location and the text of each WARNING and ERROR of the packages."""
    for package in ("bridge", "sources", "sinks", "streaming", "sparkplug", "pulsebridge"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in ("warning", "error", "exception", "critical")
                    and re.fullmatch(r"_?log|.*get_logger\(.*\)", ast.unparse(node.func.value))
                ):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node.args[0]


def test_every_warning_names_the_action_to_take() -> None:
    """In its own text, or in that of one of the product's errors, whose remedy is part of its text."""
    silent, count = [], 0
    for place, text in _warnings():
        count += 1
        words = " ".join(n.value for n in ast.walk(text) if isinstance(n, ast.Constant) and isinstance(n.value, str))
        passed_on = re.search(r"\b(advice|remedy|what_to_check|str\(e\))", ast.unparse(text))
        if not _ACTION.search(words) and passed_on is None:
            silent.append(f"{place}: {ast.unparse(text)}")
    assert count > 25
    assert silent == []


def test_h38_a_text_that_begins_as_many_tokens_is_searched_in_linear_time() -> None:
    # Each begin used to be followed to the end of the text: a million characters took half an hour.
    for text in ("eyJ-" * 250_000, "eyJ-" * 250_000 + ".eyJ", "eyJaaaa." + "eyJ-" * 250_000):
        assert masked(text) == text
    assert masked("a-eyJhbGciOi.eyJzdWIiOi.c2ln, then eyJhbGciOi.eyJzdWIiOi.c2ln") == "***, then ***"


def test_a_process_without_a_log_of_its_own_shows_no_debug() -> None:
    code = "import structlog; from bridge.loggers import get_logger; log = get_logger('x'); log.debug('a'); log.warning('b')"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "[debug" not in shown
    assert "[warning" in shown
