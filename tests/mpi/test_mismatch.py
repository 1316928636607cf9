"""Ranks that do not call the same: every one of them raises `MismatchError`, which quotes each rank's call, and none returns data."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import failed_calls
import numpy as np
import pytest
from failed_calls import blocking, caught, in_flight, made, not_refused, persistent, x
from mpi4py import MPI
from reference import SOON_S, ensure, ensure_none, fresh, raised, unless

import hpcoll
from hpcoll import MismatchError
from hpcoll.comm.plans.signature import Signature

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.twice]

Call = tuple[str, tuple[Any, ...]]  # method and arguments
ALL = list(range(1, MPI.COMM_WORLD.size + 1))
COUNTS = (8, 40_000)  # elements that travel in a ring slot, and long ones
PLACE = rf" at \S+{Path(failed_calls.__file__).name}:\d+"  # of a call in one of the forms

# What the last rank calls otherwise: by name, the calls of the others and its own, given a count; and how the text quotes both.
MISMATCHES: dict[str, tuple[Callable[[int], tuple[Call, Call]], str, str]] = {
    "count": (
        lambda n: (("Allreduce", (x(n), x(n))), ("Allreduce", (x(n // 2), x(n // 2)))),
        "Allreduce(float64[{n}], op=SUM)",
        "Allreduce(float64[{half}], op=SUM)",
    ),
    "count of a broadcast": (
        lambda n: (("Bcast", (x(n),)), ("Bcast", (x(n // 2),))),
        "Bcast(float64[{n}], root=0)",
        "Bcast(float64[{half}], root=0)",
    ),
    "type": (
        lambda n: (("Allreduce", (x(n), x(n))), ("Allreduce", (x(n, "i8"), x(n, "i8")))),
        "Allreduce(float64[{n}], op=SUM)",
        "Allreduce(int64[{n}], op=SUM)",
    ),
    "type of what is moved": (
        lambda n: (
            ("Allgather", (x(n), x(n * MPI.COMM_WORLD.size))),
            ("Allgather", (x(n, "i8"), x(n * MPI.COMM_WORLD.size, "i8"))),
        ),
        "Allgather(float64[{n}])",
        "Allgather(int64[{n}])",
    ),
    "bytes": (
        lambda n: (("Bcast", (x(n),)), ("Bcast", ([x(n), MPI.BYTE],))),
        "Bcast(float64[{n}], root=0)",
        "Bcast(uint8[{nbytes}], root=0)",
    ),
    "derived type": (
        lambda n: (("Bcast", (x(n),)), ("Bcast", ([x(n), MPI.LONG.Create_contiguous(n).Commit()],))),
        "Bcast(float64[{n}], root=0)",
        "Bcast(int64[{n}], root=0)",
    ),
    "operator": (
        lambda n: (("Allreduce", (x(n), x(n))), ("Allreduce", (x(n), x(n), MPI.MAX))),
        "Allreduce(float64[{n}], op=SUM)",
        "Allreduce(float64[{n}], op=MAX)",
    ),
    "root": (
        lambda n: (("Bcast", (x(n), 0)), ("Bcast", (x(n), 1))),
        "Bcast(float64[{n}], root=0)",
        "Bcast(float64[{n}], root=1)",
    ),
    "collective": (
        lambda n: (("Allreduce", (x(n), x(n))), ("Bcast", (x(n),))),
        "Allreduce(float64[{n}], op=SUM)",
        "Bcast(float64[{n}], root=0)",
    ),
    "barrier": (
        lambda n: (("Barrier", ()), ("Reduce", (x(n), x(n)))),
        "Barrier()",
        "Reduce(float64[{n}], op=SUM, root=0)",
    ),
    "nothing": (
        lambda n: (("Allreduce", (x(n), x(n))), ("Allreduce", (x(0), x(0)))),
        "Allreduce(float64[{n}], op=SUM)",
        "Allreduce(float64[0], op=SUM)",
    ),
}
NEEDS_ALL = ("Allreduce", "Allgather")  # whose results no rank has before all have come


# In the short run all of these in blocking calls with few elements, and of the other forms, of many elements and on more ranks those that
# are noticed in another way: by what a message carries, by its length, and by what ranks know of each other.
FEW = ("operator", "count", "barrier")


def marks(count: int, name: str, form: Callable[..., None]) -> list[pytest.MarkDecorator]:
    usual = name in FEW or (count == COUNTS[0] and form is blocking)
    return [pytest.mark.once] * (count > COUNTS[0] or form is not blocking or name not in FEW) + [
        pytest.mark.full
    ] * (not usual)


CASES = [
    (count, name, form)
    for count in COUNTS
    for name in MISMATCHES
    for form in (blocking, in_flight, persistent)
]


@pytest.mark.parametrize(
    ("count", "name", "form"), [pytest.param(*case, marks=marks(*case)) for case in CASES]
)
def test_every_rank_raises(count: int, name: str, form: Callable[..., None], way: str) -> None:
    """Soon, on all ranks, with both calls and the line of each."""
    if way == "messages" and count != COUNTS[0]:
        pytest.skip("the MPI library serves it")
    if way == "messages" and form is not blocking and name != "count":
        pytest.skip("one is enough: forms differ in nothing that messages carry")
    comm, (calls, theirs, mine) = made(way), MISMATCHES[name]
    comm.Allreduce(x(3), x(3))  # one that is right before
    method, arguments = calls(count)[comm.rank == comm.size - 1]
    went_on = list[bool]()
    text, seconds = caught(comm, lambda: (form(comm, method, arguments), went_on.append(True)), form)  # type: ignore[func-returns-value]
    quoted = [call.format(n=count, half=count // 2, nbytes=8 * count) for call in (theirs, mine)]
    # Allreduce, Iallreduce, Allreduce_init
    spelled = [re.escape(call[1:]).replace(r"\(", r"(?:_init)?\(", 1) for call in quoted]
    wrong = [one for one in spelled if not re.search(one, text)] + [seconds] * (seconds > SOON_S)
    # who are through before anybody sees it
    two_roots = comm.size == 2 and name == "root" and form is not persistent
    wrong += unless(re.search(PLACE, text) or two_roots, "no place")
    wrong += ["returned"] if went_on and method in NEEDS_ALL and arguments[0].size else []
    ensure_none([(one, text) for one in wrong])


@pytest.mark.once
@pytest.mark.parametrize(("method", "arguments"), [("Bcast", (x(0),)), ("Allreduce", (x(0), x(0)))])
def test_nothing_to_send(method: str, arguments: tuple[Any, ...], way: str) -> None:
    """Calls of no elements have no messages: that they differ shows in the next call."""
    comm = made(way)
    text, seconds = caught(
        comm, lambda: blocking(comm, *(("Scan", (x(0), x(0))) if comm.rank else (method, arguments)))
    )
    right = "Scan(float64[0], op=SUM)" in text and f"{method}(float64[0]" in text
    ensure(right and seconds < SOON_S, (text, seconds))


def started(comm: hpcoll.Communicator, algorithm: str) -> None:
    comm.Allreduce_init(x(100), x(100), algorithm=algorithm).Start()


@pytest.mark.once
def test_persistent_requests_that_are_run_otherwise(way: str) -> None:
    """By other algorithms, or on one rank by the MPI library: told at the first start, not by the hang to come."""
    cases = {
        ("ring", "recursive_doubling"): "algorithm (ring|recursive_doubling)",
        ("native", "ring"): "the MPI library",
    }
    for algorithms, quoted in cases.items():
        comm = made(way)
        algorithm = algorithms[comm.rank == 0]
        text, seconds = caught(comm, partial(started, comm, algorithm))
        placed = re.search(rf" at \S+{Path(__file__).name}:\d+", text)
        ensure(re.search(quoted, text) and placed and seconds < SOON_S, (text, seconds))


@pytest.mark.once
def test_a_name_that_would_drive_a_terminal(way: str) -> None:
    """Whoever named the communicator: errors quote what is printable of it."""
    comm = made(way)
    comm.Set_name("rows\x1b]0;mine\x07\u202e\nof others")
    text, _ = caught(
        comm, lambda: blocking(comm, *(("Bcast", (x(8),)) if comm.rank else ("Allreduce", (x(8), x(8)))))
    )
    ensure("on rows?]0;mine?? of others:\n" in text and text.replace("\n", "").isprintable(), text)


@pytest.mark.parametrize("root", [0, pytest.param(1, marks=pytest.mark.once)])
def test_persistent_requests_that_are_started_in_turn(root: int, way: str) -> None:
    """One on the last rank, another on the others, who wait for it."""
    comm = made(way)
    requests = [comm.Allreduce_init(x(8), x(8)), comm.Bcast_init(x(8), root)]
    request = requests[comm.rank == comm.size - 1]
    text, seconds = caught(
        comm, lambda: (request.Start(), request.Wait(), requests[0].Start(), requests[0].Wait())
    )  # type: ignore[func-returns-value]
    right = "Allreduce_init(float64[8], op=SUM)" in text
    ensure(right and seconds < SOON_S, (text, seconds))


@pytest.mark.parametrize("awaited", [3, pytest.param(5, marks=pytest.mark.once)])
def test_both_ends_of_a_pair_disagree(awaited: int, way: str) -> None:
    """Counts that only two ranks know: what one sends to the other is longer or shorter than what that expects."""
    comm = made(way)
    counts = [4] * comm.size
    if comm.rank == comm.size - 1:
        counts[0] = awaited
    given = [x(4 * comm.size), [4] * comm.size]
    text, seconds = caught(comm, lambda: comm.Alltoallv(given, [x(4 * comm.size + 1), counts]))
    found = re.search(f"came (32 bytes, expected|more bytes than expected,) {8 * awaited}", text)
    ensure(found and seconds < SOON_S, (text, seconds))


@pytest.mark.parametrize("method", ["Reduce_scatter", "Allgatherv"])
@pytest.mark.parametrize(
    "form",
    [
        blocking,
        pytest.param(in_flight, marks=pytest.mark.full),
        pytest.param(persistent, marks=pytest.mark.once),
    ],
)
def test_sizes_of_blocks_that_differ(method: str, form: Callable[..., None], way: str) -> None:
    """And have the same sum."""
    comm = made(way)
    sizes = [2] * comm.size
    if comm.rank == comm.size - 1:
        sizes[:2] = 1, 3
    mine, whole = x(sizes[comm.rank]), x(2 * comm.size)
    text, seconds = caught(
        comm,
        lambda: form(
            comm, method, (whole, mine, sizes) if method == "Reduce_scatter" else (mine, [whole, sizes])
        ),
    )
    init = "_init" if form is persistent else ""
    right = re.search(
        rf"\n  rank {comm.size - 1}: I?{method}{init}\(float64\[{2 * comm.size}\]", text, re.IGNORECASE
    )
    right = right and len(set(re.findall(r", blocks of other sizes \((\w{4})\)", text))) == 2
    ensure(right and seconds < SOON_S, (text, seconds))


def test_different_algorithms(way: str) -> None:
    """Forced on one rank by a keyword: their messages would never meet."""
    comm = made(way)
    text, seconds = caught(
        comm, lambda: comm.Allreduce(x(100), x(100), algorithm="ring" if comm.rank else "recursive_doubling")
    )
    ensure("ring" in text and "recursive_doubling" in text and seconds < SOON_S, (text, seconds))


@pytest.mark.parametrize("count", [1009, pytest.param(100_003, marks=pytest.mark.once)])
def test_different_segments(count: int, way: str) -> None:
    """Of one order of magnitude, which is all that the check has: messages of other lengths tell the rest."""
    comm = made(way)
    segment = 1000 if comm.rank == comm.size - 1 else 640
    text, seconds = caught(
        comm, lambda: comm.Allreduce(x(count), x(count), algorithm="tree", segment=segment)
    )
    ensure(seconds < SOON_S, (text, seconds))


def test_in_place_on_one_rank(way: str) -> None:
    """Is no difference: where a rank has its contribution is its own affair."""
    comm, total, expected = made(way), x(8), np.full(8, MPI.COMM_WORLD.size)
    comm.Allreduce(MPI.IN_PLACE if comm.rank == 0 else x(8), total)
    whole = np.full((comm.size, 3), float(comm.rank))
    comm.Allgather(MPI.IN_PLACE if comm.rank == 0 else np.full(3, float(comm.rank)), whole)
    right = (total == expected).all() and (whole == np.arange(comm.size)[:, None]).all()
    ensure(right, (total, whole))


def test_types_that_are_alike(way: str) -> None:
    """Where nothing is combined: all of one byte, structures of several types, and derived datatypes of the same numbers."""
    comm, wrong = made(way), []
    every_other = MPI.DOUBLE.Create_vector(4, 1, 2).Create_resized(0, 64).Commit()
    structure = MPI.Datatype.Create_struct([1, 2], [0, 2], [MPI.SHORT, MPI.CHAR]).Commit()
    for count in COUNTS:
        data = np.arange(count) % 2 == 0
        for root in range(comm.size):
            got = data.copy() if comm.rank == root else np.zeros(count, bool)
            comm.Bcast([got, MPI.BYTE] if comm.rank == comm.size - 1 else got, root)
            comm.Ibcast(got.view(np.int8) if comm.rank == 0 else got, root).Wait()
            comm.Bcast([got, structure] if comm.rank == 0 else got, root)
            wrong += unless(np.array_equal(got, data), (count, root))
        mine, whole = np.arange(2.0 * count), np.zeros((comm.size, count))
        comm.Allgather([mine, every_other] if comm.rank == 0 else mine[::2].copy(), whole)
        wrong += unless((whole == mine[::2]).all(), count)
    every_other.Free(), structure.Free()
    ensure_none(wrong)


def test_signatures_are_read_back() -> None:
    """All fields of a word, of which none spills into the next."""
    most = Signature(10, 1, 31, (1 << 16) - 1, 31, 1023, (1 << 20) - 1, 1)
    assert Signature.unpacked(most.word) == most
    assert most.word < 1 << 63
    for field in most._fields:
        one = most._replace(**{field: 0})
        assert Signature.unpacked(one.word) == one


SPREAD = MPI.DOUBLE.Create_vector(4, 1, 2).Commit()
COMPARED: dict[
    str, tuple[Call, Call, str]
] = {  # what the library serves, and what travels by MPI messages alone
    "native operator": (
        ("Allreduce", (x(8), x(8), MPI.SUM)),
        ("Allreduce", (x(8), x(8), MPI.MAX)),
        "Allreduce(float64[8], op=MAX)",
    ),
    "root": (("Bcast", (x(8), 0)), ("Bcast", (x(8), 1)), "Bcast(float64[8], root=1)"),
    "derived": (("Bcast", ([x(8), 1, SPREAD], 0)), ("Barrier", ()), "Barrier()"),
}


@pytest.mark.parametrize("name", COMPARED)
def test_every_call_is_compared(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``HPCOLL_CHECK=all``, without shared memory, and by the library's own algorithm too."""
    monkeypatch.setenv("HPCOLL_CHECK", "all")
    monkeypatch.setenv("HPCOLL_SHM", "0")
    comm, total = fresh(), x(8)
    for algorithm in (None, "native"):
        for root in range(comm.size):
            comm.Bcast(
                [total, 1, MPI.DOUBLE.Create_contiguous(8).Commit()] if comm.rank == 1 else total,
                root,
                algorithm=algorithm,
            )
            comm.Reduce(x(8), total if comm.rank == root else None, root=root, algorithm=algorithm)
            comm.Bcast([total, 1, SPREAD], np.int64(root) if comm.rank == 1 else root, algorithm=algorithm)
            comm.Alltoallv([x(comm.size * (comm.rank + 1)), [comm.rank + 1] * comm.size], [x(sum(ALL)), ALL])
    most, last, quoted = COMPARED[name]
    method, arguments = last if comm.rank == comm.size - 1 else most
    error = raised(
        lambda: getattr(comm, method)(*arguments, algorithm="native" if name == "native operator" else None)
    )
    right = (
        isinstance(error, MismatchError) and quoted in str(error) and f"{Path(__file__).name}:" in str(error)
    )
    ensure(right, repr(error))
    ensure_none(not_refused(raised(comm.Barrier), "ranks did not call the same"))
