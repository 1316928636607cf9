"""``os._exit(0)`` under MPICH, before MPI_Finalize: where other ranks of the node do not leave as well, it ends the job by MPI_Abort.

The ``mpiexec`` of MPICH kills them then in any case, and ends with 0 half of the time, as if all had gone well. So the rank says that it
leaves, and waits for two seconds at most, in which the others raise or leave, too. It calls nothing of MPI's meanwhile, which crashes where
ranks of other nodes have left. In forks, and with other statuses, ``os._exit`` is what it was.
"""

import os
import time

from mpi4py import MPI

from hpcoll.base.launchers import number_in
from hpcoll.base.machine import ENDED_BY
from hpcoll.comm.status import early_exit
from hpcoll.comm.status.rank_status import RANK_STATUS
from hpcoll.comm.team.resources import live_contexts
from hpcoll.selection.config import log

_HOW = "has left by os._exit(0)"
_MOST_S = 2.0
_NAP_S = 0.01

_pid = os.getpid()
_exit = os._exit


def install() -> None:
    """Let ``os._exit`` of this process be `_leave`, where its launcher may be MPICH's."""
    if "MPICH" in MPI.Get_library_version():
        os._exit = _leave  # type: ignore[assignment]


def _leave(status: int) -> None:
    """Leave, as ``os._exit``, after the other ranks could hear of it."""
    if (
        status != 0
        or os.getpid() != _pid
        or not MPI.Is_initialized()
        or MPI.Is_finalized()
        or MPI.COMM_WORLD.size == 1
    ):
        _exit(status)
    try:
        if not _all_leave():
            log.warning(
                "rank %d leaves by os._exit(0) before others: MPI_Abort ends them, with status 1",
                MPI.COMM_WORLD.rank,
            )
            status = 1
            MPI.COMM_WORLD.Abort(status)
    finally:
        _exit(status)


def _all_leave() -> bool:
    """Say that this rank leaves, and see whether all of its node do, none of them by an exception."""
    RANK_STATUS.say_left(_HOW)
    early_exit.say(_HOW)
    end = time.monotonic() + _MOST_S
    left = {MPI.COMM_WORLD.rank: _HOW}
    nranks = _nranks()
    while True:
        left.update((who.rank, how) for who, how in early_exit.ends())
        if len(left) >= nranks or time.monotonic() > end:
            return len(left) >= nranks and not any(how.startswith(ENDED_BY) for how in left.values())
        time.sleep(_NAP_S)


def _nranks() -> int:
    """Return how many ranks this node has, as far as the launcher says, or communicators show."""
    near = {
        resources.team.world_ranks[rank]
        for resources in (context.resources for context in list(live_contexts))
        for rank in resources.near
    }
    return max(len(near), number_in(os.environ, "MPI_LOCALNRANKS"), 1)
