"""For which ranks an engine waits, and at which step."""

from collections.abc import Sequence

import numpy as np

from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import Code

_LOCAL = (Code.AWAIT, Code.POST, Code.DRAIN, Code.UNREAD)


def awaited(engine: HostEngine, local_ranks: Sequence[int]) -> tuple[list[int], str]:
    """Ranks of the communicator for which lanes in flight wait, in order, and at which step the first one is.

    Args:
        engine: That does not move just now; another thread may move it.
        local_ranks: Rank of each local rank.
    """
    nrows = len(engine.program.rows)
    rows = engine.numbers(f.ROWS, nrows, f.NCOLUMNS)
    slots = engine.numbers(f.WINDOW_SLOTS, int(engine.state[f.WINDOW]), 2).tolist()
    waiting = [row for lane, row in slots if lane < engine.state[f.NLANES] and row < nrows]
    peers = {_peer(rows, rows[row], local_ranks) for row in waiting} - {-1}
    return sorted(peers), f"row {waiting[0] + 1} of {nrows}" if waiting else ""


def _peer(rows: np.ndarray, row: np.ndarray, local_ranks: Sequence[int]) -> int:
    """The rank that a row waits for, -1 for none."""
    if row[f.CODE] in _LOCAL:
        return local_ranks[int(row[f.LOCAL_PEER])]
    if row[f.CODE] != Code.WAIT:
        return -1
    begun = np.isin(rows[:, f.CODE], (Code.SEND, Code.RECV)) & (rows[:, f.REQUEST] == row[f.REQUEST])
    return int(rows[begun, f.PEER][0]) if begun.any() else -1
