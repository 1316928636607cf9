"""Ranks that do not call the same: all of them raise `MismatchError`, soon, with each rank's call, and none returns data.

Then memory goes, other communicators go on, and all ranks may recover the one on which it happened.
"""

import contextlib
import gc
import re
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest
from failed_calls import and_on, blocking, caught, in_flight, made, not_refused, persistent, x
from gpu_double import LONG
from gpu_double import communicator as over_double
from internals import free_kept
from mpi4py import MPI
from reference import SOON_S, ensure, ensure_none, fresh, raised, unless
from test_shm import mappings, open_mappings

import hpcoll
from hpcoll import ArgumentError, CollectiveTimeout, MismatchError, TransportError
from hpcoll.comm.plans.signature import Signature
from hpcoll.comm.requests.progress_thread import CONTROL_LOCK, board
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program import progress_fields as progress

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.twice]

WORLD = MPI.COMM_WORLD
LAST = WORLD.rank == WORLD.size - 1
COUNTS = (8, 40_000)  # elements that travel in a ring slot, and long ones
MANY_S = 15  # for 200 errors; where each is looked into, they take a minute

Call = Callable[[Any], object]


def call(method: str, *arguments: Any, form: Callable[..., None] = blocking) -> Call:
    return lambda comm: form(comm, method, arguments)


def ring(comm: hpcoll.Communicator) -> hpcoll.Communicator:
    """A communicator of neighbours."""
    return comm.Create_cart([comm.size], [True])


def differ(comm: Any) -> Callable[[], object]:
    """Return a call of which rank 0 makes another."""
    return lambda: comm.Allreduce(x(8), x(8), MPI.MAX if comm.rank else MPI.SUM)


class Row(NamedTuple):
    """A mismatch.

    Attributes:
        others: What all ranks but the last call.
        last: What the last one calls.
        told: What is in the error on all ranks.
        data: Whether a rank that went on would have got data.
        warm: Whether all ranks have made both calls before.
        make: Makes the communicator of another.
    """

    others: Call
    last: Call
    told: tuple[str, ...]
    data: bool = False
    warm: bool = False
    make: Callable[[Any], Any] = lambda comm: comm


def reduction(count: int, form: Callable[..., None] = blocking, *op: Any, dtype: str = "f8") -> Call:
    return call("Allreduce", x(count, dtype), x(count, dtype), *op, form=form)


def in_form(count: int, form: Callable[..., None]) -> dict[str, Row]:
    """What is noticed in different ways: by what a message carries, by its length, by what ranks know of each other."""
    init = "_init" if form is persistent else ""
    told, half = (f"llreduce{init}(float64[{n}], op=SUM)" for n in (count, count // 2))
    right = reduction(count, form)
    barrier = call("Barrier", form=form)
    return {
        "operator": Row(right, reduction(count, form, MPI.MAX), (told, f"float64[{count}], op=MAX)"), True),
        "count": Row(right, reduction(count // 2, form), (told, half), True),
        "barrier": Row(
            barrier,
            call("Reduce", x(count), x(count), form=form),
            (f"arrier{init}()", f"educe{init}(float64["),
        ),
    }


def of_sizes(method: str, form: Callable[..., None]) -> Row:
    """Blocks of other sizes that have the same sum."""

    def run(comm: Any) -> None:
        sizes = [2] * comm.size
        if LAST:
            sizes[:2] = 1, 3
        mine, whole = x(sizes[comm.rank]), x(2 * comm.size)
        form(comm, method, (whole, mine, sizes) if method == "Reduce_scatter" else (mine, [whole, sizes]))

    return Row(
        run,
        run,
        (
            f"{method[1:]}{'_init' * (form is persistent)}(float64[{2 * WORLD.size}]",
            ", blocks of other sizes (",
        ),
    )


def pair(awaited: int) -> Row:
    """Counts that only two ranks know: what one sends to the other is longer or shorter than what that expects."""

    def run(counts: list[int]) -> Call:
        given = [x(4 * WORLD.size), [4] * WORLD.size]
        return call("Alltoallv", given, [x(4 * WORLD.size + 1), counts])

    others = [4] * WORLD.size
    return Row(run(others), run([awaited, *others[1:]]), (f" {8 * awaited}",))


def by(algorithm: str, count: int = 100, **more: Any) -> Call:
    return lambda comm: comm.Allreduce(x(count), x(count), algorithm=algorithm, **more)


def started(algorithm: str) -> Call:
    return lambda comm: comm.Allreduce_init(x(100), x(100), algorithm=algorithm).Start()


def function(combine: Callable[[Any, Any], Any]) -> Call:
    return lambda comm: comm.Allreduce(x(8), x(8), hpcoll.reduce_op(combine))


N = WORLD.size
SUM8, FLIES8, PLANNED8 = (
    f"{name}(float64[8], op=SUM)" for name in ("Allreduce", "Iallreduce", "Allreduce_init")
)
BCAST, ZEROS = "Bcast(float64[8], root=0)", "zeros with shape (3,) of float64"
SUMS = {blocking: SUM8, in_flight: FLIES8, persistent: PLANNED8}
SPREAD = MPI.DOUBLE.Create_vector(4, 1, 2).Commit()


def zeros(comm: Any) -> object:
    return comm.zeros(3)


def forms(others: Callable[..., None], last: Callable[..., None]) -> Row:
    """The same call in two forms, whose messages never meet."""
    return Row(reduction(8, others), reduction(8, last), (SUMS[others], SUMS[last]), warm=True)


def neighbours(others: Call, last: Call, *told: str) -> Row:
    return Row(others, last, told, make=ring)


def unused(last: Call) -> Row:
    """In the first call on a communicator, which is in flight."""
    return Row(
        reduction(36, in_flight), last, ("llreduce(float64[36], op=SUM)",), make=lambda comm: comm.Dup()
    )


FIRST = in_form(COUNTS[0], blocking)
ROWS = FIRST | {
    "count of a broadcast": Row(
        call("Bcast", x(8)), call("Bcast", x(4)), (BCAST, "Bcast(float64[4], root=0)")
    ),
    "type": Row(reduction(8), reduction(8, dtype="i8"), (SUM8, "Allreduce(int64[8], op=SUM)"), True),
    "type of what is moved": Row(
        call("Allgather", x(8), x(8 * N)),
        call("Allgather", x(8, "i8"), x(8 * N, "i8")),
        ("Allgather(float64[8])", "Allgather(int64[8])"),
        True,
    ),
    "bytes": Row(call("Bcast", x(8)), call("Bcast", [x(8), MPI.BYTE]), (BCAST, "Bcast(uint8[64], root=0)")),
    "derived type": Row(
        call("Bcast", x(8)),
        call("Bcast", [x(8), MPI.LONG.Create_contiguous(8).Commit()]),
        (BCAST, "Bcast(int64[8], root=0)"),
    ),
    # who are through before anybody sees it have no place
    "root": Row(call("Bcast", x(8), 0), call("Bcast", x(8), 1), (BCAST, "Bcast(float64[8], root=1)")),
    "collective": Row(reduction(8), call("Bcast", x(8)), (SUM8, BCAST)),
    "nothing": Row(reduction(8), reduction(0), (SUM8, "Allreduce(float64[0], op=SUM)")),
    # calls of no elements have no messages: that they differ shows in the next call
    "nothing of a broadcast": Row(
        call("Bcast", x(0)), call("Scan", x(0), x(0)), ("Bcast(float64[0]", "Scan(float64[0], op=SUM)")
    ),
    "longer than expected": pair(3),
    "shorter than expected": pair(5),
    "blocks that are combined": of_sizes("Reduce_scatter", blocking),
    "blocks that are gathered": of_sizes("Allgatherv", persistent),
    "algorithm": Row(by("recursive_doubling"), by("ring"), ("recursive_doubling", "ring")),
    # of one order of magnitude, which is all that the check has: messages of other lengths tell the rest
    "segment": Row(by("tree", 1009, segment=640), by("tree", 1009, segment=1000), ()),
    "algorithm of a request": Row(started("recursive_doubling"), started("ring"), ("algorithm r", ".py:")),
    "request of the library": Row(started("ring"), started("native"), ("the MPI library", ".py:")),
    "function": Row(function(lambda a, b: a + b), function(lambda a, b: a * b), ("op=a function",)),
    "blocking, in flight": forms(blocking, in_flight),
    "in flight, persistent": forms(in_flight, persistent),
    "zeros, blocking": Row(zeros, reduction(8), (ZEROS, SUM8), warm=True),
    "a first persistent request": Row(
        reduction(8), reduction(8, persistent), (f"rank {N - 1}: a persistent request", SUM8)
    ),
    # the root has sent what there is room for
    "a root without room": Row(
        lambda comm: (
            comm.Bcast(x(300_000), algorithm="binomial") if comm.rank == 0 else reduction(8, in_flight)(comm)
        ),
        reduction(8, in_flight),
        ("Bcast(float64[300000], root=0)", FLIES8),
    ),
    "neighbours: method": neighbours(
        call("Neighbor_alltoall", x(2), x(2)),
        call("Neighbor_allgather", x(1), x(2)),
        "Neighbor_alltoall(float64[1])",
        "Neighbor_allgather(float64[1])",
    ),
    "neighbours: block": neighbours(
        call("Neighbor_alltoallv", [x(4), [2, 2]], [x(4), [2, 2]]),
        call("Neighbor_alltoallv", [x(2), [1, 1]], [x(4), [2, 2]]),
        "expected 16",
    ),
    "neighbours: no neighbourhood": neighbours(
        call("Neighbor_alltoall", x(2), x(2)),
        reduction(2),
        "Neighbor_alltoall(float64[1])",
        "Allreduce(float64[2]",
    ),
    "objects: method": Row(
        lambda comm: comm.allreduce(1),
        lambda comm: comm.allgather(1),
        ("allreduce(obj) at", "allgather(obj) at"),
    ),
    "objects: root": Row(
        lambda comm: comm.gather(1), lambda comm: comm.gather(1, root=1), ("gather(obj, root=1)",)
    ),
    "objects: an array": Row(
        call("Allgather", x(2), x(2 * N)), lambda comm: comm.allgather(1), ("Allgather(float64[2])",)
    ),
    "unused: operator": unused(reduction(36, in_flight, MPI.MAX)),
    "unused: blocking": unused(reduction(36)),
    "unused: barrier": unused(call("Barrier")),
}
IN_FORMS = {
    f"{name}, {form.__name__} of {count}": row
    for count, form in ((COUNTS[1], blocking), (COUNTS[0], in_flight), (COUNTS[0], persistent))
    for name, row in in_form(count, form).items()
}
TWICE = (
    "operator",
    "barrier",
    "shorter than expected",
    "algorithm",
    "a root without room",
    "objects: method",
)
CASES = [(name, "shared memory") for name in ROWS | IN_FORMS] + [
    (name, "messages")
    for name in (*ROWS, f"count, {in_flight.__name__} of 8", f"count, {persistent.__name__} of 8")
]


@pytest.mark.parametrize(
    ("name", "way"),
    [pytest.param(*case, marks=() if case[0] in TWICE else pytest.mark.once) for case in CASES],
    indirect=["way"],
)
def test_every_rank_raises(name: str, way: str) -> None:
    row = (ROWS | IN_FORMS)[name]
    comm, returned = made(way), list[str]()
    comm.Allreduce(x(3), x(3))  # one that is right before
    comm = row.make(comm)
    for one in (row.others, row.last) * (2 * row.warm):
        one(comm)

    def run() -> None:
        (row.last if LAST else row.others)(comm)
        returned.extend(["returned"] * row.data)

    text, seconds = caught(comm, run)
    told = " ".join(text.split())
    wrong = [one for one in row.told if one not in told] + [f"{seconds} s"] * (seconds > SOON_S)
    wrong += unless(re.search(r" at \S+\.py:\d+", told), "no place")
    ensure_none([(one, text) for one in wrong + returned])


@pytest.mark.parametrize("root", [0, pytest.param(1, marks=pytest.mark.once)])
def test_persistent_requests_that_are_started_in_turn(root: int, way: str) -> None:
    """One on the last rank, another on the others, who wait for it."""
    comm = made(way)
    requests = [comm.Allreduce_init(x(8), x(8)), comm.Bcast_init(x(8), root)]

    def run() -> None:
        for request in (requests[LAST], requests[0]):
            request.Start()
            request.Wait()

    text, seconds = caught(comm, run)
    ensure(PLANNED8 in text and seconds < SOON_S, (text, seconds))


@pytest.mark.once
def test_a_name_that_would_drive_a_terminal() -> None:
    """Whoever named the communicator: errors quote what is printable of it."""
    comm = made("shared memory")
    comm.Set_name("rows\x1b]0;mine\x07\u202e\nof others")
    text, _ = caught(comm, lambda: (ROWS["collective"].last if LAST else ROWS["collective"].others)(comm))
    ensure("on rows?]0;mine?? of others:\n" in text and text.replace("\n", "").isprintable(), text)


def test_signatures_are_read_back() -> None:
    """All fields of a word, of which none spills into the next."""
    most = Signature(10, 1, 31, (1 << 16) - 1, 31, 1023, (1 << 20) - 1, 1)
    assert most.word < 1 << 63
    for one in (most, *(most._replace(**{field: 0}) for field in most._fields)):
        assert Signature.unpacked(one.word) == one


@pytest.mark.parametrize(
    ("row", "options"),
    [
        (FIRST["operator"], {"algorithm": "native"}),
        (ROWS["root"], {}),
        (Row(call("Bcast", [x(8), 1, SPREAD]), call("Barrier"), ("Barrier()",)), {}),
    ],
    ids=["operator", "root", "derived"],
)
def test_every_call_is_compared(row: Row, options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``HPCOLL_CHECK=all``, without shared memory, and by the library's own algorithm too."""
    monkeypatch.setenv("HPCOLL_CHECK", "all")
    monkeypatch.setenv("HPCOLL_SHM", "0")
    if options:
        monkeypatch.setenv("HPCOLL_ALLREDUCE", "native")
    comm, total, sizes = fresh(), x(8), [rank + 1 for rank in range(N)]
    eight = MPI.DOUBLE.Create_contiguous(8).Commit()
    for algorithm in (None, "native"):
        for root in range(comm.size):
            comm.Bcast([total, 1, eight] if comm.rank == 1 else total, root, algorithm=algorithm)
            comm.Reduce(x(8), total if comm.rank == root else None, root=root, algorithm=algorithm)
            comm.Bcast([total, 1, SPREAD], np.int64(root) if comm.rank == 1 else root, algorithm=algorithm)
            comm.Alltoallv([x(N * (comm.rank + 1)), [comm.rank + 1] * N], [x(sum(sizes)), sizes])
    error = raised(lambda: (row.last if LAST else row.others)(comm))
    told = isinstance(error, MismatchError) and all(one in str(error) for one in row.told)
    ensure(told and ".py:" in str(error), repr(error))
    ensure_none(not_refused(raised(comm.Barrier), "ranks did not call the same"))


@pytest.mark.double(forgives=("races", "failures"))
@pytest.mark.once
@pytest.mark.parametrize("form", [blocking, in_flight, persistent])
def test_kinds_of_memory(form: Callable[..., None], double: Any) -> None:
    """One rank passes an array in GPU memory where the others' are on the host, on a communicator that was not made for that."""
    comm = over_double()
    host = np.ones(LONG, np.float32), np.zeros(LONG, np.float32)
    gpu = double.Array(LONG).fill(1), double.Array(LONG).fill(0)
    comm.Barrier()
    for arrays in (host, gpu) * 2:
        form(comm, "Allreduce", arrays)
    text, seconds = caught(comm, lambda: form(comm, "Allreduce", gpu if LAST else host))
    right = re.search("on the GPU|arrays in GPU memory at", text) and f"(float32[{LONG}], op" in text
    ensure(right and seconds < SOON_S, (text, seconds))


@pytest.mark.parametrize("form", [in_flight, persistent])
def test_waitall(form: Callable[..., None], way: str) -> None:
    """A rank in the MPI library's own wait, which says nothing of itself."""
    comm = made(way)
    planned = comm.Allreduce_init(x(8), x(8)) if form is persistent else None
    begun = time.monotonic()
    if LAST:
        if planned is not None:
            planned.Start()
        request = planned or comm.Iallreduce(x(8), x(8))
        error, expected = raised(lambda: MPI.Request.Waitall([request])), MPI.Exception
    else:
        error, expected = raised(lambda: comm.Bcast(x(8), WORLD.size - 1)), MismatchError
    seconds, quoted = time.monotonic() - begun, LAST or SUMS[form] in str(error)
    ensure(isinstance(error, expected) and quoted and seconds < SOON_S, (repr(error), seconds))
    ensure_none(not_refused(raised(comm.Barrier)))


@pytest.mark.once
@pytest.mark.parametrize("meanwhile", ["computes", "waits for something else"])
def test_in_flight_that_nobody_waits_for_yet(meanwhile: str, way: str) -> None:
    """A rank that does something else while its call is in flight comes to the others' blocking one later: nothing is wrong."""
    comm, total, sums, request = made(way), np.zeros(8), np.zeros(8), None
    if LAST:
        request = comm.Iallreduce(x(8), total)
        if meanwhile == "computes":
            time.sleep(0.4)
        else:
            threading.Timer(0.4, lambda: MPI.COMM_SELF.Send(x(1), 0)).start()
            MPI.Request.Waitall([MPI.COMM_SELF.Irecv(x(1))])
    comm.Allreduce(x(8), sums)
    (request or comm.Iallreduce(x(8), total)).Wait()
    ensure((total == comm.size).all() and (sums == comm.size).all(), (total, sums))


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


@pytest.mark.once
def test_freed_after_it() -> None:
    """Memory that ranks share goes at once, not when garbage is collected."""

    def fail_and_free() -> None:
        comm = made("shared memory")
        request = comm.Iallreduce(x(8), x(8))
        MPI.COMM_WORLD.Barrier()  # else who is late hears of it earlier
        try:
            and_on(comm, differ(comm))
        except MismatchError:
            comm.Free()
        with contextlib.suppress(TransportError):
            request.Wait()

    made("shared memory").Free()
    free_kept()
    before = mappings()
    gc.disable()
    try:
        for _ in range(4):
            fail_and_free()
        free_kept()  # what was made ahead for others
        after = open_mappings()
    finally:
        gc.enable()
    ensure(after == before, (before, after))


def test_freed_with_it_in_flight(way: str) -> None:
    """Where `Free` finds it out, what is shared does not go to the next communicator of these ranks, either."""
    comm, wrong, total = made(way), list[str](), np.zeros(1)
    comm.Iallreduce(x(1), x(1)).Wait()
    started = list[MPI.Request]()
    # who is late is told here
    error = raised(lambda: started.append(comm.Iallreduce(x(8), x(8), MPI.MAX if comm.rank else MPI.SUM)))
    at_free = raised(comm.Free)
    error = error or at_free or raised(started[0].Wait)
    wrong += unless(isinstance(error, MismatchError), repr(error))
    for _ in range(2):
        other = hpcoll.Communicator(MPI.COMM_WORLD.Dup())
        error = raised(lambda to=other: to.Allreduce(np.ones(1), total))
        wrong += unless(error is None and total[0] == MPI.COMM_WORLD.size, f"{total}, {error!r}")
        other.Free()
    ensure_none(wrong)


def test_recover(way: str) -> None:
    """All ranks may go on with the same communicator; what was in flight is given up, and what was planned is refused."""
    comm, total, wrong = made(way), np.zeros(1), []
    for turn in range(3):
        left = comm.Ireduce(x(3), x(3), root=turn % comm.size) if comm.rank else None  # rank 0 never calls it
        planned = comm.Allreduce_init(x(3), x(3))
        caught(comm, differ(comm))
        comm.recover()
        for _ in range(10):
            comm.Allreduce(np.ones(1), total)
            wrong += unless(total[0] == comm.size, (turn, total[0]))
            comm.Iallreduce(np.ones(1), total).Wait()
        refused = raised(planned.Start)
        wrong += unless(
            isinstance(refused, ArgumentError) and "it was recovered" in str(refused), (turn, repr(refused))
        )
        if left is not None:
            given_up = raised(left.Wait)  # others than its root may have been done before
            done = given_up is None and comm.rank != turn % comm.size
            wrong += unless(done or isinstance(given_up, TransportError), (turn, repr(given_up)))
    ensure_none(wrong)


@pytest.mark.once
def test_many_in_flight(way: str) -> None:
    """Each of them raises, and all together soon: what has happened is found out once."""
    comm, requests = made(way), list[MPI.Request]()
    comm.Iallreduce(x(1), x(1)).Wait()
    with contextlib.suppress(MismatchError):  # who is late is told as it starts one
        for _ in range(200):
            requests.append(comm.Iallreduce(x(8), x(8), MPI.MAX if comm.rank else MPI.SUM))
    begun = time.monotonic()
    wrong = [
        error
        for error in map(raised, [request.Wait for request in requests])
        if not isinstance(error, MismatchError)
    ]
    seconds = time.monotonic() - begun
    ensure_none([*map(repr, wrong[:3])] if wrong else [seconds] if seconds > MANY_S else [])


def test_memory_of_messages_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the MPI library has yet to send of a call that was given up stays, though the program lets go of it."""
    monkeypatch.setenv("HPCOLL_SHM", "0")
    comm, late = fresh(), MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1
    arrays = [np.ones(1 << 20)]
    for _ in range(3):  # found by its arguments alone from the second one on
        comm.Bcast(arrays[0])
    MPI.COMM_WORLD.Barrier()
    if late:
        MPI.COMM_WORLD.Barrier()
    error = raised(lambda: comm.Bcast(arrays[0], timeout=0.3))
    if not late:
        MPI.COMM_WORLD.Barrier()
    # what was sent to it may be there before the news
    gave_up = isinstance(error, CollectiveTimeout) or (late and error is None)
    wrong, there = unless(gave_up, repr(error)), weakref.ref(arrays.pop())
    del error
    gc.collect()
    ensure_none(wrong)
    assert any(MPI.COMM_WORLD.allgather(there() is not None))


def test_receives_are_cancelled_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile no thread of hpcoll's advances what is in flight elsewhere, or receives control messages: Open MPI loses messages then."""
    monkeypatch.setenv("HPCOLL_SHM", "0")
    comm, other, total, found = fresh(), fresh(), np.zeros(1), list[tuple[bool, bool]]()
    late, error = comm.rank == comm.size - 1, None
    for one in (comm, other):
        one.Iallreduce(np.ones(1), total).Wait()
        one.Barrier()
    request = None if late else other.Iallreduce(np.ones(1), total)

    stop = HostEngine.stop

    def noted(engine: HostEngine, most_s: float) -> bool:
        slots = board().slots[: board().words[progress.HIGH], progress.OWNER]
        with ThreadPoolExecutor(1) as pool:
            found.append(
                (bool((slots == 1).all()), not pool.submit(CONTROL_LOCK.acquire, blocking=False).result())
            )
        return stop(engine, most_s)

    with monkeypatch.context() as patch:
        patch.setattr(HostEngine, "stop", noted)
        if not late:
            error = raised(lambda: comm.Barrier(timeout=0.3))
        MPI.COMM_WORLD.Barrier()
    if request is None:
        request = other.Iallreduce(np.ones(1), total)
    request.Wait()
    wrong = unless(
        late or (found and all(map(all, found)) and isinstance(error, CollectiveTimeout)),
        (found, repr(error)),
    )
    ensure_none(wrong if total[0] == comm.size else [*wrong, total])
