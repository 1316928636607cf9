"""Scratch of engines that serve calls in flight: one memory for all on a message context, of another one on another."""

from typing import Any

import mpi4py
import numpy as np

mpi4py.rc.initialize = False  # message contexts of no communicator, made without MPI

from hpcoll.comm.arguments.call import Call  # noqa: E402
from hpcoll.comm.plans.ledger import Account  # noqa: E402
from hpcoll.comm.plans.plan import MessageContext, Plan  # noqa: E402

CALL = Call("allreduce", 0, 0, 1, np.dtype("f8"))


class Engine:
    """As much of an engine as a plan asks for."""

    address = 0

    def __init__(self, scratch_nbytes: int) -> None:
        self.scratch_nbytes, self.scratch = scratch_nbytes, np.empty(0, np.uint8)

    def fresh(self, nbytes: int) -> Any:
        return np.empty(nbytes, np.uint8)

    def bind_scratch(self, memory: Any) -> None:
        self.scratch = memory

    def take(self, taken: bool = True) -> None:
        self.taken = taken


def taken(context: MessageContext, scratch_nbytes: int) -> Engine:
    build: Any = lambda call, context: Engine(scratch_nbytes)  # noqa: E731
    engine: Any = Plan("one", "ring", Account(), build).take(context, CALL)
    return engine


def test_shapes_that_grow_and_shrink() -> None:
    context = MessageContext(0, None)
    engines = [taken(context, nbytes) for nbytes in (100, 40, 150, *range(1000, 3000, 10), 7)]
    assert all(engine.scratch.nbytes >= engine.scratch_nbytes for engine in engines)
    memories = {id(engine.scratch): engine.scratch.nbytes for engine in engines}
    assert sum(memories.values()) <= 4 * 3000
    assert engines[1].scratch is engines[0].scratch


def test_message_contexts_that_run_at_once() -> None:
    one, other = (taken(MessageContext(index, None), 100) for index in range(2))
    assert one.scratch is not other.scratch


def test_kinds_of_memory() -> None:
    class Another(Engine):
        pass

    context = MessageContext(0, None)
    build: Any = lambda call, context: Another(10)  # noqa: E731
    another: Any = Plan("one", "ring", Account(), build).take(context, CALL)
    assert another.scratch is not taken(context, 10).scratch
