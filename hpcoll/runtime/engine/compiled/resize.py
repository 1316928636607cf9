"""Compiled: fits a program that was lowered from symbolic sizes to the counts of a call (`hpcoll.base.sizes`)."""

from numba import njit

from hpcoll.base.sizes import CLAMP, FLOOR, NOT_NEGATIVE, OTHER, ROOM, SAME, STORE
from hpcoll.runtime.engine.compiled.ffi import pointer
from hpcoll.runtime.program import fields as f

_NONE = -1  # a count that no call has


@njit(nogil=True)
def resize(address, counts):  # type: ignore[no-untyped-def]
    """Fit an engine's program to a call's counts, at an address; nobody else may run it meanwhile.

    `DONE`; `UNFIT` where its conditions do not hold, `NO_ROOM` where scratch is too short: then it is for no counts.
    """
    state, given = pointer(address), pointer(counts)
    variables = pointer(state[f.COUNTS])
    same = True
    for i in range(state[f.NCOUNTS]):
        same &= variables[1 + i] == given[i]
        variables[1 + i] = given[i]
    if same:
        return f.DONE
    status = _evaluate(address, variables)
    if status != f.DONE:
        variables[1] = _NONE
    return status


@njit(nogil=True)
def _evaluate(address, variables):  # type: ignore[no-untyped-def]
    """Run the records."""
    state = pointer(address)
    at, end, defined = state[f.RECORDS], state[f.RECORDS_END], 1 + state[f.NCOUNTS]
    while at < end:
        record = pointer(at)
        kind, argument, nterms, total = record[0], record[1], record[2], 0
        for i in range(nterms):
            total += record[3 + 2 * i] * variables[record[4 + 2 * i]]
        at += 8 * (3 + 2 * nterms)
        if kind == STORE:
            pointer(address + argument)[0] = total
        elif kind == FLOOR:
            variables[defined] = total // argument
            defined += 1
        elif kind == CLAMP:
            variables[defined] = min(total, 0)
            defined += 1
        elif kind == ROOM:
            if total > pointer(address + argument)[0]:
                state[f.NEEDED] = total
                return f.NO_ROOM
        elif (kind == SAME and total != 0) or (kind == OTHER and total == 0) or (kind == NOT_NEGATIVE and total < 0):
            return f.UNFIT
    return f.DONE
