"""Collectives in flight: the right answers, many at once, waited for in any order and by any of MPI's functions, beside everything else."""

from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from forms import COLLECTIVE, ROOTED, Case, every, issue, names, own_order, prepare
from mpi4py import MPI
from reference import communicator, ensure, ensure_none, unless
from slowness import slowed

import hpcoll
from hpcoll import ArgumentError

pytestmark = pytest.mark.mpi
BOUNDARY = (2047, 2048, 2049)  # elements of 8 bytes around the longest message that a start may end at once
OPERATORS: dict[str, tuple[Any, Callable[[int], float]]] = {
    "avg": (hpcoll.AVG, lambda n: (n + 1) / 2),
    "premul_sum": (hpcoll.premul_sum(2.0), lambda n: n * (n + 1)),
    "farthest": (hpcoll.reduce_op(lambda a, b: a if abs(a) > abs(b) else b, name="farthest"), lambda n: n),
    "min": (MPI.MIN, lambda n: 1),
    "sum": (MPI.SUM, lambda n: n * (n + 1) / 2),
}


def started(comm: Any, case: Case, **options: Any) -> MPI.Request:
    """A persistent request that runs."""
    request = prepare(comm, case, **options)
    request.Start()
    return request


def free(requests: list[Any]) -> None:
    """Those that stay."""
    for request in requests:
        if isinstance(request, MPI.Prequest):
            request.Free()


WAYS = {"issued": issue, "started": started}


@pytest.mark.smoke
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", [0, 1, 5, *BOUNDARY])
def test_all_at_once(count: int, in_place: bool) -> None:
    """Every collective with every root in flight together; every rank waits in an order of its own."""
    comm = communicator()
    cases = every(comm, count, in_place)
    requests = [issue(comm, case) for case in cases]
    for i in own_order(requests, comm):
        requests[i].Wait()
    ensure_none([case for case in cases if not case.good()])


@pytest.mark.parametrize(
    "way", [way if way == "issued" else pytest.param(way, marks=pytest.mark.once) for way in WAYS]
)
def test_a_mebibyte_each(way: str) -> None:
    comm = communicator()
    cases = every(comm, 1 << 17, roots=[comm.size - 1])
    requests = [WAYS[way](comm, case) for case in cases]
    for i in own_order(requests, comm):
        requests[i].Wait()
    free(requests)
    ensure_none([case for case in cases if not case.good()])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", COLLECTIVE)
def test_algorithms(method: str, way: str) -> None:
    """Each by name, the library's choice and ``native``, in one lane and in many, in place and not, in flight together."""
    comm = communicator()
    more = ((64, True),) if way == "started" or comm.size > 3 else ((None, False), (64, True), ("1K", False))
    crowded = comm.size > 2  # then every wait of MPICH for one of its own costs a time slice
    forms = [(name, segment, in_place) for name in names(method)[crowded:] for segment, in_place in more]
    # sizes that only the root knows are told by a message that waits
    if way == "issued" and method in (
        "Gatherv",
        "Scatterv",
    ):
        with pytest.raises(
            ArgumentError, match=f"I{method.lower()} takes algorithm 'direct' or 'native', got 'binomial'"
        ):
            WAYS[way](comm, Case(comm, method, 101, 0, False), algorithm="binomial")
        forms = [form for form in forms if form[0] in ("direct", "native", None)]
    root = comm.size // 2 if method in ROOTED else 0
    cases = [Case(comm, method, 101, root, in_place) for _, _, in_place in forms]
    requests = [
        WAYS[way](comm, case, algorithm=name, segment=segment)
        for case, (name, segment, _) in zip(cases, forms, strict=True)
    ]
    for i in own_order(requests, comm):
        requests[i].Wait()
    free(requests)
    ensure_none([(form, case) for form, case in zip(forms, cases, strict=True) if not case.good()])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=str)
def test_halves(dtype: Any) -> None:
    comm = communicator()
    methods = (
        "Allreduce",
        "Reduce",
        "Scan",
        "Exscan",
        "Reduce_scatter_block",
        "Bcast",
        "Allgather",
        "Alltoall",
    )
    cases = [
        Case(comm, method, count, 0, in_place, dtype)
        for method in methods
        for count in (5, 9000)
        for in_place in (False, True)
    ]
    requests = [issue(comm, case) for case in cases]
    for i in own_order(requests, comm):
        requests[i].Wait()
    ensure_none([case for case in cases if not case.good()])


@pytest.mark.once
@pytest.mark.parametrize("count", [3, 30_000])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str, count: int) -> None:
    """Rank r contributes r + 1 times the same numbers."""
    comm, (op, factor) = communicator(), OPERATORS[name]
    n, base = comm.size, np.arange(count) % 7 + 1.0
    wanted = base * factor(n)
    x, held = base * (comm.rank + 1), base * (comm.rank + 1)
    found, rooted = np.zeros(count), np.zeros(count)
    requests = [
        comm.Iallreduce(x, found, op),
        comm.Iallreduce(MPI.IN_PLACE, held, op),
        comm.Ireduce(x, rooted, op, root=n - 1),
    ]
    MPI.Request.Waitall(requests)
    wrong = unless(np.array_equal(found, wanted) and np.array_equal(held, wanted), (found, held, wanted))
    ensure_none(wrong + unless(comm.rank < n - 1 or np.array_equal(rooted, wanted), rooted))


def by_one(function: Any) -> Callable[[list[MPI.Request]], None]:
    """Until ``Waitany`` or ``Testany`` finds nothing active any more."""

    def finish(requests: list[MPI.Request]) -> None:
        while True:
            answer = function(requests)
            index, flag = (answer, True) if isinstance(answer, int) else answer
            if flag and index == MPI.UNDEFINED:
                return

    return finish


def by_some(function: Any) -> Callable[[list[MPI.Request]], None]:
    def finish(requests: list[MPI.Request]) -> None:
        while function(requests) is not None:
            pass

    return finish


def until(function: Any) -> Callable[[list[MPI.Request]], None]:
    def finish(requests: list[MPI.Request]) -> None:
        while not function(requests):
            pass

    return finish


def one_after_the_other(requests: list[MPI.Request]) -> None:
    """Wait and Test in turns."""
    for i, request in enumerate(requests):
        while not (request.Test() if i % 2 else request.Wait()):
            pass


FINISH = {
    "Waitall": MPI.Request.Waitall,
    "Testall": until(MPI.Request.Testall),
    "Waitany": by_one(MPI.Request.Waitany),
    "Testany": by_one(MPI.Request.Testany),
    "Waitsome": by_some(MPI.Request.Waitsome),
    "Testsome": by_some(MPI.Request.Testsome),
    "each": one_after_the_other,
}


@pytest.mark.parametrize("number", [1, 13])
@pytest.mark.parametrize("function", FINISH)
def test_mixed_with_the_librarys_requests(function: str, number: int) -> None:
    """Ours, persistent ones of ours, native collectives, sends and receives in one list, in an order of the rank's own."""
    comm = communicator()
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    methods = list(COLLECTIVE)
    cases = [Case(comm, methods[i % 16], (3, 4000)[i % 2]) for i in range(number)]
    sent, received = np.full((number, 600), comm.rank), np.zeros((number, 600), int)
    requests: list[Any] = []
    for i, case in enumerate(cases):
        if i % 8 == 5:  # Testall of MPICH 5.0 fails for persistent collectives of its own
            requests.append(started(comm, case, algorithm="direct"))
        else:
            requests.append(issue(comm, case, algorithm="native" if i % 8 == 3 else None))
        requests += [comm.Isend(sent[i], right, tag=i), comm.Irecv(received[i], left, tag=i)]
    requests = [requests[i] for i in own_order(requests, comm)]
    FINISH[function](requests)
    wrong = [case for case in cases if not case.good()] + unless((received == left).all(), "received")
    ensure_none(wrong)
    assert all(request.Wait() for request in requests)  # what is done stays done
    assert all(request.Test() for request in requests)
    assert all(request == MPI.REQUEST_NULL or isinstance(request, MPI.Prequest) for request in requests)
    free(requests)


@pytest.mark.twice
@pytest.mark.parametrize("beside", ["null", "ended", "not started"])
@pytest.mark.parametrize("function", [*FINISH, "waitall"])
def test_beside_requests_of_which_nothing_is_left(function: str, beside: str) -> None:
    """The last rank comes later, so that ours has not ended as the others look; MPICH 5.0.2 ends programs that do so in `Waitall`."""
    comm = communicator()
    total, other = np.zeros(3), np.zeros(3)
    nothing = MPI.REQUEST_NULL
    if beside != "null":
        nothing = (
            comm.Iallreduce(np.ones(3), other)
            if beside == "ended"
            else comm.Allreduce_init(np.ones(3), other)
        )
        nothing.Wait()
    comm.Barrier()
    if comm.rank == comm.size - 1:
        sleep(0.1)
    request = comm.Iallreduce(np.ones(3), total)
    requests = [request, nothing] if comm.rank % 2 else [nothing, request]
    (FINISH | {"waitall": MPI.Request.waitall})[function](requests)
    ensure((total == comm.size).all() and request == MPI.REQUEST_NULL, (function, beside, total))
    free([one for one in (nothing,) if isinstance(one, MPI.Prequest)])


def test_beside_other_calls() -> None:
    """Blocking collectives, point to point and a second communicator while collectives of both are in flight."""
    comm, other = communicator(), communicator("reversed")
    one, two = every(comm, 700), every(other, 701)
    requests = [
        request for a, b in zip(one, two, strict=True) for request in (issue(comm, a), issue(other, b))
    ]
    x = np.ones(20_000)
    for _ in range(3):
        comm.Allreduce(MPI.IN_PLACE, x, MPI.MAX, algorithm="ring")
        other.Barrier(algorithm="dissemination")
        got = comm.sendrecv(comm.rank, (comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
        assert got == (comm.rank - 1) % comm.size
        requests.append(comm.Ibarrier(algorithm="dissemination"))
    for i in own_order(requests, comm):
        requests[i].Wait()
    ensure_none([case for case in one + two if not case.good()] + unless((x == 1).all(), "allreduce"))


@pytest.mark.skipif(MPI.COMM_WORLD.size < 2, reason="needs somebody to go on without rank 0")
@pytest.mark.parametrize("busy", ["asleep", "computing"])
@pytest.mark.parametrize("form", ["Bcast", "Allreduce", "Allreduce_init"])
def test_progress_without_a_call(form: str, busy: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Rank 0 starts 1 MiB in many lanes and makes no call of MPI until all others have left a file to say that they are through."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("needs MPI.THREAD_MULTIPLE")
    comm = communicator()
    folder = Path(comm.bcast(str(tmp_path_factory.mktemp("through"))))
    case = Case(comm, form.removesuffix("_init"), 1 << 17)
    options = dict(algorithm="ring" if "Allreduce" in form else "tree", segment="64K")
    through = True
    if comm.rank == 0:
        request = (started if "_init" in form else issue)(comm, case, **options)
        end, numbers = monotonic() + slowed(30), np.arange(10_000.0)
        while len(list(folder.iterdir())) < comm.size - 1 and monotonic() < end:
            (sleep(0.002) if busy == "asleep" else np.sin(numbers).sum())
        through = len(list(folder.iterdir())) == comm.size - 1
        request.Wait()
    else:
        sleep(0.05)  # so that rank 0's first turns find nobody
        (started if "_init" in form else issue)(comm, case, **options).Wait()
        (folder / str(comm.rank)).touch()
    ensure(through, "waited for rank 0")
    ensure(case.good(), case)
