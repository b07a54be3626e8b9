"""A member of a group: which broadcasts and copies it executes, by the rule that docs/devices/broadcasts.md gives to devices."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GroupMember"]


def _number(position: str) -> tuple[int, ...]:
    return tuple(map(int, position.split(".")))


@dataclass
class GroupMember:
    """What a device keeps of one group. Positions are text, as ``0.0.7.1.-1``."""

    last: str = "none"
    """The group's last command that it has executed."""

    def had(self, position: str) -> bool:
        """Whether it has executed the command, or a later one."""
        return self.last != "none" and _number(position) <= _number(self.last)

    def follows(self, after: str) -> bool:
        """Whether it may execute a broadcast."""
        return after == self.last

    def executed(self, position: str) -> None:
        """It has executed a command of the group."""
        self.last = position
