"""The blocking lower-case collectives, on Python objects, with mpi4py's signatures: as `hpcoll.comm.blocking`.

Objects that fit their cells take the short way, which is written out here; all else is in `hpcoll.comm.objects`.
"""

from collections.abc import Callable
from gc import get_referents
from operator import index
from pickle import loads
from typing import Any

from mpi4py import MPI

from hpcoll.comm.arguments.call import Time, limit_of
from hpcoll.comm.context.attach import WithContext
from hpcoll.comm.objects.lane import DEFAULT, Lane
from hpcoll.runtime.engine.entry import RUN, call_compiled
from hpcoll.runtime.program.fields import AS_BEFORE


class BlockingObjects(WithContext):
    """An intracommunicator whose collectives on Python objects run on hpcoll."""

    def bcast(self, obj: Any, root: int = 0, *, timeout: Time = None) -> Any:
        """Return the root's object on all ranks, as a copy.

        Args:
            obj: Any object that `mpi4py.MPI.pickle` takes, read at the root.
            root: Rank whose object is sent, equal on all ranks.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.

        Raises:
            ArgumentError: Another rank has no object to send, since it cannot be pickled; names the rank, which raises the error itself.
            mpi4py.MPI.Exception: ``root`` is no rank.
            MismatchError, PeerFailed, CollectiveTimeout, TransportError: As in `Allreduce`.
        """
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        pool = context.lanes["bcast" if root == 0 else ("bcast", root)]
        lane = pool.pop() if pool else Lane(context, pool, "bcast", _checked(root, context.nranks))
        if context.rank == root:
            at = lane.put(obj)
            status = call_compiled(RUN, lane.engine, at, at, AS_BEFORE)
            data = lane.data
        else:
            status = call_compiled(RUN, lane.engine, lane.target, lane.target, AS_BEFORE)
            data = lane.views[0] if get_referents(MPI.pickle) == DEFAULT else None
        made = lane.finish(status, timeout)[0] if status or data is None else loads(data)
        lane.pool.append(lane)
        return made

    def allgather(self, sendobj: Any, *, timeout: Time = None) -> list[Any]:
        """Return every rank's object, in rank order; arguments and errors as of `bcast`."""
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        pool = context.lanes["allgather"]
        lane = pool.pop() if pool else Lane(context, pool, "allgather")
        status = call_compiled(RUN, lane.engine, lane.put(sendobj), lane.target, AS_BEFORE)
        made = lane.finish(status, timeout) if status or lane.data is None else [loads(view) for view in lane.views]
        lane.pool.append(lane)
        return made


def _checked(root: Any, nranks: int) -> int:
    """Return a root as an int; raise mpi4py's error where it is none."""
    if not 0 <= index(root) < nranks:
        raise MPI.Exception(MPI.ERR_ROOT)
    return index(root)
