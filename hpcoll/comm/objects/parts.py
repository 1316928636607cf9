"""CallParts: what does not fit the cells of a call follows in calls of blocks, from where it is to where it stays.

Ranks that neither send nor receive any take no part. So there are as many calls in the log on all ranks, whatever each of them sends.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.comm.arguments.call import Call
from hpcoll.comm.context.context import Context
from hpcoll.comm.objects.cells import Incoming, Outgoing
from hpcoll.runtime.engine.host_engine import HostEngine

Place = tuple[int, int]  # address and bytes
NOTHING: Place = (0, 0)
_BYTE = np.dtype(np.uint8)
_OF_PAIRS = ("gather", "scatter", "alltoall")  # of which a rank knows its own blocks


@dataclass
class CallParts:
    """The parts of a call whose cells have come.

    Args:
        context: Context of the communicator.
        engine: Engine of the call.
        method: Lower-case method.
        limit_s: Seconds that each part may take, or None.
    """

    context: Context
    engine: HostEngine
    method: str
    limit_s: float | None

    def exchange(
        self, collective: str, root: int, mine: Sequence[Outgoing], incoming: Sequence[Incoming]
    ) -> None:
        """Send the blocks of messages, and receive those of others.

        Args:
            collective: Collective of the cells.
            root: Its root, or 0.
            mine: Messages of this rank: one for all, or one for each.
            incoming: Objects that it receives: of the root, or of each rank.
        """
        number = 0
        sends = collective != "bcast" or self.context.rank == root
        while True:
            own = [
                message.blocks[number] if number < len(message.blocks) else None for message in mine if sends
            ]
            sent = [NOTHING if block is None else place_of(block) for block in own]
            blocks = [] if collective == "bcast" and sends else [message.next_block() for message in incoming]
            received = [NOTHING if block is None else place_of(block) for block in blocks]
            if not any(nbytes for _, nbytes in (*sent, *received)):
                break
            self.run_part(collective, root, sent, received, (*mine, *blocks))
            number += 1

    def end(self) -> None:
        """Note that the call has ended on this rank."""
        self.context.resources.begin().log.end_parts(time.monotonic_ns())

    def run_part(
        self,
        collective: str,
        root: int,
        sent: Sequence[Place],
        received: Sequence[Place],
        owners: tuple[Any, ...],
    ) -> None:
        """Run one part; arguments as of `exchange`, with a place for each block, and the owners of these."""
        context = self.context
        if collective == "bcast":
            (address, nbytes) = (sent or received)[0]
            call = Call(collective, address, address, nbytes, _BYTE, root=root, in_place=True)
        else:
            (send, inputs), (recv, outputs) = _displaced(sent), _displaced(received)
            sizes: tuple[int, ...] = ()
            if collective == "allgather" or (collective != "alltoall" and context.rank == root):
                sizes = tuple(n for _, n in (inputs if collective == "scatter" else outputs))
            count = sum(sizes) or sum(n for _, n in inputs)
            call = Call(collective, send, recv, count, _BYTE, root=root, blocks=(inputs, outputs, sizes))
        start = partial(HostEngine.go_on_with, other=self.engine)
        call = call._replace(native=False, as_given=False, element="object", objects=self.method, start=start)
        with context.failure_scope(collective):
            algorithm = "direct" if collective in _OF_PAIRS else None
            plan = context.planner.plan(call, "part", (), algorithm, None)
            engine, status = plan.run(context.resources.begin(), call)
        if status:
            context.go_on(plan, engine, status, self.limit_s, owners, call)


def place_of(block: Any) -> Place:
    """Return where a block is."""
    memory = MPI.buffer.frombuffer(block, readonly=True)
    return memory.address, memory.nbytes


def _displaced(places: Sequence[Place]) -> tuple[int, tuple[Place, ...]]:
    """Return the lowest address of some blocks, and their displacements from there with their bytes."""
    base = min((address for address, nbytes in places if nbytes), default=0)
    return base, tuple((address - base if nbytes else 0, nbytes) for address, nbytes in places)
