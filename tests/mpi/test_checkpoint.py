"""Arrays in files: what ranks save is one file of NumPy, any number of ranks load it, and where one rank fails the earlier file stays."""

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributions import local, random_distribution, random_shape
from mpi4py import MPI
from reference import Array, communicator, ensure_none, raised, unless

import hpcoll
from hpcoll import ArgumentError, Distribution, FileError

pytestmark = [pytest.mark.mpi]
NRANKS, RANK = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank
LAST = NRANKS - 1
DTYPES: list[Any] = ["f8", "c16", "i1", ">i4", "bool", "M8[s]", "S5", [("a", "i2"), ("b", "f8")]]
SHAPE = (12, 10)
WHOLE = np.arange(120.0).reshape(SHAPE)
ROWS = Distribution(SHAPE, NRANKS, split=0)
COLUMNS = Distribution(SHAPE, NRANKS, split=1)
X = local(ROWS, WHOLE, RANK)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that all ranks have."""
    return Path(MPI.COMM_WORLD.bcast(tmp_path))


def laid_out(random: np.random.Generator, array: Array) -> Array:
    """A copy in C order, in Fortran order, or with gaps."""
    kind = int(random.integers(3))
    if kind < 2:
        return np.array(array, order="CF"[kind])
    gapped = np.zeros([2 * n for n in array.shape], array.dtype)[(slice(None, None, 2),) * array.ndim]
    gapped[...] = array
    return gapped


def same(found: Any, wanted: Array) -> bool:
    return (found.shape, found.dtype, found.tobytes()) == (wanted.shape, wanted.dtype, wanted.tobytes())


def of_first(what: Any) -> list[Any]:
    """What is wrong with a file, as rank 0 finds it."""
    return what() if RANK == 0 else []


@pytest.mark.parametrize("seed", range(5))
def test_random_distributions(seed: int, folder: Path) -> None:
    """Any kinds of them, with empty parts; element types; orders of memory and of the file; new and given arrays."""
    random = np.random.default_rng(seed)
    comm, path, wrong = communicator(), folder / "x.npy", list[Any]()
    for case in range(20):
        shape = random_shape(random)
        source, target = (random_distribution(random, shape, NRANKS) for _ in range(2))
        dtype = np.dtype(DTYPES[case % len(DTYPES)])
        n = int(np.prod(shape)) * dtype.itemsize
        whole = (random.integers(0, 2 if dtype.kind == "b" else 120, n, np.uint8)).view(dtype).reshape(shape)
        x = laid_out(random, local(source, whole, RANK))
        without = random.random() < 0.5 and whole.size and not x.size
        hpcoll.save(path, None if without else x, source, comm)
        in_fortran_order = random.random() < 0.3
        if RANK == 0:
            wrong += unless(same(np.load(path), whole), (case, source, dtype))
            if in_fortran_order:
                np.save(path, np.asfortranarray(whole))
        comm.Barrier()
        wanted = local(target, whole, RANK)
        out = laid_out(random, np.zeros_like(wanted)) if random.random() < 0.5 else None
        found = hpcoll.load(path, target, comm, out)
        wrong += unless(same(found, wanted) and (out is None or found is out), (case, target, dtype))
    wrong += of_first(lambda: unless(os.listdir(folder) == ["x.npy"], os.listdir(folder)))
    ensure_none(wrong)


@pytest.mark.mpi(min_size=2)
def test_another_number_of_ranks(folder: Path) -> None:
    """All ranks but the last write, and all read; and the other way round."""
    path, wrong = folder / "x.npy", list[Any]()
    fewer = MPI.COMM_WORLD.Split(RANK == LAST, RANK)
    cyclic = Distribution(SHAPE, NRANKS, split=1, block=2)
    if RANK != LAST:
        few = Distribution(SHAPE, LAST, split=1)
        hpcoll.save(path, local(few, WHOLE, RANK), few, fewer)
    MPI.COMM_WORLD.Barrier()
    mine = hpcoll.load(path, cyclic, communicator())
    wrong += unless(same(mine, local(cyclic, WHOLE, RANK)), mine)
    hpcoll.save(path, mine + 1, cyclic, communicator())
    if RANK != LAST:
        found = hpcoll.load(path, few, fewer)
        wrong += unless(same(found, local(few, WHOLE + 1, RANK)), found)
    fewer.Free()
    ensure_none(wrong)


def test_few_rows_are_shared_out(folder: Path) -> None:
    """Of an array with fewer rows than ranks, each rank writes and reads a part of a row."""
    shape = (2, 3, 50) if NRANKS > 2 else (1, 1, 50)
    whole = np.arange(np.prod(shape)).reshape(shape)
    on_root = Distribution(shape, NRANKS, boxes=[[(0, n) for n in shape]] + [None] * LAST)
    everywhere = Distribution(shape, NRANKS)
    hpcoll.save(folder / "x.npy", whole if RANK == 0 else None, on_root, communicator())
    found = hpcoll.load(folder / "x.npy", everywhere, communicator())
    ensure_none(unless(same(found, whole), found))


def test_what_a_link_points_to_is_replaced(folder: Path) -> None:
    """The link stays, for which ``latest.npy`` is a name."""
    link = folder / "latest.npy"
    of_first(lambda: os.symlink("first.npy", link))
    hpcoll.save(link, X, ROWS, communicator())
    ensure_none(
        of_first(lambda: unless(link.is_symlink() and same(np.load(folder / "first.npy"), WHOLE), "a link"))
    )


def test_the_name_is_on_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is synced once the file has its name, so that a host that fails then does not lose it."""
    path, sync, synced = folder / "x.npy", os.fsync, list[tuple[str, bool]]()

    def noting(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), path.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    hpcoll.save(path, X, ROWS, communicator())
    ensure_none(unless(synced == ([(os.path.realpath(folder), True)] if RANK == 0 else []), synced))


# --- what is refused


def refused(run: Any, kind: type, text: str) -> list[Any]:
    """What is wrong, if a call does not raise an error of this kind with this text on this rank."""
    error = raised(run)
    return unless(isinstance(error, kind) and text in str(error), (text, error))


@pytest.fixture
def saved(folder: Path) -> Path:
    path = folder / "x.npy"
    hpcoll.save(path, X, ROWS, communicator())
    return path


def test_files_that_cannot_be_read(saved: Path) -> None:
    """All ranks raise the same; a program can tell that there is no file."""
    comm, gone, foreign = communicator(), saved.with_name("gone.npy"), saved.with_name("text.npy")
    text = "rank 0: load needs a file of NumPy to read, got "
    wrong = refused(lambda: hpcoll.load(gone, ROWS, comm), FileError, f"{text}[Errno 2] No such file")
    wrong += unless(isinstance(raised(lambda: hpcoll.load(gone, ROWS, comm)), FileNotFoundError), "kind")
    of_first(lambda: foreign.write_text("some text"))
    comm.Barrier()
    wrong += refused(lambda: hpcoll.load(foreign, ROWS, comm), FileError, f"{text}the magic string")
    comm.Barrier()
    of_first(lambda: os.truncate(saved, 700))
    comm.Barrier()
    wrong += refused(lambda: hpcoll.load(saved, ROWS, comm), FileError, f"{text}mmap length is greater than")
    ensure_none(wrong)


@pytest.mark.mpi(min_size=2)
def test_a_file_that_one_rank_cannot_read(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That rank is in another folder, and no rank waits for it."""
    monkeypatch.chdir("/" if RANK == LAST else saved.parent)
    text = f"rank {LAST}: load needs a file of NumPy to read, got "
    wrong = refused(lambda: hpcoll.load("x.npy", ROWS, communicator()), FileNotFoundError, text)
    monkeypatch.undo()
    wrong += unless(same(hpcoll.load(saved, ROWS, communicator()), X), "afterwards")
    ensure_none(wrong)


def test_bad_arguments(saved: Path) -> None:
    comm, before, turned = communicator(), saved.read_bytes(), Distribution((10, 12), NRANKS, split=0)
    other = Distribution(SHAPE, NRANKS + 1, split=0)
    out = np.zeros(X.shape, "f4") if RANK == LAST else np.zeros(X.shape)
    bad: list[tuple[Any, str]] = [
        (lambda: hpcoll.load(saved, turned, comm), "load needs a distribution of shape (12, 10), as '"),
        (lambda: hpcoll.load(saved, ROWS, comm, out), f"rank {LAST}: load needs out of shape {X.shape}"),
        (lambda: hpcoll.load(5, ROWS, comm), "rank 0: load needs a path as text, got 5"),  # type: ignore[arg-type]
        (lambda: hpcoll.load(saved, other, comm), f"rank 0: load needs a distribution for {NRANKS} ranks"),
        (lambda: hpcoll.save(saved, X[:, 1:], ROWS, comm), "rank 0: save needs x of shape"),
        (lambda: hpcoll.save(saved, X.astype(object), ROWS, comm), "rank 0: save needs elements of fixed size, got object"),
    ]  # fmt: skip
    bad.append(
        (lambda: hpcoll.save(saved, X, "rows", comm), "save needs a Distribution as distribution, got")
    )  # type: ignore[arg-type]
    if NRANKS > 1:
        own = Distribution(SHAPE, NRANKS, split=1) if RANK == LAST else ROWS
        bad.append(
            (lambda: hpcoll.load(saved, own, comm), f"rank {LAST}: distribution of load must be equal")
        )
        path, x = (saved.with_name("y"), X[:0]) if RANK == LAST else (saved, X)
        bad += [
            (
                lambda: hpcoll.save(path, X, ROWS, comm),
                f"rank {LAST}: path of save must be equal on all ranks",
            ),
            (lambda: hpcoll.save(saved, x, ROWS, comm), f"rank {LAST}: save needs x of shape"),
        ]
    wrong = [one for run, text in bad for one in refused(run, ArgumentError, text)]
    comm.Barrier()
    wrong += unless(saved.read_bytes() == before, "changed")
    ensure_none(wrong)


@pytest.fixture
def limited() -> Iterator[None]:
    """Let the last rank write no more than the first bytes of a file, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if RANK == LAST:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_room(saved: Path, limited: None) -> None:
    """The file stays as it was, nothing is left beside it, and all ranks know; also where there is no folder."""
    comm = communicator()
    long = Distribution((1 << 18,), NRANKS, split=0)
    x = np.ones(long.local_shape(RANK))
    rank = LAST if NRANKS > 1 else 0
    wrong = refused(
        lambda: hpcoll.save(saved, x, long, comm),
        FileError,
        f"rank {rank}: save needs a path to write to, got ",
    )
    wrong += of_first(
        lambda: unless(
            same(np.load(saved), WHOLE) and os.listdir(saved.parent) == ["x.npy"], os.listdir(saved.parent)
        )
    )
    folder = saved.parent / "none"
    wrong += refused(
        lambda: hpcoll.save(folder / "x.npy", X, ROWS, comm),
        FileNotFoundError,
        "rank 0: save needs a path to write to, got [Errno 2]",
    )
    wrong += refused(
        lambda: hpcoll.save(saved.parent, X, ROWS, comm),
        FileError,
        "rank 0: save needs a path to write to, got [Errno 21]",
    )
    error = raised(lambda: hpcoll.save(saved.parent, X, ROWS, comm))
    wrong += unless(getattr(error, "errno", 0) == errno.EISDIR, error)
    wrong += unless(same(hpcoll.load(saved, ROWS, comm), X), "afterwards")
    ensure_none(wrong)


@pytest.mark.mpi(min_size=2)
@pytest.mark.full
def test_more_bytes_than_an_int_can_count(folder: Path) -> None:
    """Rank 0 has more than 2 GiB of the file."""
    n = 2**30 + 4096
    free = os.statvfs(folder)
    if NRANKS != 2 or MPI.COMM_WORLD.bcast(free.f_bavail * free.f_frsize) < 4 * n:
        pytest.skip("needs two ranks and room on the disk")
    rows = Distribution((3, n), NRANKS, split=0)
    row = np.resize(np.arange(251, dtype=np.uint8), n)
    mine = [0, 1] if RANK == 0 else [2]
    hpcoll.save(folder / "x.npy", np.stack([row + i for i in mine]), rows, communicator())
    found = hpcoll.load(folder / "x.npy", rows, communicator())
    wrong = unless(len(found) == len(mine) and all((a == row + i).all() for i, a in zip(mine, found)), "rows")
    wrong += of_first(lambda: unless(os.path.getsize(folder / "x.npy") == 128 + 3 * n, "size"))
    communicator().Barrier()
    of_first(lambda: os.remove(folder / "x.npy") or [])
    ensure_none(wrong)
