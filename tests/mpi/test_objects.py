"""The lower-case collectives on Python objects: mpi4py's results, whatever the sizes, and an error on all ranks instead of a hang."""

import functools
import operator
import os
import pickle
import random
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest
from failed_calls import made
from mpi4py import MPI
from reference import communicator, ensure, ensure_none, fresh, raised, unless

from hpcoll import ArgumentError, CollectiveTimeout, Communicator, MismatchError
from hpcoll.comm.arguments.cells import cell_nbytes

pytestmark = [pytest.mark.mpi(min_size=1), pytest.mark.twice]

METHODS = ("bcast", "scatter", "gather", "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan")
ROOTED = ("bcast", "scatter", "gather", "reduce")
ROUNDS = 60


class Unpicklable:
    """An object that refuses to be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("no pickle of this")


class Unloadable:
    """An object that refuses to be loaded on some ranks."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
        raise LookupError("not here")


def drawn(dice: random.Random, depth: int = 0) -> Any:
    """Return a random object, with lengths around those of cells and of buffers that travel out of band."""
    room = cell_nbytes(dice.choice(METHODS), MPI.COMM_WORLD.size)
    array = np.arange(dice.choice([0, 3, 1000, 4096, 20000]), dtype=dice.choice(["f8", "i2", "c16"]))
    array.flags.writeable = dice.random() < 0.7
    plain = [
        None,
        True,
        dice.random(),
        dice.randrange(-(10**30), 10**30),
        complex(0, dice.random()),
        np.float32(dice.random()),
        "ä" * dice.choice([0, 3, 5000]),
        bytes(dice.choice([0, 16, room - 60, room - 34, room - 33, room, 3 * room])),
        array,
        bytearray(dice.choice([3, 140000])),
        np.asfortranarray(np.ones((50, 100)))[:, :: dice.choice([1, 2])],
    ]
    if depth < 2 and dice.random() < 0.5:
        return dice.choice([list, tuple])(drawn(dice, depth + 1) for _ in range(dice.choice([0, 1, 4])))
    return dice.choice(plain)


def called(comm: MPI.Intracomm, method: str, obj: Any, root: int, **more: Any) -> Any:
    """Call a method; the operator neither commutes nor associates."""
    given = [obj] * comm.size if method in ("scatter", "alltoall") else obj
    if method in ("reduce", "allreduce", "scan", "exscan"):
        more["op"] = lambda one, other: (one, other)
    if method in ROOTED:
        more["root"] = root
    return getattr(comm, method)(given if method != "scatter" or comm.rank == root else None, **more)


def told(obj: Any) -> Any:
    """Return an object with its types, and whether its arrays can be written."""
    if isinstance(obj, np.ndarray):
        return obj.dtype.str, obj.shape, obj.flags.writeable, obj.tobytes()
    return [type(obj), *map(told, obj)] if isinstance(obj, list | tuple) else (type(obj), obj)


@pytest.fixture(params=["pickle", "pickle 4", "another serializer"])
def serializer(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set `mpi4py.MPI.pickle` as a program may."""
    theirs: Any = MPI.pickle
    if request.param == "pickle 4":
        theirs.PROTOCOL = 4
    elif request.param == "another serializer":
        theirs.__init__(lambda obj: b"ours" + pickle.dumps(obj), lambda data: pickle.loads(bytes(data)[4:]))
    yield
    theirs.__init__()


@pytest.mark.usefixtures("serializer")
def test_results_are_those_of_mpi4py(way: str) -> None:
    """Random objects of all sizes, through all methods, with all serializers."""
    comm, plain, both = made(way), MPI.COMM_WORLD, random.Random(1)
    own, wrong = random.Random(comm.rank), list[Any]()
    for _ in range(ROUNDS):
        method, root, obj = both.choice(METHODS), both.randrange(comm.size), drawn(own)
        ours, theirs = (told(called(one, method, obj, root)) for one in (comm, plain))
        wrong += unless(ours == theirs, (method, root, ours, theirs))
    ensure_none(wrong)


def test_a_call_is_counted_once() -> None:
    """The ledger has a line for the method, with the bytes of long objects, however they travel."""
    comm = fresh()
    comm.ledger.clear()
    for obj in ("a", np.zeros(1 << 17)):
        comm.allgather(obj)
    (row,) = [one for one in comm.ledger.rows() if one.calls]
    assert (row.operation, row.calls, row.element) == ("allgather", 2, "object")
    assert row.nbytes >= 8 << 17


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("size", [1, 300000], ids=["short", "long"])
@pytest.mark.parametrize("method", METHODS)
def test_no_pickle_on_one_rank(method: str, size: int) -> None:
    """The rank raises its own error, ranks that wait for its object one that names it, and the communicator stays usable."""
    comm = fresh()
    bad = 0 if method in ("bcast", "scatter") else comm.size - 1
    error = raised(lambda: called(comm, method, Unpicklable() if comm.rank == bad else "a" * size, 0))
    rooted = method in ("gather", "reduce") and comm.rank not in (0, bad)
    expected = (
        {"TypeError"} if comm.rank == bad else {"ArgumentError", "NoneType"} if rooted else {"ArgumentError"}
    )
    named = comm.rank == bad or error is None or f"rank {bad} raised TypeError: no pickle" in str(error)
    fits = type(error).__name__ in expected and named
    ensure(fits, (comm.rank, repr(error)))
    assert comm.allreduce(1) == comm.size


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("size", [1, 300000], ids=["short", "long"])
def test_operators_and_loads_that_raise(size: int) -> None:
    """No rank waits for one whose operator, or whose object's own code, has raised."""
    comm = fresh()
    errors = [raised(lambda: comm.allreduce("a" * size, op=lambda one, other: one / other))]
    errors += [raised(lambda: comm.allgather((Unloadable(), "a" * size)))]
    last = comm.rank == comm.size - 1
    fits = isinstance(errors[0], TypeError | ArgumentError) and isinstance(errors[1], LookupError) == last
    ensure(fits, (comm.rank, errors))
    assert comm.allreduce(1) == comm.size


class Odd:
    """An object of a class of the program's."""

    def __init__(self, number: int) -> None:
        self.number = number


def _merged(one: list[str], other: list[str]) -> list[str]:
    """Return a list in the order of a set, which is each process's own."""
    return list({*one, *other})


def _picked(one: Any, other: Any) -> Any:
    return random.choice([one, other])


def _by_address(one: Any, other: Any) -> Any:
    return max(one, other, key=id)


class Tree(NamedTuple):
    """A combination, with a number that no other has."""

    number: float
    one: Any
    other: Any


def _node(one: Any, other: Any) -> Tree:
    return Tree(random.random(), one, other)


def blocks(tree: Any, first: int = 0) -> dict[tuple[int, int], float]:
    """Return the numbers of a tree's combinations by the first rank, and the one behind the last, that are in them."""
    if not isinstance(tree, Tree):
        return {}
    left = leaves(tree.one)
    return {
        (first, first + leaves(tree)): tree.number,
        **blocks(tree.one, first),
        **blocks(tree.other, first + left),
    }


def leaves(tree: Any) -> int:
    return leaves(tree.one) + leaves(tree.other) if isinstance(tree, Tree) else 1


def shape(tree: Any) -> Any:
    return (shape(tree.one), shape(tree.other)) if isinstance(tree, Tree) else tree


def test_all_ranks_get_one_object_where_it_depends_on_the_process(way: str) -> None:
    """Random objects, short and long, and operators that give each process another object."""
    comm, both, own, wrong = made(way), random.Random(2), random.Random(comm_seed()), list[Any]()
    for i in range(ROUNDS // 2):
        op, long = both.choice([_merged, _picked, _by_address]), both.choice([1, 1, 40000])
        objects: list[Any] = [
            [f"{own.random()}" * long for _ in range(5)],
            {f"{comm.rank}": [*"abc"]},
            own.random(),
            Odd(comm.rank),
        ]
        made_of = objects[0] if op is _merged else both.choice([objects, objects[1:], objects[2:]])[0]
        found = comm.allreduce(made_of, op=op)
        every = MPI.COMM_WORLD.allgather(pickle.dumps(found if not isinstance(found, Odd) else found.number))
        wrong += unless(len(set(every)) == 1, (i, op))
    ensure_none(wrong)


def comm_seed() -> int:
    return 100 + MPI.COMM_WORLD.rank


class Length(float):
    """A float of a type of its own."""


@pytest.mark.parametrize("strange", [0.5, 7, Length(2), None, float("nan"), -0.0])
def test_long_lists_of_floats(strange: Any) -> None:
    """Compiled code writes them where they hold nothing else; what they hold, and of what type, stays in any case."""
    comm = communicator()
    every = [[rank + i / 7 for i in range(400)] for rank in range(comm.size)]
    for numbers in every:
        numbers[200] = strange
    found = [
        comm.bcast(every[comm.rank]),
        *comm.allgather(every[comm.rank]),
        comm.allreduce(every[comm.rank]),
    ]
    wanted = [every[0], *every, [one for numbers in every for one in numbers]]
    ensure([repr(one) for one in found] == [repr(one) for one in wanted], strange)
    ensure({type(one[200]) for one in found} == {type(strange)}, strange)


@pytest.mark.mpi(min_size=2)
@pytest.mark.once
def test_ranks_combine_by_themselves_what_cannot_differ() -> None:
    """Then there is no second message."""
    comm, entered = fresh(), set[str]()
    array, floats = np.zeros(10), [0.5] * 300
    alike: list[tuple[Any, Any]] = [
        (1.5, MPI.SUM),
        (("x", np.zeros(9000)), MPI.SUM),
        (floats, MPI.SUM),
        (floats, MPI.MAX),
        ({"a": [1, (2.5, None, b"x", True, 1 << 70)], 3: "ä" * 300}, lambda a, b: {**a, **b}),
        (array, np.maximum),
        ((1.5, 2), MPI.MINLOC),
        (["a" * 200000], MPI.SUM),
        ({"s": 1.0, "n": [2]}, lambda a, b: {"s": a["s"] + b["s"], "n": [*a["n"], *b["n"]]}),
    ]
    unlike: list[tuple[Any, Any]] = [
        ({1}, operator.or_),
        (Odd(1), lambda a, b: a),
        ({"a": Odd(1)}, lambda a, b: {**a, **b}),
        (1, _picked),
        (["x"], lambda a, b: [*{*a, *b}]),
        (1, lambda a, b: a is b),
        (1, lambda a, b, rank=comm.rank: a + rank),
    ]
    wrong = list[Any]()
    for shared, cases in enumerate((alike, unlike)):
        for obj, op in cases:
            entered.clear()
            sys.setprofile(lambda frame, *_: entered.add(frame.f_code.co_name))
            comm.allreduce(obj, op=op)
            sys.setprofile(None)
            wrong += unless(("share" in entered) == shared, (obj, op))
    ensure_none([str(one) for one in wrong])


def _one(one: Any, other: Any) -> Any:
    return one


class Untold(Exception):  # noqa: N818
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        return str(self)


ODD = [Untold(), FileNotFoundError(os.fsdecode(b"/data/caf\xe9.h5")), ValueError("\0\x1b" + "x" * 10**7)]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("error", ODD, ids=["none", "no UTF-8", "10 MB"])
def test_errors_with_odd_texts(error: Exception) -> None:
    """mpi4py's error on the rank whose object failed, another one elsewhere, and the communicator stays usable."""

    class Bad:
        def __reduce__(self) -> Any:
            raise error

    comm = fresh()
    for method in ("bcast", "allgather", "allreduce"):
        got = raised(lambda: getattr(comm, method)(Bad() if comm.rank == 0 else 1))  # noqa: B023
        fits = (
            got is error
            if comm.rank == 0
            else type(got) is ArgumentError and f"rank 0 raised {type(error).__name__}: " in str(got)
        )
        ensure(fits, (comm.rank, str(type(got))))
        assert comm.allreduce(1) == comm.size


def test_a_name_that_the_library_has_cut() -> None:
    """In the middle of a character: calls of all forms work."""
    comm, one = fresh(), np.ones(1)
    comm.Set_name("é" * 70)
    comm.Allreduce(MPI.IN_PLACE, one)
    comm.Iallreduce(MPI.IN_PLACE, one).Wait()
    assert comm.bcast(comm.allreduce(1)) == comm.size
    comm.Dup().Barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("method", ["reduce", "allreduce", "scan", "exscan"])
def test_operators_that_differ(way: str, method: str) -> None:
    """All ranks hear of it, at the latest in their next call, and the operators are named."""
    pairs: list[tuple[Any, Any, str]] = [
        (MPI.SUM, MPI.MAX, "op=MAX"),
        (_one, _picked, "op=a function ("),
        (MPI.SUM, lambda a, b: a + b, "op=a function ("),
        (lambda a, b: a, lambda a, b: b, "op=a function ("),
        (max, min, "op=a function ("),
    ]
    for first, others, text in pairs:
        comm = made(way)
        error = raised(lambda: (getattr(comm, method)(1, op=others if comm.rank else first), comm.barrier()))  # noqa: B023
        fits = isinstance(error, MismatchError) and text in str(error)
        ensure(fits, (comm.rank, str(first), repr(error)))


def test_operators_that_are_the_same() -> None:
    """Each branch of a program may write its own lambda; what a function refers to is the rank's own; objects may be operators."""
    comm = fresh()
    rank, n = comm.rank, comm.size

    class Adds:
        def __call__(self, one: int, other: int) -> int:
            return one + other

    total = (
        comm.allreduce(1, op=lambda a, b: a + b)
        if rank == 0
        else comm.allreduce(1, op=lambda one, other: one + other)
    )
    found = [total, comm.allreduce(1, op=lambda a, b: a + b + 0 * rank), comm.allreduce(1, op=Adds())]
    found += [comm.allreduce(1, op=functools.partial(Adds(), *())), comm.allreduce(1, op=Adds().__call__)]
    ensure(found == [n] * 5, found)


def test_arguments_that_mpi4py_refuses() -> None:
    """Roots that are none, and lists of another length than there are ranks: on the root mpi4py's error, on others one that names it."""
    comm = fresh()
    for method in ROOTED:
        with pytest.raises(MPI.Exception) as found:
            called(comm, method, 1, comm.size)
        assert found.value.Get_error_class() == MPI.ERR_ROOT
    n = comm.size
    for call in (
        lambda: comm.scatter([1] * (n + 1) if comm.rank == 0 else None),
        lambda: comm.alltoall([1] * (n + 1)),
    ):
        with pytest.raises(ValueError, match=f"expecting {n} items, got {n + 1}"):
            call()
    assert comm.scatter(None) is None
    assert comm.alltoall(None) == [None] * n


@pytest.mark.mpi(min_size=2)
@pytest.mark.once
def test_a_rank_that_comes_too_late() -> None:
    """``timeout=`` holds, before the first message and behind it."""
    comm = made("shared memory")
    if comm.rank == 0:
        MPI.COMM_WORLD.Barrier()
    error = raised(lambda: comm.allreduce("a" * 300000, timeout="300ms"))
    if comm.rank:
        MPI.COMM_WORLD.Barrier()
    ensure(
        isinstance(error, CollectiveTimeout) and "allreduce(obj) at" in str(error), (comm.rank, repr(error))
    )


@pytest.mark.mpi(min_size=2)
def test_threads_do_not_block_each_other() -> None:
    """One thread waits in its communicator until another thread of the same rank has gone on in its own."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("threads may not call MPI")
    one, other, gone_on = fresh(), fresh(), threading.Event()

    def waits() -> Any:
        if one.rank == 0:
            assert gone_on.wait(30)
        return one.bcast("a" * 300000 if one.rank == 0 else None)

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(waits)
        for i in range(50):
            assert other.allreduce(i) == i * other.size
        gone_on.set()
        assert found.result(30) == "a" * 300000


def test_an_object_that_calls_while_it_is_loaded() -> None:
    """A collective of the same kind inside of an object's own code does not disturb the one around it."""
    comm = fresh()
    global nested  # noqa: PLW0603
    nested = comm
    assert comm.allgather(Nests()) == [list(range(comm.size))] * comm.size


nested: Communicator


class Nests:
    """An object that is loaded by a collective."""

    def __reduce__(self) -> Any:
        return _gather_ranks, ()


def _gather_ranks() -> Any:
    return nested.allgather(nested.rank)


def test_neighbours_get_objects() -> None:
    """On a grid with open edges, and on a graph; what cannot be pickled, or is too few, raises on those that wait for it."""
    whole = Communicator(MPI.COMM_WORLD)
    grid, graph = (
        whole.Create_cart([whole.size]),
        whole.Create_dist_graph_adjacent(range(whole.size), range(whole.size)),
    )
    rank, size, long = whole.rank, whole.size, np.arange(50_000)
    ends = [rank - 1 if rank else None, rank + 1 if rank + 1 < size else None]
    found = [grid.neighbor_allgather((rank, "x")) == [end if end is None else (end, "x") for end in ends]]
    found.append(
        grid.neighbor_alltoall([(rank, -1), (rank, 1)])
        == [e if e is None else (e, s) for e, s in zip(ends, (1, -1))]
    )
    every = graph.neighbor_alltoall([(rank, to, long + to) for to in range(size)])
    found.append(
        all(one[:2] == (source, rank) and (one[2] == long + rank).all() for source, one in enumerate(every))
    )
    found.append(graph.neighbor_alltoall(None) == [None] * size)
    for send in (
        graph.neighbor_allgather,
        lambda bad: graph.neighbor_alltoall(bad if rank == 0 else [1] * size),
    ):
        error = raised(lambda send=send: send((lambda: 0) if rank == 0 else 1))
        found.append(
            type(error) is not ArgumentError
            if rank == 0
            else type(error) is ArgumentError and "neighbour 0 " in str(error)
        )
    ensure_none([(i, one) for i, one in enumerate(found) if not one])


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("method", ["allreduce", "scan", "exscan"])
def test_an_operator_that_raises_in_one_process(method: str) -> None:
    """Where rank 0 combines, all ranks hear of its error; else it raises where it happens."""
    for bad in (0, MPI.COMM_WORLD.size - 1):
        comm = fresh()

        def op(one: Any, other: Any, bad: int = bad) -> Any:
            if MPI.COMM_WORLD.rank == bad:
                raise LookupError("caf\udce9")
            return one

        error = raised(lambda comm=comm, op=op: getattr(comm, method)(Odd(1), op=op))
        expected = "NoneType" if bad else "LookupError" if comm.rank == 0 else "ArgumentError"
        fits = type(error).__name__ == expected and (
            comm.rank == 0 or not error or "rank 0 raised LookupError: caf?" in str(error)
        )
        # no two results have a combination in common
        if comm.size < {"allreduce": 2, "scan": 3, "exscan": 4}[method]:
            alone = comm.rank == bad and comm.rank >= {"scan": 1, "exscan": 2}[method]
            fits = type(error).__name__ == ("LookupError" if alone else "NoneType")
        ensure(fits, (comm.rank, repr(error)))
        assert comm.allreduce(1) == comm.size
