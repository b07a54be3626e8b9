"""The checkpoint of alerts as releases before ``transformWithState`` left it: put aside, with the place to go on.

Spark cannot read the state of another operator. A new checkpoint alone would begin at silver's first row and send
commands of the past again. So, in this order, and it may die anywhere:

1. The version of silver that the old query has read is noted in the checkpoint.
2. Spark's own folders are moved into one beside them, the state last: as long as it is there, 2 is done again.

What is lost is which alerts were raised: those that go on are told once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from bridge.errors import TerminalError
from streaming.checkpoints import Checkpoint
from streaming.standing import standing_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["first_version"]

_OLD_OPERATOR: Final = "applyInPandasWithState"
_MOVED: Final = ("commits", "offsets", "sources", "metadata", "state")
_ASIDE: Final = "before_transform_with_state"
_log = structlog.get_logger("stream")


def first_version(spark: SparkSession, folder: str) -> int | None:
    """Return the version of silver at which a new checkpoint begins, None for its first row; put an old one aside.

    Raises TerminalError when the old query has not read silver as it stood at its start.
    """
    checkpoint = Checkpoint(spark, folder)
    found = checkpoint.first_version()
    if _OLD_OPERATOR not in checkpoint.spark_text("state/0/_metadata/metadata"):
        return found
    if found is None:
        standing = standing_of(spark, folder)
        if standing is None or standing.in_snapshot:
            raise TerminalError(
                f"checkpoint {folder} is of an earlier release, whose state this one cannot read, and that release has "
                "not caught up with silver",
                remedy="let that release finish it (pulsebridge stream --only alerts --available-now), or delete the "
                "folder: then all of silver is judged anew, with commands",
            )
        # A whole version of silver is read again rather than none: the next one may not be there yet.
        found = standing.next_version if standing.partly else max(0, standing.next_version - 1)
        checkpoint.begin_at(found)
    for name in _MOVED:
        checkpoint.set_aside(name, _ASIDE)
    _log.info(
        "alerts goes on with new state, as an earlier release kept it in another form: alerts that last are told "
        "once more",
        silver_version=found,
        old_state=f"{folder}/pulsebridge/{_ASIDE}",
    )
    return found
