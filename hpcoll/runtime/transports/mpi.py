"""The MPI library that mpi4py has loaded, as addresses and handles for compiled code.

Symbols are looked up in mpi4py's own extension module, never in a path that was guessed: a machine may have two MPI libraries.
"""

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Container, Iterator, Sequence
from functools import cache, lru_cache
from math import isqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import TransportError
from hpcoll.base.launchers import is_fork, rank_above
from hpcoll.base.text import printable
from hpcoll.runtime.program.fields import OPERANDS, STATUS

FORK = "this process is a fork: MPI belongs to its parent"
_CHILD = "children of multiprocessing use no MPI; mpi4py.futures has pools of processes that do"
KNOWN_S = 1.0  # most until all ranks know which one has failed, once one of them does

# Classes of errors that say that a rank has failed, where the library tells them apart from others.
_FAILURES = tuple(
    getattr(MPI, name, MPI.ERR_LASTCODE) for name in ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING")
)
_MOST_CONTEXTS = (
    512  # message contexts that a communicator of ours serves: the more, the fewer checks a tag can carry
)
STATUS_NBYTES = 8 * (OPERANDS - STATUS)
_ASYNC_FINALIZE = "ompi_async_mpi_finalize"  # a variable of Open MPI's


class Revoked(TransportError, MPI.Exception):
    """A rank has revoked the communicator; an ``MPI.Exception`` of class ``ERR_REVOKED``, as the MPI library's own calls raise then."""

    __str__, __repr__ = BaseException.__str__, BaseException.__repr__  # not the library's text of the class

    def __new__(cls, message: str, **facts: Any) -> "Revoked":
        """Make it as the library's own."""
        return MPI.Exception.__new__(cls, MPI.ERR_REVOKED)

    def __init__(
        self, message: str, *, code: int = 0, rank: int = -1, call: str = "", failure: str = ""
    ) -> None:
        MPI.Exception.__init__(self, MPI.ERR_REVOKED)
        self.args, self.code = (f"rank {rank}: {message}" if rank >= 0 else message,), code or MPI.ERR_REVOKED
        self.rank, self.call, self.rows, self.failure = rank, call, (), failure

    def __int__(self) -> int:
        return self.code


class Library(NamedTuple):
    """Addresses of functions of the MPI library, and its constants."""

    isend: int
    irecv: int
    test: int
    iprobe: int
    get_count: int
    grequest_complete: int
    request_nbytes: int  # of a request handle: 8 in Open MPI (a pointer), 4 in MPICH and its relatives
    byte: int  # handle of MPI_BYTE
    truncated: int  # MPI_ERR_TRUNCATE
    request_null: int  # handle of no request


@lru_cache(maxsize=1)
def library(status_nbytes: int = STATUS_NBYTES) -> Library:
    """Return the loaded MPI library; Open MPI, MPICH, or one with MPICH's ABI such as Intel MPI.

    Raises:
        TransportError: its statuses or handles are longer than the room for them, or mpi4py keeps handles elsewhere.
    """
    sizes = MPI._sizeof(MPI.Status), MPI._sizeof(MPI.REQUEST_NULL)
    if sizes[0] > status_nbytes or sizes[1] not in (4, 8):
        raise TransportError(
            f"this MPI library's statuses and requests need {sizes} bytes, at most {status_nbytes} and 8 are expected"
        )
    names = ("MPI_Isend", "MPI_Irecv", "MPI_Test", "MPI_Iprobe", "MPI_Get_count", "MPI_Grequest_complete")
    kept = ctypes.string_at(MPI._addressof(MPI.BYTE), MPI._sizeof(MPI.BYTE))
    if int.from_bytes(kept, sys.byteorder) != handle(MPI.BYTE):
        raise TransportError(
            f"mpi4py keeps handles elsewhere: that of MPI.BYTE is {handle(MPI.BYTE):#x}, and {kept!r} is at its address"
        )
    handles = handle(MPI.BYTE), MPI.ERR_TRUNCATE, handle(MPI.REQUEST_NULL)
    return Library(*[*map(function_address, names), sizes[1], *handles])


def why_unusable() -> str:
    """Return why this process cannot use MPI, in words; empty where it can."""
    if is_fork():
        return FORK
    if MPI.Is_finalized():
        return "MPI is finalised"
    if not MPI.Is_initialized():
        return (
            "MPI is not initialised: call MPI.Init_thread(); communicators of sessions can be used then, too"
        )
    return _why_a_child_cannot()


@lru_cache(maxsize=1)
def _why_a_child_cannot() -> str:
    """Return the same of a child of a rank, whose MPI takes it for that rank, or is a copy of the one of that rank."""
    rank = MPI.COMM_WORLD.size > 1 and rank_above()
    with contextlib.suppress(OSError):
        if rank and MPI.__file__ in Path(f"/proc/{rank}/maps").read_text():
            return f"this process is a child of rank {MPI.COMM_WORLD.rank} (process {rank}), which MPI takes it for: {_CHILD}"
    return ""


@lru_cache(maxsize=1)
def last_tag() -> int:
    """Return the highest tag there is; MPI must run."""
    tag: Any = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
    return int(tag)


class Tags(NamedTuple):
    """The tags of a message context; those of a call carry a check."""

    first: int = 0  # of as many as it has window slots
    step: int = 0  # from one value of the check to the next
    checks: int = 1  # values of the check, a prime


@lru_cache(maxsize=1)
def tags_at_once(nslots: int, last: int | None = None) -> tuple[int, Tags]:
    """Return the number of message contexts, of so many window slots, that have tags, and the first's; the ``last`` three stay free."""
    end = clock_tag() if last is None else last - 2
    ncontexts = min(_MOST_CONTEXTS, end // nslots)
    step = ncontexts * nslots
    checks = next((n for n in range(end // step, 1, -1) if all(n % i for i in range(2, isqrt(n) + 1))), 1)
    return ncontexts, Tags(0, step, checks)


def control_tag() -> int:
    """Return the tag of control messages; no message has `last_tag`."""
    return last_tag() - 1


def clock_tag() -> int:
    """Return the tag of messages that compare the clocks of hosts."""
    return last_tag() - 2


@lru_cache
def function_address(name: str) -> int:
    """Return the address of a function of the MPI library or of the C library; of the latter the one that this process calls."""
    loaded = ctypes.CDLL(MPI.__file__ if name.startswith("MPI_") else None)
    address = ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value
    assert address is not None
    return address


@lru_cache(maxsize=1)
def has_persistent_collectives() -> bool:
    """Say whether the library has persistent collectives; Open MPI 4.1 has none."""
    try:
        MPI.COMM_SELF.Barrier_init().Free()
    except NotImplementedError:
        return False
    return True


def may_call() -> bool:
    """Say whether the MPI library lets this thread call it while another one may."""
    return MPI.Query_thread() == MPI.THREAD_MULTIPLE or MPI.Is_thread_main()


def knows_failures() -> bool:
    """Say whether ranks may go on when others have failed (ULFM): Open MPI 5 lets them, started by ``mpirun --with-ft ulfm``."""
    return MPI.ERR_PROC_FAILED != MPI.ERR_REVOKED and "OMPI_MCA_mpi_ft_enable" in os.environ


def tells_of_failure(error: MPI.Exception, comm: MPI.Comm) -> bool:
    """Say whether the library has ended a call because a rank of a communicator failed; collectives may say so by any code.

    Where it says that another rank has revoked the communicator, that may be because of a failure, which is then known soon.
    """
    if isinstance(error, TransportError) or not knows_failures():
        return False
    return error.Get_error_class() in _FAILURES or bool(failed_ranks(comm, KNOWN_S))


def is_revoked(comm: MPI.Comm) -> bool:
    """Say whether a communicator is known to be revoked here; never, where the library cannot revoke any."""
    with contextlib.suppress(AttributeError, NotImplementedError, MPI.Exception):
        return comm.Is_revoked()
    return False


@contextlib.contextmanager
def revoking(comms: Sequence[MPI.Comm]) -> Iterator[None]:
    """Revoke communicators where a call of the library's own ends because a rank has failed, so that all ranks' calls end."""
    try:
        yield
    except MPI.Exception as error:
        for comm in comms if tells_of_failure(error, comms[0]) else ():
            comm.Revoke()
        raise


def failed_ranks(comm: MPI.Comm, limit_s: float = 0.0) -> list[int]:
    """Return the ranks of a communicator that the library knows to have failed; none where it knows no failures.

    It waits ``limit_s`` seconds at most until the library knows of one: another rank may have been told first.
    """
    if not knows_failures() or not may_call():
        return []
    end = time.monotonic() + limit_s
    while True:
        failed, mine = comm.Get_failed(), group_of(comm)
        ranks = MPI.Group.Translate_ranks(failed, None, mine)
        failed.Free()
        mine.Free()
        if ranks or time.monotonic() > end:
            return sorted(ranks)
        MPI.COMM_SELF.Iprobe()  # the library looks what has come


def cancel(requests: np.ndarray, receives: Container[int], most_s: float) -> bool:
    """Cancel receives that have not begun, so that they write nowhere, and wait for messages; say whether none is under way.

    Handles of messages that have ended become null. ``receives``: places of receives among the handles.
    """
    null = library().request_null
    left = {
        place: MPI.Request.fromhandle(int(requests[place]))
        for place in np.flatnonzero(requests != null).tolist()
    }
    for place, request in left.items():
        if place in receives:
            with contextlib.suppress(MPI.Exception):
                request.Cancel()
    end = time.monotonic() + most_s
    while True:
        for place in [place for place, request in left.items() if _has_ended(request)]:
            requests[place] = null
            del left[place]
        if not left or time.monotonic() > end:
            return not left


def _has_ended(request: MPI.Request) -> bool:
    with contextlib.suppress(MPI.Exception):
        return request.Test()
    return False


def end_without_barrier() -> None:
    """Let MPI_Finalize wait for no other rank, once one has failed.

    Open MPI 5.0.11 waits there for an answer of its launcher's, which in one of 15 jobs or so never comes when a rank was killed shortly
    before. Its own parameter ``async_mpi_finalize`` does without, but cannot be set any more when MPI runs; this is where its value is.
    """
    with contextlib.suppress(ValueError):
        ctypes.c_bool.in_dll(ctypes.CDLL(MPI.__file__), _ASYNC_FINALIZE).value = True


def handle(thing: MPI.Comm | MPI.Datatype | MPI.Request | MPI.Op) -> int:
    """Return the C handle of a communicator, datatype, request or operator, as an int64 whose low bits are the handle."""
    return int(MPI._handleof(thing)) & ((1 << 8 * MPI._sizeof(thing)) - 1)


def group_of(comm: MPI.Comm) -> MPI.Group:
    """Return the group of a communicator's ranks, to be freed.

    MPICH 5.0.2 says that a grid or graph of fewer ranks has all of the communicator of which it was made. Its own are the first of these.

    Raises:
        TransportError: The group has another process at the place of this rank.
    """
    group, nranks = comm.Get_group(), comm.Get_size()
    if group.Get_size() != nranks:
        whole, group = group, group.Incl(range(nranks))
        whole.Free()
    if group.Get_rank() != comm.Get_rank():
        raise TransportError(
            f"rank {comm.Get_rank()}: the MPI library's group of {title_of(comm)} has this process as {group.Get_rank()}"
        )
    return group


def ranks_in(other: MPI.Comm, comm: MPI.Comm) -> tuple[int, ...]:
    """Return a communicator's ranks in another one, in order; ``MPI.UNDEFINED`` for processes that are not there."""
    group, there = group_of(comm), group_of(other)
    ranks = tuple(MPI.Group.Translate_ranks(group, None, there))
    group.Free()
    there.Free()
    return ranks


def world_ranks(comm: MPI.Comm) -> tuple[int, ...]:
    """Return a communicator's ranks in COMM_WORLD, as `ranks_in`."""
    return ranks_in(MPI.COMM_WORLD, comm)


@cache
def host_name() -> str:
    """Return this host's name as the MPI library has it, for texts."""
    return printable(MPI, read=lambda library: library.Get_processor_name())


def name_of(comm: MPI.Comm) -> str:
    """Return a communicator's name, for texts; the empty string where it has none."""
    return printable(comm, read=lambda named: named.Get_name())


def title_of(comm: MPI.Comm) -> str:
    """Return a communicator's name, or what else tells it apart, for texts."""
    return name_of(comm) or f"a communicator of {comm.size} ranks"
