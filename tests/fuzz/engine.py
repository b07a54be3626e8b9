"""Runs a target: the kept cases first, then rounds of generated ones, and saves what breaks the target's invariant.

A case is a Python literal (bytes, text, numbers, tuples, lists, dictionaries), so that a kept case is a readable file
that no version of hypothesis has to understand. A check raises when the invariant does not hold.
"""

from __future__ import annotations

import ast
import hashlib
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

__all__ = [
    "Case",
    "Check",
    "Finding",
    "Run",
    "Target",
    "fuzz",
    "kept",
    "literal",
    "read_case",
    "replay",
    "save",
]

Case: TypeAlias = Any
Check: TypeAlias = Callable[[Case], None]

_SHRINK_S: Final = 15.0
"""How long smaller cases are searched for after the first one that broke the invariant."""
_SEEDS: Final = Path(__file__).parent / "seeds"


@dataclass(frozen=True)
class Target:
    """One parser of foreign bytes. ``invariant`` is one sentence; ``opened`` yields the check, and closes its world."""

    name: str
    invariant: str
    cases: Callable[[], st.SearchStrategy[Case]]
    opened: Callable[[], AbstractContextManager[Check]]
    examples: int = 200
    """How many generated cases ``make test`` runs, in about three seconds."""


@dataclass(frozen=True)
class Finding:
    """A case that breaks the invariant; ``seed`` is that of its round, None for a kept case."""

    target: str
    seed: int | None
    case: Case
    effect: str
    where: str

    def text(self) -> str:
        """Return it on a few lines for a person."""
        origin = "kept case" if self.seed is None else f"seed {self.seed}"
        return f"{self.target}: {origin}: {self.effect}\n  at {self.where}\n  case {literal(self.case)[:2000]}"


@dataclass
class Run:
    """What a run of one target came to."""

    executions: int = 0
    findings: dict[str, Finding] = field(default_factory=dict)
    """By the effect's type and the line that raised it."""


def literal(case: Case) -> str:
    """Return a case as a Python literal."""
    return repr(case)


def read_case(path: Path) -> Case:
    """Return the case that a file keeps; lines that begin with # tell a person what it is."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return ast.literal_eval("\n".join(line for line in lines if not line.startswith("#")))


def kept(target: Target) -> list[Path]:
    """Return the files that keep cases of a target."""
    return sorted((_SEEDS / target.name).glob("*.txt"))


def save(finding: Finding) -> Path:
    """Keep the case of a finding, so that each later run begins with it."""
    folder = _SEEDS / finding.target
    folder.mkdir(parents=True, exist_ok=True)
    body = literal(finding.case)
    path = folder / f"{hashlib.sha256(body.encode()).hexdigest()[:12]}.txt"
    effect = finding.effect.splitlines()[0][:160] if finding.effect else ""
    path.write_text(f"# {effect}\n# at {finding.where}\n{body}\n", encoding="utf-8")
    return path


def replay(target: Target, check: Check) -> Iterator[Finding]:
    """Yield a finding for each kept case that breaks the invariant."""
    for path in kept(target):
        case = read_case(path)
        try:
            check(case)
        except Exception as e:  # noqa: BLE001 whatever a check raises is the finding
            yield Finding(target.name, None, case, _effect(e), _where(e))


def fuzz(target: Target, check: Check, *, number: int, examples: int, run: Run) -> list[Finding]:
    """Run one round of generated cases with a seed. Returns what is new to ``run``."""
    failed: dict[str, Finding] = {}
    until = float("inf")

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(target.cases())
    def one_round(case: Case) -> None:
        nonlocal until
        if time.monotonic() > until:
            return  # hypothesis finds no smaller case then, and ends
        run.executions += 1
        try:
            check(case)
        except Exception as e:
            until = min(until, time.monotonic() + _SHRINK_S)
            where = _where(e)
            key = f"{type(e).__name__} {where}"
            if key not in failed or len(literal(case)) <= len(literal(failed[key].case)):
                failed[key] = Finding(target.name, number, case, _effect(e), where)
            raise

    try:
        one_round()
    except Exception:  # its cases, the smallest that hypothesis found, are in ``failed``
        if not failed:
            raise
    new = [finding for key, finding in failed.items() if key not in run.findings]
    run.findings |= {key: finding for key, finding in failed.items() if key not in run.findings}
    return new


def _effect(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:1000]


def _where(error: BaseException) -> str:
    """Return the line that raised: the last one that is not of a library."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if "site-packages" not in one.filename and "/tests/fuzz/engine" not in one.filename]
    last = (ours or list(frames))[-1]
    return f"{Path(last.filename).parent.name}/{Path(last.filename).name}:{last.lineno} in {last.name}"
