"""Positions of a former cluster: what they are in the new one, also after many runs, and never too late."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.commands import CommandPosition
from bridge.contract.cursors import Term, read_term, term_record
from bridge.contract.former_positions import TRIMMED, FormerPartition, PositionRuns
from bridge.contract.tagged_positions import PositionTags, read_from
from bridge.errors import ContractError

POSITIONS = st.builds(CommandPosition, st.integers(0, 3), st.integers(0, 9), st.integers(-1, 2))
WANTED = st.builds(CommandPosition, st.integers(0, 3), st.integers(0, 9), st.integers(-2, 2))
LOGS = st.lists(POSITIONS, min_size=1, max_size=60, unique=True).map(sorted)


def copied(log: list[CommandPosition], breaks: set[int]) -> tuple[PositionRuns, dict[CommandPosition, CommandPosition]]:
    """Copy a log, with a new ledger at each of ``breaks``."""
    runs, copies = PositionRuns(), {}
    ledger, entry = 5, -1
    for number, original in enumerate(log):
        ledger, entry = (ledger + 1, 0) if number in breaks else (ledger, entry + 1)
        copies[original] = CommandPosition(ledger, entry, -1)
        runs.add(original, copies[original])
    return runs, copies


@given(LOGS, st.sets(st.integers(0, 59), max_size=4), WANTED)
def test_a_position_is_that_of_its_copy_or_of_the_last_copy_before_it(
    log: list[CommandPosition], breaks: set[int], wanted: CommandPosition
) -> None:
    runs, copies = copied(log, breaks)
    for read in (runs, PositionRuns.of(runs.numbers(1000))):
        for original, copy in copies.items():
            assert read.exactly(original) == read.up_to(original) == copy
        before = max((one for one in log if one <= wanted), default=None)
        assert read.up_to(wanted) == (None if before is None else copies[before])
        assert read.exactly(wanted) == copies.get(wanted)


@given(LOGS)
def test_of_too_many_runs_some_are_left_out_and_no_position_comes_too_late(log: list[CommandPosition]) -> None:
    runs, copies = copied(log, set(range(0, 60, 3)))
    numbers = runs.numbers(4)
    assert len(numbers) <= 4 * 6
    fewer = PositionRuns.of(numbers)
    for original, copy in copies.items():
        found = fewer.up_to(original)
        assert found is None or found <= copy
    assert fewer.up_to(log[0]) == copies[log[0]]


def test_consecutive_commands_are_one_run_and_a_second_copy_counts_for_nothing() -> None:
    runs = PositionRuns()
    for number, entry in enumerate((0, 1, 2, 1, 2, 3)):
        runs.add(CommandPosition(7, entry, -1), CommandPosition(1, number, -1))
    assert runs.numbers(9) == [7, 0, -1, 1, 0, 3, 7, 3, -1, 1, 5, 1]


@pytest.mark.parametrize(("partition", "generation"), [(3, 0), (0, 1)])
def test_h27_a_device_resumes_from_a_former_position_that_it_can_prove(partition: int, generation: int) -> None:
    runs = PositionRuns()
    runs.add(CommandPosition(7, 4, 0), CommandPosition(1, 0, -1))
    runs.add(CommandPosition(7, 4, 1), CommandPosition(1, 1, -1))
    former = FormerPartition(0, 3, b"f" * 32, runs)
    term = read_term(term_record(Term(b"n" * 32, (former,))))
    there, here = PositionTags(b"f" * 32, 3), PositionTags(term.secret, partition, generation, term.former)

    def after(position: CommandPosition, tags: PositionTags, device: str = "d") -> CommandPosition:
        return read_from(tags.tagged(position, device).encode(), "d", here, earliest=False)[1]

    assert after(CommandPosition(7, 4, 1), there) == CommandPosition(1, 1, -1)
    assert after(CommandPosition(7, 4, 1), here) == CommandPosition(7, 4, 1)
    assert after(CommandPosition(6, 9, -1), there) == TRIMMED
    for tags, device in ((there, "other"), (PositionTags(b"x" * 32, 3), "d")):
        with pytest.raises(ContractError, match="did not come with a command"):
            after(CommandPosition(7, 4, 1), tags, device)


@pytest.mark.parametrize("former", [1, [{}], [{"generation": 0, "partition": 0, "secret": "00", "runs": [1]}]])
def test_a_term_with_malformed_former_partitions_is_refused(former: object) -> None:
    body = json.loads(term_record(Term(b"n" * 32)))
    with pytest.raises(ContractError):
        read_term(json.dumps(body | {"former": former}).encode())
