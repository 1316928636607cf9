"""The ranks for which an engine waits, and its step."""

from collections.abc import Sequence

import numpy as np

from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import Code

_LOCAL = (Code.AWAIT, Code.POST, Code.DRAIN, Code.UNREAD)


def awaited(engine: HostEngine, local_ranks: Sequence[int]) -> tuple[list[int], str]:
    """Return the ranks of the communicator for which lanes in flight wait, in order, and the step of the first one.

    Args:
        engine: Engine that does not move just now; another thread may move it.
        local_ranks: Rank of each local rank.
    """
    nrows = len(engine.program.rows)
    rows = engine.numbers(f.ROWS, nrows, f.NCOLUMNS)
    slots = engine.numbers(f.WINDOW_SLOTS, int(engine.state[f.WINDOW]), 2).tolist()
    waiting = [(lane, row) for lane, row in slots if lane < engine.state[f.NLANES] and row < nrows]
    ranks = set[int]()
    for lane, row in waiting:
        if rows[row][f.CODE] == Code.RESERVE and engine.rings is not None:
            slot = (
                lane % int(engine.state[f.WINDOW]) + int(engine.state[f.FIRST_STAGING_SLOT])
            ) % f.STAGING_SLOTS
            ranks |= {local_ranks[local] for local in engine.rings.unread(slot)}
        if rows[row][f.CODE] == Code.SYNC:
            ranks |= engine.unmet()
        ranks |= _peers(rows, rows[row], local_ranks)
    return sorted(ranks), f"row {waiting[0][1] + 1} of {nrows}" if waiting else ""


def _peers(rows: np.ndarray, row: np.ndarray, local_ranks: Sequence[int]) -> set[int]:
    """The rank that a row names for which it waits, if it names one."""
    if row[f.CODE] in _LOCAL:
        return {local_ranks[int(row[f.LOCAL_PEER])]}
    if row[f.CODE] != Code.WAIT:
        return set()
    begun = np.isin(rows[:, f.CODE], (Code.SEND, Code.RECV)) & (rows[:, f.REQUEST] == row[f.REQUEST])
    return set(rows[begun, f.PEER][:1].tolist())
