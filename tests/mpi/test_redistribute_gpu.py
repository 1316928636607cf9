"""Redistributions of GPU arrays, over the driver's double: as those of NumPy's arrays, and no element goes round by the program."""

from typing import Any

import numpy as np
import pytest
from gpu_cases import read
from gpu_double import WORLD, communicator
from reference import ensure_none, raised, unless

import hpcoll
from hpcoll.base.errors import ArgumentError

pytestmark = [pytest.mark.mpi, pytest.mark.double]
RANK, P = WORLD.rank, WORLD.size
SHAPE = (12, 10)
WHOLE = np.arange(120.0).reshape(SHAPE)
ROWS = hpcoll.Distribution(SHAPE, P, split=0)
COLUMNS = hpcoll.Distribution(SHAPE, P, split=1, block=3)
ON_LAST = hpcoll.Distribution(SHAPE, P, boxes=[None] * (P - 1) + [[(0, 12), (0, 10)]])


def local(distribution: hpcoll.Distribution) -> np.ndarray:
    """This rank's part of the array."""
    boxes = distribution.boxes(RANK)
    if not boxes:
        return np.zeros(distribution.local_shape(RANK))
    rows, columns = ({index for box in boxes for index in range(*box[axis])} for axis in range(2))
    return WHOLE[np.ix_(sorted(rows), sorted(columns))]


def on_gpu(double: Any, distribution: hpcoll.Distribution, values: np.ndarray | None = None) -> Any:
    made = double.Array(distribution.local_shape(RANK), np.float64, stream=double.stream()).fill(-1)
    if values is not None and values.size:
        made.fill(values)
    return made


@pytest.mark.parametrize("memory", [None, 64 * P])
@pytest.mark.parametrize(
    ("source", "target"), [(ROWS, COLUMNS), (COLUMNS, ROWS), (ON_LAST, ROWS), (ROWS, ON_LAST)]
)
def test_as_on_the_host(source: Any, target: Any, memory: int | None, double: Any) -> None:
    """In one round and in several, by a call and in flight, from some ranks to all, and again with other arrays."""
    comm, wrong = communicator(), []
    with hpcoll.Redistribution(comm, source, target, np.float64, memory=memory) as turn:
        for start in (False, True, False):
            x, out = on_gpu(double, source, local(source)), on_gpu(double, target)
            if start:
                turn.start(x, out).wait()
            else:
                turn(x, out)
            wrong += unless((read(out) == local(target)).all(), (start, read(out)))
        y = np.empty(target.local_shape(RANK))  # and arrays of the host by the same plan
        turn(local(source).copy(), y)
        wrong += unless((y == local(target)).all(), y)
    ensure_none(wrong)


def test_refused(double: Any) -> None:
    """What only NumPy's arrays have is refused on all ranks."""
    comm = communicator()
    x, out, here = on_gpu(double, ROWS, local(ROWS)), on_gpu(double, COLUMNS), local(ROWS).copy()
    calls = {
        "out= where x is on a GPU": lambda: hpcoll.redistribute(x, ROWS, COLUMNS, comm),
        "both on a GPU or both on the host": lambda: hpcoll.redistribute(here, ROWS, COLUMNS, comm, out),
        "other types on arrival": lambda: hpcoll.redistribute(x, ROWS, COLUMNS, comm, dtype=np.float32),
        "apart from each other on a GPU": lambda: hpcoll.redistribute(x, ROWS, ROWS, comm, x),
    }
    wrong = []
    for text, call in calls.items():
        error = raised(call)
        wrong += unless(isinstance(error, ArgumentError) and text in str(error), (text, error))
    ensure_none(wrong)
