"""The loops of `hpcoll.analysis.event_loop` as machine code, which is kept on disk and loaded without Numba."""

import ctypes
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcoll.analysis import event_loop, event_table
from hpcoll.analysis.event_loop import LEFT, Simulation
from hpcoll.analysis.event_table import AMOUNT, GUARD, OP, OTHER, RECV, RECV_REDUCE, SEND
from hpcoll.kernels.machine_code import load_all

_ARRAY, _REAL, _INTEGER = (ctypes.c_void_p, ctypes.c_int64), (ctypes.c_double,), (ctypes.c_int64,)  # an array has its length with it
_PARAMETERS = {
    "simulate": (*[_ARRAY] * 9, _REAL, _INTEGER, _INTEGER),
    "step_all": (*[_ARRAY] * 5, _INTEGER, _REAL, _ARRAY, _ARRAY),
}
_MADE_OF = (Path(__file__).with_name("loop_bodies.py"), *(Path(str(module.__file__)) for module in (event_loop, event_table)))


def _compile(name: str, symbol: str) -> bytes:
    from hpcoll.cli.simulate.loop_bodies import loop_file

    return loop_file(name, symbol)


@cache
def _functions() -> dict[str, Any]:
    found = zip(_PARAMETERS.items(), load_all({name: partial(_compile, name) for name in _PARAMETERS}, _MADE_OF))
    return {name: ctypes.CFUNCTYPE(ctypes.c_double, *(word for kind in kinds for word in kind))(at) for (name, kinds), at in found}


def _call(name: str, *arguments: Any) -> float:
    """Call a loop with contiguous arrays of the types that `Simulation` and `event_loop.step_all` name."""
    words = [word for one in arguments for word in ((one.ctypes.data, len(one)) if isinstance(one, np.ndarray) else (one,))]
    return float(_functions()[name](*words))


def simulate(s: Simulation) -> float:
    """Return the seconds until the last event ends; -1 where a lane waits for ever."""
    return _call("simulate", *s)


def simulate_in_lockstep(s: Simulation, levels: np.ndarray, links_of: np.ndarray, distances: np.ndarray) -> float:
    """Return the seconds of a schedule whose ranks all run the same steps relative to themselves: all ranks, step by step.

    ``s`` has one segment: rows of rank 0 with one channel, clocks of all ranks, links of all nodes. ``levels`` and ``links_of`` have LEVEL
    and LINK of each rank's message in each row, ``distances`` for each row the distance in rank order from a sender to its peer.
    """
    now = np.zeros(len(s.clocks))
    arrivals, left = dict[int, np.ndarray](), dict[int, np.ndarray]()  # by row, of all ranks
    for row in range(len(s.rows)):
        op, guard = int(s.rows[row, OP]), int(s.rows[row, GUARD])
        if op != SEND and guard >= 0:
            np.maximum(now, left[guard], out=now)
        arrives = arrivals.pop(row) if op in (RECV, RECV_REDUCE) else np.zeros_like(now)
        nbytes = float(s.rows[row, AMOUNT]) * s.chunk
        _call("step_all", s.costs, s.clocks, s.links, links_of[row], levels[row], op, nbytes, now, arrives)
        if op == SEND:
            arrivals[int(s.rows[row, OTHER])] = np.roll(arrives, distances[row])
            if guard >= 0:
                left[row] = s.clocks[:, LEFT].copy()
    return float(max(now.max(), s.clocks.max()))
