"""The processes of a communicator's ranks, as other ranks know them: a row of numbers for each, told in one exchange."""

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from zlib import adler32, crc32

import numpy as np
from mpi4py import MPI

from hpcoll.base.machine import CPUS, domain_of
from hpcoll.runtime.transports.cross_memory import ProbeWord, word
from hpcoll.runtime.transports.mpi import host_name

_GPUS = Path("/proc/driver/nvidia/gpus")
UNBOUND = -1  # domain of a process that is not bound to one, as far as Linux says
_NAME_NBYTES = 64  # of a host, as it is told

# Fields of `Process` and `ProbeWord`, a number in place of the host's name, and the lowest rank with which it shares memory.
_ROW = (
    ("host", "i4"),
    ("first", "i4"),
    ("pid", "i4"),
    ("domain", "i4"),
    ("ngpus", "i2"),
    ("has_gpu", "?"),
    ("address", "i8"),
    ("value", "i8"),
)
TOLD = np.dtype([*_ROW, ("name", f"S{_NAME_NBYTES}"), ("settings", "u8")])


class Process(NamedTuple):
    """A rank's process."""

    host: str
    pid: int  # in its own namespace
    domain: int  # number of its cache domain on its host, or `UNBOUND`
    ngpus: int  # on its host
    has_gpu: bool  # probably
    word: ProbeWord  # in its memory, by which others find out whether they can read there


class Processes:
    """The processes of a communicator's ranks.

    Attributes:
        rows: A row for each rank, whose fields are those of `Process`; ``first`` is the lowest rank with which it shares memory.
        names: Names of the hosts, each of them once.
    """

    def __init__(self, rows: np.ndarray, names: tuple[str, ...]) -> None:
        self.rows = rows
        self.names = names

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rank: int) -> Process:
        host, _, pid, domain, ngpus, has_gpu, address, value = self.rows[rank].item()
        return Process(self.names[host], pid, domain, ngpus, has_gpu, ProbeWord(pid, address, value))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each rank."""
        return tuple(self.names[host] for host in self.rows["host"].tolist())

    def host_nranks(self, rank: int) -> int:
        """Return how many ranks the host of one has."""
        return int(np.count_nonzero(self.rows["host"] == self.rows["host"][rank]))

    def of(self, ranks: Sequence[int]) -> "Processes":
        """Return the processes of some ranks, for another communicator: `share` is yet to be called."""
        rows = self.rows[np.array(ranks)]
        hosts, rows["host"] = np.unique(rows["host"], return_inverse=True)
        return Processes(rows, tuple(self.names[host] for host in hosts.tolist()))

    def share(self, comm: MPI.Intracomm, first: int, *, near: bool) -> None:
        """Learn which ranks share memory; collective, no message where all do (``near``). ``first`` as in `tell_all`."""
        firsts = np.zeros(len(self), np.int32)
        if not near:
            comm.Allgather(np.array([first], np.int32), firsts)
        self.rows["first"] = firsts


def this_process(has_gpu: bool) -> Process:
    """Return this process; MPI must be initialised."""
    host, domain = _short(host_name()), bound_to(frozenset(os.sched_getaffinity(0)))
    return Process(host, os.getpid(), domain, _ngpus(), has_gpu, word())


def tell_all(comm: MPI.Intracomm, mine: Process, first: int, settings: str) -> tuple[Processes, bool]:
    """Return every rank's process, and whether the settings are the same on all ranks; collective, one exchange.

    Args:
        comm: Communicator of the ranks.
        mine: Process of this rank.
        first: Lowest rank with which it shares memory.
        settings: Settings as text; empty: wrong ones, which are never the same.
    """
    text = settings.encode()
    told = np.zeros(1, TOLD)
    told[0] = (
        0,
        first,
        mine.pid,
        mine.domain,
        mine.ngpus,
        mine.has_gpu,
        mine.word.address,
        mine.word.value,
        mine.host.encode(),
        crc32(text) << 32 | adler32(text) if text else 0,
    )
    every = np.empty(comm.Get_size(), TOLD)
    comm.Allgather(told.view(np.uint8), every.view(np.uint8))
    numbers: dict[bytes, int] = {}
    every["host"] = np.fromiter(
        (numbers.setdefault(name, len(numbers)) for name in every["name"]), np.int32, len(every)
    )
    rows = np.empty(len(every), np.dtype([*_ROW]))
    for field, _ in _ROW:
        rows[field] = every[field]
    same = bool((every["settings"] == every["settings"][0]).all() and every["settings"][0])
    return Processes(rows, tuple(name.decode() for name in numbers)), same


def _short(host: str) -> str:
    """Return a host's name, with a digest as its end where it is too long to be told."""
    name = host.encode()
    if len(name) <= _NAME_NBYTES:
        return host
    return f"{name[: _NAME_NBYTES - 8].decode(errors='ignore')}{crc32(name):08x}"


@lru_cache(maxsize=1)
def _ngpus() -> int:
    try:
        return sum(1 for _ in _GPUS.iterdir())
    except OSError:
        return 0


@lru_cache(maxsize=16)
def bound_to(cores: frozenset[int], cpus: Path = CPUS) -> int:
    """Return the number, which is the lowest core, of the cache domain that has all these cores; `UNBOUND` where there is none."""
    domain = domain_of(min(cores), cpus)
    return min(domain) if cores <= domain else UNBOUND
