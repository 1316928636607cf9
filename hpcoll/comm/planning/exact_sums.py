"""Exact sums whose partial sums travel: contributions become digits, which any algorithm adds as integers, and the result is rounded once.

Where one rank folds all contributions to an element, they travel as they are instead, and `hpcoll.kernels.exact_bodies` adds them.
"""

import numpy as np
from mpi4py import MPI

from hpcoll.base.ops import EXACT_SUM, EXACT_SUM_ODD
from hpcoll.comm.arguments.call import Blocks, Call, result_count
from hpcoll.kernels import digits
from hpcoll.schedules.catalogue import CATALOGUE, find
from hpcoll.selection.config import NATIVE


def travels_as_it_is(collective: str, forced: str | None) -> bool:
    """Say whether contributions to an exact sum need not become digits.

    Args:
        collective: Name of the collective.
        forced: Name of the algorithm that the program asks for; None: each reduction has rows that fold once. ``native``, and one that
            does not exist, are refused later.
    """
    return (
        forced in (None, NATIVE)
        or f"{collective}/{forced}" not in CATALOGUE
        or find(collective, str(forced)).one_fold
    )


def as_digits(call: Call, rank: int, nranks: int) -> Call:
    """Return an exact sum of real or complex numbers as a sum of integers, of any order, that rounds at its end.

    A number becomes a vector of int64 (`hpcoll.kernels.digits`): 72 words for a float64, 16 for a float32; a complex one two vectors.
    """
    element = np.dtype(f"f{call.dtype.itemsize // 2}") if call.dtype.kind == "c" else call.dtype
    within, nparts = digits.window(element), call.dtype.itemsize // element.itemsize
    sent = call.count * (nranks if call.collective == "reduce_scatter" and call.blocks is None else 1)
    received = result_count(call)
    words = np.zeros((sent * nparts, within.nwords), np.int64)
    digits.add(words, _array(call.send, sent * nparts, element), within)
    result = np.empty((received * nparts if call.recv else 0, within.nwords), np.int64)
    target = call.recv, result.shape[0], element

    def finish() -> None:
        digits.normalise(result)
        _array(*target)[:] = digits.rounded(result, within.first, element, to_odd=call.op is EXACT_SUM_ODD)
        if call.finish is not None:
            call.finish()

    unwanted = not result.size or (call.collective == "exscan" and rank == 0)
    size = nparts * within.nwords
    return call._replace(
        send=words.ctypes.data,
        recv=result.ctypes.data,
        count=call.count * size,
        dtype=words.dtype,
        op=EXACT_SUM,
        in_place=False,
        blocks=call.blocks and _longer(call.blocks, size),
        copied=0,
        finish=call.finish if unwanted else finish,
        keep=(*call.keep, words, result),
        as_given=False,
        one_fold=False,
    )


def _array(address: int, count: int, dtype: np.dtype) -> np.ndarray:
    memory = MPI.buffer.fromaddress(address, count * dtype.itemsize)
    return np.frombuffer(memory, dtype)  # type: ignore[call-overload]


def _longer(blocks: Blocks, size: int) -> Blocks:
    """Return blocks whose elements are ``size`` words each."""
    sides = [tuple((size * displ, size * count) for displ, count in side) for side in blocks[:2]]
    return sides[0], sides[1], tuple(size * count for count in blocks[2])
