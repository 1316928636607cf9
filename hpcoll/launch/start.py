"""The start of MPI in processes that no launcher of MPI has started: `start`, and the same where `mpi4py.MPI` is first imported.

The MPI library must speak PMI-1, as MPICH and its relatives do. Open MPI cannot be started so, which an error says.
"""

import os
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcoll.base.errors import ArgumentError
from hpcoll.base.launchers import JOB, MPI_PREFIXES, MPICH, family_of
from hpcoll.base.text import counted, parse_seconds
from hpcoll.launch import pmi
from hpcoll.launch.meet import AtAddress, InStore, Where, meet
from hpcoll.launch.secret import VARIABLE, derived, secret
from hpcoll.launch.variables import Place, generation, is_alone, on_one_host

TIMEOUT = "HPCOLL_START_TIMEOUT"
TIMEOUT_S = 1800.0  # as torch.distributed waits for a process group
_MODULE = "mpi4py.MPI"
REMEDY = "install MPICH (pip install 'hpcoll[mpich]'), or start the program by mpirun"

_begun: list[tuple[int, int]] = []  # rank and number of ranks of the world that was begun here


def start(
    rank: int,
    nranks: int,
    address: str,
    *,
    key: str | bytes | None = None,
    timeout: float | str | None = None,
) -> None:
    """Begin MPI as a world of ``nranks`` processes, of which this one is ``rank``; collective over these processes.

    For processes that no launcher of MPI has started: workers of Ray or Dask, pods, shells. Afterwards ``MPI.COMM_WORLD`` is that world.
    A second call with the same rank and number of ranks does nothing.

    Args:
        rank: Rank of this process, from 0.
        nranks: Number of ranks; the same on all.
        address: Host and port at which the others reach rank 0, ``"host:port"``; the same on all. It listens there until all have come.
        key: A secret that all ranks know. Without it ``HPCOLL_KEY``, or a file in the user's cache folder, which hosts that share the
            home folder have in common.
        timeout: Seconds to wait for the others; without it ``HPCOLL_START_TIMEOUT``, or 30 minutes.

    Raises:
        ArgumentError: MPI has begun already, the MPI library cannot be started so, or an argument is wrong.
        TransportError: Not all ranks have come in time; the text names those that are missing.
    """
    if not (isinstance(nranks, int) and isinstance(rank, int) and 0 <= rank < nranks):
        raise ArgumentError(f"rank must be from 0 to nranks - 1, got rank {rank!r} of {nranks!r}")
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not (host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ArgumentError(f"rank {rank} of {nranks}: address must be 'host:port', got {address!r}")
    begin(rank, nranks, lambda: AtAddress((host, int(port)), secret(key)), timeout)


def start_in_store(rank: int, nranks: int, store: Any, timeout_s: float, host: str = "") -> None:
    """Begin MPI as `start` does, where the ranks have a key-value store of torch.distributed, on a host if that is known."""
    local = on_one_host(os.environ, nranks, host)
    more = secret() if local or os.environ.get(VARIABLE) else b""
    begin(rank, nranks, lambda: _in_store(store, generation(os.environ), local, more), timeout_s)


def begin(rank: int, nranks: int, where: Callable[[], Where], timeout: float | str | None = None) -> None:
    """Begin MPI as `start` does; ``where`` returns the place at which the ranks meet."""
    if (rank, nranks) in _begun:
        return
    MPI, me = loaded(), f"rank {rank} of {nranks}"
    if MPI.Is_initialized():
        begun = counted(MPI.COMM_WORLD.size, "rank")
        raise ArgumentError(f"{me}: MPI has begun already, with {begun}: import hpcoll before mpi4py.MPI")
    if not fits(MPI):
        raise ArgumentError(f"{me}: {why_not(MPI)}")
    limit_s = parse_seconds(os.environ.get(TIMEOUT, TIMEOUT_S) if timeout is None else timeout)
    if nranks > 1:
        sock, told = meet(rank, nranks, where(), limit_s)
        for name in [name for name in os.environ if name.startswith(MPI_PREFIXES)]:
            del os.environ[name]
        os.environ.update(
            pmi.environment(sock.detach(), rank, nranks, told["local_rank"], told["local_nranks"])
        )
        os.environ[JOB] = told["job"]
    initialize(MPI)
    if nranks > 1:
        _remove_names(MPI)
    for name in (pmi.FD, pmi.RANK, pmi.NRANKS):  # they are not for child processes
        os.environ.pop(name, None)
    _begun.append((rank, nranks))


def _remove_names(MPI: Any) -> None:
    """Remove the names of the library's shared memory once all ranks have it: nothing is left then of ranks that are killed."""
    MPI.COMM_WORLD.Barrier()
    for name in set(re.findall(r"/dev/shm/mpich_\S+", Path("/proc/self/maps").read_text())):
        with suppress(OSError):  # another rank was faster
            os.unlink(name)


def begins_here() -> bool:
    """Say whether `begin` can begin MPI: it has not begun, its library can, and no launcher of MPI has started this process.

    Where only the library is in the way, MPI begins as it does when mpi4py is imported.
    """
    if not is_alone(os.environ):
        return False
    MPI = loaded()
    if MPI.Is_initialized():
        return False
    if not fits(MPI):
        initialize(MPI)
    return not MPI.Is_initialized()


def why_alone() -> str:
    """Return why this process is a world of its own, and what to do."""
    MPI = loaded()
    if is_alone(os.environ) and not fits(MPI):
        return why_not(MPI)
    return "start the program by mpirun or srun, or import hpcoll before mpi4py.MPI"


def fits(MPI: Any) -> bool:
    """Say whether the MPI library can be started here."""
    return family_of(MPI.get_vendor()[0]) == MPICH


def why_not(MPI: Any) -> str:
    """Return why the MPI library cannot be started here, and what to do."""
    return f"mpi4py has loaded {MPI.get_vendor()[0]}, which begins under its own launcher only: {REMEDY}"


def loaded() -> Any:
    """Return the module ``mpi4py.MPI``; where it is imported here, MPI has not begun, and ends with the process once it has."""
    if _MODULE not in sys.modules:
        for finder in [finder for finder in sys.meta_path if isinstance(finder, _Starter)]:
            sys.meta_path.remove(finder)
        with _Uninitialized():
            import mpi4py.MPI  # noqa: F401
    return sys.modules[_MODULE]


class _Uninitialized:
    """While this is entered, an import of `mpi4py.MPI` does not begin MPI; it ends MPI with the process nevertheless."""

    def __enter__(self) -> None:
        from mpi4py import rc

        self._rc, self._before = rc, rc.initialize
        if rc.finalize is None:
            rc.finalize = True
        rc.initialize = False

    def __exit__(self, *_: object) -> None:
        self._rc.initialize = self._before


def initialize(MPI: Any) -> None:
    """Begin MPI as the import of mpi4py does."""
    from mpi4py import rc

    if rc.threads:
        MPI.Init_thread(getattr(MPI, f"THREAD_{rc.thread_level.upper()}"))
    else:
        MPI.Init()


class _Starter(MetaPathFinder, Loader):
    """Begins MPI at the place of this process where `mpi4py.MPI` is first imported, unless ``mpi4py.rc.initialize`` is false."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._loader: Any = None

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next(filter(None, specs), None)
        if spec:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        from mpi4py import rc

        assert module.__spec__
        module.__spec__.loader = module.__loader__ = self._loader
        begins = rc.initialize
        with _Uninitialized():
            self._loader.exec_module(module)
        place = self._place
        if begins and fits(module):
            begin_at(place)
        elif begins:
            me = f"rank {place.rank} of {place.nranks}"
            warnings.warn(f"hpcoll: {me} runs alone: {why_not(module)}", RuntimeWarning, stacklevel=2)
            initialize(module)


def begin_at(place: Place, timeout: float | None = None) -> None:
    """Begin MPI as `begin` does, at a place that a launcher has given."""
    begin(place.rank, place.nranks, lambda: at(place), timeout)


def at(place: Place) -> Where:
    """Return where the ranks of a launcher's job meet."""
    if place.local:
        name = derived(secret(), "name", place.host, str(place.port), str(place.nranks), place.generation)
        return AtAddress(f"\0hpcoll-{name.hex()[:32]}", derived(secret(), "key"))
    if not place.agent:
        return AtAddress((place.host, place.port), secret())
    from torch.distributed import TCPStore

    store = TCPStore(place.host, place.port, is_master=False)
    return _in_store(store, place.generation, False, secret() if os.environ.get(VARIABLE) else b"")


def _in_store(store: Any, again: str, local: bool, more: bytes) -> Where:
    """Return a meeting in a store of torch, which torchrun keeps when it starts its processes again."""
    import torch.distributed as dist

    return InStore(dist.PrefixStore(again, store), local, more)


def prepare(place: Place) -> None:
    """Have MPI begin where `mpi4py.MPI` is first imported; where it has begun, warn that it is too late."""
    if _MODULE not in sys.modules:
        sys.meta_path.insert(0, _Starter(place))
        return
    MPI: Any = sys.modules[_MODULE]
    if MPI.Is_initialized() and MPI.COMM_WORLD.size == 1:
        me = f"rank {place.rank} of {place.nranks}"
        late = f"hpcoll: {me} runs alone, since MPI began before hpcoll was imported: import hpcoll before mpi4py.MPI"
        warnings.warn(late, RuntimeWarning, stacklevel=3)
