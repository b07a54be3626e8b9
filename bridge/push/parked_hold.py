"""Where the hold of parked commands is put, in the commands topic. Pure.

It goes forward with what the core lets go of, and back where a device is sent once more what was let go of already. Any
process that may consume can move it, also a former owner that was stopped in the midst of moving it forward and goes on
hours later. That one never knows of more than stood in the topic when we took over. So after it went back the hold is
put again where it should stand, at each look, until it should stand behind that: what a former owner lets go of so is
held again before long, and Pulsar deletes nothing of it unless it happens to look in between.
"""

from __future__ import annotations

from bridge.contract.commands import CommandPosition

__all__ = ["ParkedHold"]


class ParkedHold:
    """The hold of one partition, as its owner sees it. Places within an entry count as one."""

    def __init__(self, horizon: CommandPosition | None) -> None:
        """``horizon``: the last command of the topic when we took over; None for none."""
        self._horizon = horizon
        self._at: CommandPosition | None = None
        self._again = False

    def look(self, from_: CommandPosition | None) -> CommandPosition | None:
        """Return where to seek, None for nowhere; what is before ``from_`` is wanted no more, None where that is unclear."""
        if from_ is None:
            return None
        forward = self._at is None or from_[:2] > self._at[:2]
        self._at = from_
        beyond = self._horizon is None or from_[:2] >= self._horizon[:2]
        self._again = self._again and not beyond
        return from_ if forward else None

    def back(self, to: CommandPosition | None) -> CommandPosition | None:
        """Return where to seek unless it stands before that, None for nowhere; what comes from ``to`` on is wanted again."""
        if to is None:
            return None
        self._again = self._horizon is not None
        if self._at is not None and to[:2] >= self._at[:2]:
            return None
        self._at = to
        return to

    def again(self) -> CommandPosition | None:
        """Return where to seek once more unless it stands before that, None for nowhere."""
        return self._at if self._again else None
