"""Compiled code reads a clock that goes forward only, whatever happens to the time of day."""

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI
from reference import agreed, fresh

import hpcoll
from hpcoll.comm.context import attach
from hpcoll.comm.plans import engine_builder
from hpcoll.comm.requests import progress_thread
from hpcoll.runtime.engine import call_cache, host_engine
from hpcoll.runtime.engine.compiled import local_ops
from hpcoll.runtime.transports.mpi import function_address

pytestmark = [pytest.mark.mpi, pytest.mark.once]

FORWARD = {time.CLOCK_MONOTONIC, local_ops.CLOCK_MONOTONIC_COARSE, local_ops.CLOCK_THREAD}


class Clock:
    """A ``clock_gettime`` that knows which clocks it was asked for."""

    def __init__(self) -> None:
        self.asked = set[int]()
        self._function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(self._answer)

    def _answer(self, clock: int, at: int) -> int:
        self.asked.add(clock)
        ctypes.memmove(at, np.array(divmod(time.monotonic_ns(), 10**9), np.int64).ctypes.data, 16)
        return 0

    def address_of(self, name: str) -> int:
        """`function_address` with this one."""
        return (
            ctypes.cast(self._function, ctypes.c_void_p).value or 0
            if name == "clock_gettime"
            else function_address(name)
        )


@contextmanager
def another_board() -> Iterator[None]:
    """A new table of what is in flight, whose helper has ended afterwards."""
    before = progress_thread.boards[:]
    progress_thread.boards[:] = [progress_thread.Board()]
    try:
        yield
    finally:
        progress_thread.boards[0].stop()
        progress_thread.boards[:] = before


def all_forms(comm: hpcoll.Communicator) -> bool:
    """Call in all of them; whether all sums were right."""
    right = True
    for count in (3, 50_000):
        x, y = np.ones(count), np.zeros(count)
        # the second of the library's own is called by compiled code
        for algorithm in (
            "direct",
            "native",
            "native",
        ):
            comm.Allreduce(x, y, algorithm=algorithm)
        comm.Iallreduce(x, y, algorithm="direct").Wait()
        request = comm.Allreduce_init(x, y, algorithm="direct")
        request.Start()
        request.Wait()
        request.Free()
        right = right and bool((y == comm.size).all())
    for late in range(comm.size):  # the others wait for it
        comm.Barrier()
        time.sleep(0.1 * (comm.rank == late))
        comm.Iallreduce(x, y, algorithm="direct").Wait()
    return right


def test_compiled_code_reads_a_clock_that_only_goes_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines, the table of what is in flight, and calls of the library's own: each knows the function by itself."""
    clocks = {place: Clock() for place in (host_engine, progress_thread, call_cache)}
    comm = fresh()
    # earlier engines have another function, and later ones must not have this
    monkeypatch.setattr(engine_builder, "_PATTERNS", {})
    for place, clock in clocks.items():
        monkeypatch.setattr(place, "function_address", clock.address_of)
    with another_board():
        wrong = [] if all_forms(comm) else ["a sum"]
        comm.Free()
        attach._registry.free()  # what is kept of it has this function, too
    wrong += [
        f"{place.__name__}: {clock.asked}" for place, clock in clocks.items() if not clock.asked <= FORWARD
    ]
    waits = [call_cache] if MPI.COMM_WORLD.size == 1 else clocks  # who is alone waits for nobody
    wrong += [f"{place.__name__} asked nothing" for place in waits if not clocks[place].asked]
    assert agreed(wrong) == []
