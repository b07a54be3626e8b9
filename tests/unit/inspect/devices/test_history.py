"""The state of a command and its copies, and whether it is resent."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract import C_ID, FAILURES, P_DEAD_LENGTH, Receipt
from bridge.contract.commands import Command, CommandPosition, decode_command, encode_command
from bridge.dead_letters.history import (
    Family,
    InGroup,
    Refusal,
    candidates,
    named_like_a_copy,
    next_copy,
    of_one_device,
    root_of,
    whole,
)  # fmt: skip
from bridge.dead_letters.records import DeadLetter, LetterId

NOW = 1_000_000_000_000_000
COMMAND = Command("c", "d", "devices/d/commands", b"open", qos=2, retain=True, emitted_at_us=5, cause="why")


def at(entry: int) -> CommandPosition:
    return CommandPosition(1, entry, -1)


def family(*states: str, command: Command = COMMAND) -> Family:
    """A command and its copies, each with the state that its receipt has; pending ones have none."""
    found = Family("c", "d")
    for number, state in enumerate(states, 1):
        name = "c" if number == 1 else f"c~{number}"
        found.take_command(0, at(number), replace(command, command_id=name, resend_of="" if number == 1 else "c"))
        if state != "pending":
            found.take_receipt(Receipt(name, "d", "t", state))
    return found


@pytest.mark.parametrize("state", FAILURES)
def test_a_failed_command_is_sent_again_as_it_was_with_an_id_that_follows(state: str) -> None:
    for states, name in (((state,), "c~2"), (("rejected", state), "c~3")):
        sent = next_copy(family(*states), now_us=NOW)
        assert isinstance(sent, Command)
        assert sent == replace(COMMAND, command_id=name, resend_of="c", emitted_at_us=NOW)
        assert decode_command(encode_command(sent), sent.payload) == sent


@pytest.mark.parametrize(
    ("states", "forced", "why"),
    [
        (("pending",), "c~2", "it is pending"),
        (("delivered",), "c~2", "it is delivered"),
        (("answered",), "c~2", "it is answered"),
        (("duplicate",), "", "it is pending"),
        (("expired", "pending"), "", "its copy c~2 is pending"),
        (("expired", "delivered"), "c~3", "its copy c~2 is delivered"),
    ],
)
def test_what_did_not_fail_is_refused_and_a_copy_that_is_pending_is_never_doubled(
    states: tuple[str, ...], forced: str, why: str
) -> None:
    refused = next_copy(family(*states), now_us=NOW)
    assert isinstance(refused, Refusal)
    assert why in str(refused)
    sent = next_copy(family(*states), now_us=NOW, force=True)
    if forced:
        assert isinstance(sent, Command)
        assert sent.command_id == forced
    elif states[-1] == "pending":
        assert isinstance(sent, Refusal)


@pytest.mark.parametrize(
    ("how", "receipt", "state", "why"),
    [
        ("waiting", "", "pending", "not yet expanded to its members"),
        ("begun", "", "pending", "not yet expanded to its members"),
        ("done", "", "unknown", "each member has its own command id"),  # Pulsar has removed the receipt
        ("done", "expanded", "expanded", "each member has its own command id"),
        ("done", "rejected", "rejected", "no member received it; correct the error that its receipt names"),
        ("begun", "expanded", "expanded", "each member has its own command id"),  # and died before it noted that
    ],
)
def test_a_group_command_has_the_state_of_its_receipt_and_without_one_of_its_position(
    how: Literal["waiting", "begun", "done"], receipt: str, state: str, why: str
) -> None:
    found = Family("c")
    found.copy("c").in_group.append(InGroup("presses", 0, at(1), how))
    if receipt:
        found.take_receipt(Receipt("c", "", "t", receipt, group="presses"))
    assert (found.group, found.newest.state) == ("presses", state)
    refused = next_copy(found, now_us=NOW, force=True)
    assert isinstance(refused, Refusal)
    assert why in str(refused)


def test_a_copy_does_not_take_the_id_of_another_command_that_is_called_so() -> None:
    found = family("rejected")
    found.reserved.add(2)
    sent = next_copy(found, now_us=NOW)
    assert isinstance(sent, Command)
    assert sent.command_id == "c~3"
    assert named_like_a_copy("c~2") == ("c", 2)
    assert named_like_a_copy("c~1") is None


def test_a_time_that_is_over_wants_a_new_one() -> None:
    over = family("expired", command=replace(COMMAND, expires_at_ms=NOW // 1000 - 1))
    refused = next_copy(over, now_us=NOW)
    assert isinstance(refused, Refusal)
    assert "--expires-in" in str(refused)
    for expires in (0, NOW // 1000 + 5):
        sent = next_copy(over, now_us=NOW, expires_at_ms=expires)
        assert isinstance(sent, Command)
        assert sent.expires_at_ms == expires
    early = family("rejected", command=replace(COMMAND, expires_at_ms=NOW // 1000 + 9))
    sent = next_copy(early, now_us=NOW)
    assert isinstance(sent, Command)
    assert sent.expires_at_ms == NOW // 1000 + 9


def test_what_is_found_nowhere_and_what_has_no_payload_is_refused_with_the_reason() -> None:
    unknown = Family("c", "d")
    unknown.copy("c")
    assert "Pulsar has no record of it" in str(next_copy(unknown, now_us=NOW, force=True))
    trimmed = Family("c", "d")
    trimmed.take_receipt(Receipt("c", "d", "t", "expired"))
    assert "not in Pulsar any more" in str(next_copy(trimmed, now_us=NOW))


def test_a_command_to_a_group_is_refused_and_says_that_it_is_one() -> None:
    for state in ("expanded", "rejected", "expired"):
        found = Family("g")
        found.take_receipt(Receipt("g", "", "t", state, group="presses", group_command_id="g"))
        refused = next_copy(found, now_us=NOW, force=True, expires_at_ms=0)
        assert isinstance(refused, Refusal)
        assert "it is a command to the group presses" in str(refused)


def test_an_id_that_several_devices_have_is_refused_with_the_first_of_them() -> None:
    shared = [Family("c", f"d{number}", {"c"}) for number in range(7)]
    alone, by_state = Family("e", "d1", {"e", "e~2"}), Family("f", "d1")
    clear, (refused,) = of_one_device([*shared, alone, by_state])
    assert clear == [alone, by_state]
    assert str(refused) == (
        "c: 7 devices have a command of this id: d0, d1, d2, d3, d4 and 2 more; name the device: --device NAME"
    )
    copied = Family("c", "d9", {"c", "c~2"})
    clear, (refused,) = of_one_device([*shared, copied])
    assert clear == [copied], "one of its ids is its own"
    assert refused.command_id == "c"


def letter(command: Command, **properties: str) -> DeadLetter:
    return DeadLetter(
        LetterId(0, CommandPosition(1, 2)), "d", command.payload, encode_command(command) | properties, 0, NOW
    )


def test_a_dead_letter_that_is_whole_gives_the_payload() -> None:
    found = Family("c", "d")
    found.take_receipt(Receipt("c", "d", "t", "rejected"))
    found.take_letter(letter(COMMAND), COMMAND)
    assert isinstance(next_copy(found, now_us=NOW), Command)
    left = Family("c", "d")
    left.take_letter(letter(COMMAND), COMMAND)
    assert left.newest.state == "rejected", "its receipt was trimmed"
    assert isinstance(next_copy(left, now_us=NOW), Command)
    assert whole(letter(COMMAND))
    assert not whole(letter(COMMAND, **{P_DEAD_LENGTH: "999"}))
    assert root_of(letter(replace(COMMAND, command_id="c~2", resend_of="c")).properties) == "c"
    assert root_of({C_ID: "x"}) == "x"


def test_the_last_receipt_counts_but_never_a_duplicate() -> None:
    found = family("rejected")
    found.take_receipt(Receipt("c", "d", "t", "duplicate"))
    assert found.newest.state == "rejected"
    found.take_receipt(Receipt("c", "d", "t", "delivered"))
    assert found.newest.state == "delivered"
    assert found.device == "d"


@given(st.text(min_size=1, max_size=20), st.integers(2, 10**6))
def test_an_id_may_be_that_of_a_copy_or_of_a_command_that_is_called_so(root: str, number: int) -> None:
    assert candidates(f"{root}~{number}") == {root, f"{root}~{number}"}
    assert root in candidates(root)


@given(st.lists(st.sampled_from([*FAILURES, "delivered", "pending"]), min_size=1, max_size=5), st.booleans())
def test_sent_again_twice_gives_one_command(states: list[str], force: bool) -> None:
    found = family(*states)
    sent = next_copy(found, now_us=NOW, force=force)
    if isinstance(sent, Command):
        assert sent.command_id not in found.copies
        found.take_command(0, at(99), sent)
        assert isinstance(next_copy(found, now_us=NOW, force=force), Refusal)
