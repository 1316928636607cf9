"""The thread that answers other ranks' questions while the program computes, and how a rank that leaves says so to all of them."""

import contextlib
import threading
import time
from collections.abc import Callable

from mpi4py import MPI

from hpcoll.comm.diagnosis.control_plane import ControlPlane, control_planes
from hpcoll.comm.diagnosis.last_calls import compare_far
from hpcoll.comm.diagnosis.peer_state import answer_about
from hpcoll.comm.status.rank_status import RANK_STATUS
from hpcoll.comm.team.resources import Resources
from hpcoll.comm.team.team import FINALIZE_COMMS
from hpcoll.runtime.transports.mpi import knows_failures
from hpcoll.selection.config import log

_EVERY_S = 0.2  # between two looks
_FIRST_NAP_S = 1e-4
_LAST_NAP_S = 1e-2
# most that a rank waits at its end until what it has told is on its way, and for the thread
_FAREWELL_S = 1.0
_attending = threading.Lock()


def serve_all() -> None:
    """Answer what ranks of other nodes ask, of whatever group."""
    for plane in list(control_planes):
        plane.serve()


class _Listener:
    """The thread that answers while the program computes."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._ends = threading.Event()

    def wake(self) -> None:
        """Start it, once, where the library lets it call."""
        if self._thread is None and MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            self._thread = threading.Thread(target=self._run, name="hpcoll-listener", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(_EVERY_S):
            try:
                serve_all()
            except Exception:
                log.exception("a question of another rank got no answer")

    def end(self) -> None:
        """Stop it, before MPI ends; where the library holds it, that is not waited for."""
        self._ends.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_FAREWELL_S)


_listener = _Listener()


def attend(resources: Resources) -> None:
    """Let a communicator's ranks ask each other, where some share no memory."""
    with _attending:
        plane = resources.team.channel
        if not isinstance(plane, ControlPlane):
            plane = resources.team.channel = ControlPlane(resources, answer_about)
    _listener.wake()
    plane.add(resources)


def leave() -> None:
    """Let whoever waits for this rank, or will, hear that it has left.

    Where hpcoll serves all ranks of COMM_WORLD together, this one answers until all others leave, too, for whom MPI_Finalize, which comes
    next, waits as well. Elsewhere it tells some of the ranks of each group, which tell the others.
    """
    _listener.end()
    if MPI.Is_finalized():
        return
    # else the library complains of the one that is gone
    whole = not knows_failures() or not MPI.COMM_WORLD.Get_failed().size
    # threads may have made them in another order
    for _, comm in sorted(FINALIZE_COMMS.items()) if whole else ():
        with contextlib.suppress(MPI.Exception):
            _serve_until(comm.Ibarrier().Test)
    if FINALIZE_COMMS:
        return
    serve_all()
    for plane in list(control_planes):
        plane.leave(RANK_STATUS.status().left)
    end = time.monotonic() + _FAREWELL_S
    _serve_until(lambda: all(plane.all_sent() for plane in list(control_planes)) or time.monotonic() > end)


def _serve_until(over: Callable[[], bool]) -> None:
    nap_s = _FIRST_NAP_S
    while not over():
        serve_all()
        time.sleep(nap_s)
        nap_s = min(2 * nap_s, _LAST_NAP_S)


RANK_STATUS.at_end += [leave, compare_far]
