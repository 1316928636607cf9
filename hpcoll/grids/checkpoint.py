"""Checkpoints: `save` writes an array that ranks share to one file of NumPy, and `load` reads it, on any number of ranks.

In the file the array is whole. So elements are redistributed until each rank has one run of the file's bytes, which it writes or reads by
MPI-IO. It opens the file for itself: a collective open does not end where one rank finds no file. Ranks agree on how each stage went.
"""

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from mpi4py import MPI

from hpcoll.base.agreement import agreed
from hpcoll.base.errors import ArgumentError, FileError, HpcollError, MissingFileError
from hpcoll.base.text import printable, quoted
from hpcoll.comm.communicator import Communicator
from hpcoll.grids.distribution import Distribution
from hpcoll.grids.parts import evenly
from hpcoll.grids.redistribution import redistribute
from hpcoll.grids.terms import Terms, agreed_terms, check_arrays

Array: TypeAlias = np.ndarray[Any, Any]
Name: TypeAlias = str | os.PathLike[str]
T = TypeVar("T")

_SIDES = ("distribution",)  # of a redistribution, as errors call them
_PART = ".part"  # behind the name of a file that is not whole yet
_PIECE = 1 << 30  # most bytes of one read or write: MPI counts in 32 bits
_CODES = {MPI.ERR_NO_SUCH_FILE: errno.ENOENT, MPI.ERR_ACCESS: errno.EACCES, MPI.ERR_NO_SPACE: errno.ENOSPC}


def save(path: Name, x: Array | None, distribution: Distribution, comm: MPI.Intracomm) -> None:
    """Write an array that ranks share to one file in NumPy's format, which `load` and `numpy.load` read; collective.

    The file has the whole array, in C order. It is written to ``path`` with ``.part`` behind it, and takes the place of an earlier file
    once all of it is on disk. If that fails, or the job ends before, the earlier file stays as it was. When the call returns, the name is
    on disk, too.

    Args:
        path: Path of the file, equal on all ranks, in a file system that all of them reach.
        x: This rank's local array, with any strides; None will do where that has no element.
        distribution: The distribution of ``x``. What several ranks have is written once.
        comm: Intracommunicator, hpcoll's or mpi4py's, with as many ranks as the distribution.

    Raises:
        ArgumentError: On every rank, before anything is written: an argument cannot be used, or ranks differ.
        FileError: On every rank: one cannot write, for instance since the disk is full.
    """
    ranks = _Ranks(comm, "save", "a path to write to")
    given = Terms(distribution, distribution, dtype=getattr(x, "dtype", None))

    def check(terms: Terms) -> None:
        check_arrays(x, None, terms.local_shapes(ranks.comm.rank), terms)

    dtype = agreed_terms(ranks.comm, "save", given, check, _SIDES).dtype
    path = ranks.agreed_path(path)
    shares = _shares(distribution.shape, ranks.comm.size, "C")
    part = f"{os.path.realpath(path)}{_PART}"  # what a link points to is replaced, not the link
    try:
        displ = ranks.at_first(lambda: _created(part, distribution.shape, dtype))
        if distribution == shares:
            run = np.ascontiguousarray(np.zeros(0) if x is None else x)
        else:
            run = redistribute(x, distribution, shares, ranks.comm)
        displ += ranks.comm.exscan(run.nbytes) or 0
        ranks.together(lambda: _transfer(part, MPI.MODE_WRONLY, displ, run))
        ranks.at_first(lambda: _put(part))
    except BaseException:
        if ranks.comm.rank == 0:
            with suppress(OSError):
                os.unlink(part)
        raise


def load(path: Name, distribution: Distribution, comm: MPI.Intracomm, out: Array | None = None) -> Array:
    """Return this rank's part of an array in a file, of `save` or `numpy.save`; collective.

    Args:
        path: Path of the file, equal on all ranks, in a file system that all of them reach.
        distribution: The distribution of the result, of the shape that the file's array has.
        comm: Intracommunicator, hpcoll's or mpi4py's, with as many ranks as the distribution.
        out: Array for the result, of the local shape and the file's element type, with any strides. None: a new one.

    Raises:
        ArgumentError: On every rank: an argument cannot be used, ranks differ, or the file's array has another shape or element type.
        FileError: On every rank: one cannot read, or the file is no whole one of NumPy. It is also a FileNotFoundError where there is none.
    """
    ranks = _Ranks(comm, "load", "a file of NumPy to read")
    terms = agreed_terms(ranks.comm, "load", Terms(distribution, distribution), sides=_SIDES)
    path = ranks.agreed_path(path)
    order: Any
    shape, dtype, order, displ = ranks.at_first(lambda: _header(path))
    if distribution.shape != shape:
        raise ArgumentError(
            f"load needs a distribution of shape {shape}, as {quoted(path)} has it, got {distribution.shape}"
        )
    shares = _shares(shape, ranks.comm.size, order)
    run = np.empty(shares.local_shape(ranks.comm.rank), dtype, order)
    shapes = run.shape, distribution.local_shape(ranks.comm.rank)
    terms = terms._replace(dtype=dtype, out_dtype=dtype)
    ranks.together(lambda: check_arrays(run, out, shapes, terms) and None)
    displ += ranks.comm.exscan(run.nbytes) or 0
    ranks.together(lambda: _transfer(path, MPI.MODE_RDONLY, displ, run))
    if distribution == shares and order == "C" and not ranks.comm.allreduce(out is not None, MPI.MAX):
        return run
    return redistribute(run, shares, distribution, ranks.comm, out)


class _Ranks:
    """The ranks of a call: where one fails in a stage, all raise its error."""

    def __init__(self, comm: MPI.Intracomm, name: str, expected: str) -> None:
        self.comm = comm if isinstance(comm, Communicator) else Communicator(comm)
        self._name = name
        self._expected = expected  # of the path

    def agreed_path(self, path: Any) -> str:
        """Return the path of all ranks, as text; collective."""
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
        wrong = "" if isinstance(text, str) else self._needs("a path as text", quoted(path))
        agreed(self.comm.allgather, wrong, {f"path of {self._name}": text})
        return str(text)

    def together(self, run: Callable[[], T]) -> list[T]:
        """Run a stage on each rank, and return all ranks' results; collective."""
        failed: HpcollError | None = None
        result: Any = None
        try:
            result = run()
        except ArgumentError as error:
            failed = type(error)(f"rank {self.comm.rank}: {self._name} needs {error}")
        except (OSError, ValueError, MPI.Exception) as error:
            of_mpi = _CODES.get(error.Get_error_class()) if isinstance(error, MPI.Exception) else None
            code = getattr(error, "errno", of_mpi) or errno.EIO
            text = self._needs(self._expected, printable(error))
            failed = (MissingFileError if code == errno.ENOENT else FileError)(code, text)
        everyone = self.comm.allgather((failed, result))
        for theirs, _ in everyone:
            if theirs is not None:
                raise theirs
        return [result for _, result in everyone]

    def at_first(self, run: Callable[[], T]) -> T:
        """Run a stage on rank 0, and return its result on all; collective."""
        return self.together(lambda: run() if self.comm.rank == 0 else cast(T, None))[0]

    def _needs(self, expected: str, got: str) -> str:
        return f"rank {self.comm.rank}: {self._name} needs {expected}, got {got}"


# --- the file's layout


def _shares(shape: Sequence[int], nranks: int, order: str) -> Distribution:
    """Return a distribution in which each rank has one run of the array's elements, in this order of them, one rank behind the other."""
    boxes = _runs(shape if order == "C" else shape[::-1], nranks)
    each = [box if order == "C" else box[::-1] for box in boxes]
    return Distribution(shape, nranks, boxes=each + [None] * (nranks - len(each)))


def _runs(shape: Sequence[int], nparts: int) -> list[list[tuple[int, int]]]:
    """Return at most so many boxes that are runs in C order: blocks of rows, or parts of rows where those are fewer.

    >>> _runs((2, 3), 2), _runs((2, 3), 5)
    ([[(0, 1), (0, 3)], [(1, 2), (0, 3)]], [[(0, 1), (0, 2)], [(0, 1), (2, 3)], [(1, 2), (0, 2)], [(1, 2), (2, 3)]])
    """
    n, *inner = shape
    if inner and 0 < n < nparts:
        return [[(row, row + 1), *box] for row in range(n) for box in _runs(inner, nparts // n)]
    cuts = [tuple(part[0].tolist()) for part in evenly(n, nparts)]
    return [[cut, *((0, rest) for rest in inner)] for cut in cuts]


# --- stages: each raises what the file system says


def _created(part: str, shape: Sequence[int], dtype: Any) -> int:
    """Make a file of its whole length, and return where its elements begin."""
    return int(np.lib.format.open_memmap(part, "w+", dtype, tuple(shape)).offset)


def _header(path: str) -> tuple[tuple[int, ...], Any, str, int]:
    """Return shape and element type of a file's array, its order, and where its elements begin."""
    array = np.lib.format.open_memmap(path, "r")
    return array.shape, array.dtype, "C" if array.flags.c_contiguous else "F", int(array.offset)


def _transfer(path: str, mode: int, displ: int, run: Array) -> None:
    """Write a contiguous array into the file, until it is on disk, or fill it from there."""
    data = run.reshape(-1, order="A").view(np.uint8)
    status = MPI.Status()
    file = MPI.File.Open(MPI.COMM_SELF, path, mode)
    try:
        move = file.Write_at if mode == MPI.MODE_WRONLY else file.Read_at
        for at in range(0, len(data), _PIECE):
            piece = data[at : at + _PIECE]
            move(displ + at, piece, status)
            if (moved := status.Get_count(MPI.BYTE)) != len(piece):
                raise OSError(f"{at + moved} of {len(data)} bytes from byte {displ} on")
        if mode == MPI.MODE_WRONLY:
            file.Sync()
    finally:
        file.Close()


def _put(part: str) -> None:
    """Put the written file in the place of an earlier one, and its name on disk."""
    os.replace(part, part.removesuffix(_PART))
    try:
        folder = os.open(os.path.dirname(part), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        # this user may not list it, or its file system has no such thing
        if error.errno not in (errno.EACCES, errno.EINVAL):
            raise
