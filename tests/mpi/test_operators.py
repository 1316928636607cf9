"""Operators and element types: every built-in on every type it takes, refusals, operators of the user, orders that must be kept."""

from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI
from reference import (
    REDUCTIONS,
    Array,
    communicator,
    ensure,
    ensure_none,
    representative,
    unless,
)

import hpcoll
from hpcoll.base.errors import ArgumentError, KernelError

pytestmark = pytest.mark.mpi

INTEGERS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]
FLOATS = ["f4", "f8"]
COMPLEX = ["c8", "c16"]
NUMPY: dict[str, tuple[Any, list[str]]] = {
    "SUM": (np.add, INTEGERS + FLOATS + COMPLEX + ["g"]),
    "PROD": (np.multiply, INTEGERS + FLOATS + COMPLEX + ["g"]),
    "MIN": (np.minimum, INTEGERS + FLOATS + ["e", "g"]),
    "MAX": (np.maximum, INTEGERS + FLOATS + ["e", "g"]),
    "LAND": (np.logical_and, ["?", *INTEGERS]),
    "LOR": (np.logical_or, ["?", *INTEGERS]),
    "LXOR": (np.logical_xor, ["?", *INTEGERS]),
    "BAND": (np.bitwise_and, INTEGERS),
    "BOR": (np.bitwise_or, INTEGERS),
    "BXOR": (np.bitwise_xor, INTEGERS),
}
REFUSED = [
    ("SUM", "?"),
    ("MAX", "c16"),
    ("LAND", "f8"),
    ("BAND", "f4"),
    ("BXOR", "g"),
]


def block(whole: Array, collective: str, rank: int, nranks: int) -> Array:
    """This rank's part of a result that all ranks computed in full."""
    share = whole.size // nranks
    return whole[rank * share : (rank + 1) * share] if collective == "reduce_scatter" else whole


def reduced(
    comm: hpcoll.Communicator, collective: str, x: Array, op: Any, root: int = 0, **options: Any
) -> Array | None:
    """Runs a reduction on a whole number of blocks; None where this rank gets no result."""
    out = np.zeros_like(x[: x.size // comm.size] if collective == "reduce_scatter" else x)
    if collective == "reduce":
        comm.Reduce(x, out, op, root, **options)
        return out if comm.rank == root else None
    name = {
        "allreduce": "Allreduce",
        "reduce_scatter": "Reduce_scatter_block",
        "scan": "Scan",
        "exscan": "Exscan",
    }[collective]
    getattr(comm, name)(x, out, op, **options)
    return None if collective == "exscan" and comm.rank == 0 else out


def folded(collective: str, inputs: list[Array], function: Any, rank: int) -> Array:
    """Return what ``reduced`` must give, folded from rank 0 up."""
    upto = {"scan": rank + 1, "exscan": max(1, rank)}.get(collective, len(inputs))
    with np.errstate(all="ignore"):
        whole = reduce(function, inputs[:upto]).astype(inputs[0].dtype)
    return block(whole, collective, rank, len(inputs))


def bits(x: Array | None) -> bytes:
    return b"" if x is None else x.tobytes()


# Each is compiled, and kernels have tests of their own: every type with one operator, and every operator with one type of each kind.
KINDS = ("f8", "i4", "?", "c16", "g")
CHOSEN = [
    (name, dtype)
    for name, (_, dtypes) in NUMPY.items()
    for dtype in dtypes
    if name == "SUM" or dtype in KINDS
]
BUILT_IN = [
    one
    if one[1] in ("f8", "i4", "?") and (one[0] != "SUM" or one[1] == "f8")
    else pytest.param(*one, marks=pytest.mark.ci)
    for one in CHOSEN
]


@pytest.mark.once
@pytest.mark.parametrize(("name", "dtype"), BUILT_IN)
def test_built_in(name: str, dtype: str) -> None:
    """Integers wrap, bool stays 0 or 1; allreduce folds pairs, direct folds all ranks at once."""
    function, comm = NUMPY[name][0], communicator()
    inputs = [
        ((np.arange(37) * 5 + rank * 3) % (2 if dtype == "?" else 11)).astype(dtype)
        for rank in range(comm.size)
    ]
    wanted = folded("allreduce", inputs, function, comm.rank)
    algorithms = ("recursive_doubling", "direct", None) if dtype != "g" else (None,)
    found = [
        reduced(comm, "allreduce", inputs[comm.rank], getattr(MPI, name), algorithm=algorithm)
        for algorithm in algorithms
    ]
    ensure_none(
        [algorithm for algorithm, x in zip(algorithms, found, strict=True) if not np.array_equal(x, wanted)]
    )


@pytest.mark.once
@pytest.mark.parametrize(("name", "dtype"), REFUSED)
def test_wrong_operator(name: str, dtype: str) -> None:
    """Refused on every rank before any message, so that the communicator still works."""
    comm = communicator()
    x = np.ones(4, dtype)
    for method in (comm.Allreduce, comm.Scan, comm.Reduce, comm.Reduce_scatter_block):
        send = np.ones(4 * comm.size, dtype) if method == comm.Reduce_scatter_block else x
        with pytest.raises(
            ArgumentError,
            match=rf"^rank {comm.rank}: operator {name.lower()} takes .* elements, got {np.dtype(dtype)}$",
        ):
            method(send, x.copy(), getattr(MPI, name))
    total = np.zeros(1)
    comm.Allreduce(np.ones(1), total)
    ensure(total[0] == comm.size, total[0])


@pytest.mark.parametrize(("collective", "algorithm"), representative(REDUCTIONS))
@pytest.mark.parametrize("special", [np.nan, -0.0])
@pytest.mark.parametrize("op", [MPI.MIN, MPI.MAX])
def test_nan_and_zeros(op: MPI.Op, special: float, collective: str, algorithm: str) -> None:
    """One rank has NaN, or a zero of the other sign, at each position: as NumPy says, and the same bits on all ranks."""
    comm = communicator()
    wrong = []
    for owner in range(comm.size):
        inputs = [np.zeros(4 * comm.size, np.float32) for _ in range(comm.size)]
        inputs[owner][::2] = special
        found = reduced(comm, collective, inputs[comm.rank], op, algorithm=algorithm, segment=16)
        if found is None:
            continue
        wanted = folded(collective, inputs, np.minimum, comm.rank)
        # one contribution alone is a copy
        signed = comm.size > 1 and not (collective in ("scan", "exscan") and comm.rank < 2)
        wrong += unless(np.array_equal(found, wanted, equal_nan=True), (owner, "value"))
        wrong += [(owner, "sign")] if signed and np.signbit(found[found == 0]).any() else []
    ensure_none(wrong)


@pytest.mark.parametrize("op", [MPI.MIN, MPI.MAX])
@pytest.mark.parametrize("count", [1, 1000, 100_000])
def test_nan_passes_whatever_is_chosen(count: int, op: MPI.Op) -> None:
    """The MPI libraries lose NaN: they must not be picked here, not even where they are faster."""
    comm = communicator().Dup()
    wrong = []
    for dtype in (np.float32, np.float64, np.float16):
        for owner in range(comm.size):
            x = np.full(count, np.nan if comm.rank == owner else comm.rank, dtype)
            comm.Allreduce(MPI.IN_PLACE, x, op)
            wrong += unless(np.isnan(x).all(), (np.dtype(dtype).name, owner))
    assert {row.algorithm for row in comm.ledger.rows()}.isdisjoint({"native"})
    ensure_none(wrong)
    comm.Free()


def test_average() -> None:
    comm = communicator()
    for dtype in ("f4", "f8", "c16", "e"):
        x = np.arange(10).astype(dtype) * (comm.rank + 1)
        for collective in ("allreduce", "reduce"):
            found = reduced(comm, collective, x, hpcoll.AVG)
            wanted = (np.arange(10) * (comm.size + 1) / 2).astype(dtype)
            assert found is None or np.array_equal(found, wanted)
        assert np.array_equal(x, np.arange(10).astype(dtype) * (comm.rank + 1))
    with pytest.raises(ArgumentError, match="operator avg takes real floating, complex elements, got int64"):
        comm.Allreduce(np.ones(3, int), np.ones(3, int), hpcoll.AVG)


@pytest.mark.parametrize(("collective", "algorithm"), representative(REDUCTIONS))
def test_premultiplied_sum(collective: str, algorithm: str) -> None:
    """Each rank has its own factor; its input stays as it was."""
    comm = communicator()
    inputs = [np.arange(3.0 * comm.size) + rank for rank in range(comm.size)]
    x = inputs[comm.rank].copy()
    found = reduced(comm, collective, x, hpcoll.premul_sum(2.0**comm.rank), algorithm=algorithm)
    wanted = folded(collective, [2.0**rank * one for rank, one in enumerate(inputs)], np.add, comm.rank)
    wrong = unless(found is None or np.array_equal(found, wanted), found)
    ensure_none(wrong + unless(np.array_equal(x, inputs[comm.rank]), "input changed"))


def test_factor_that_does_not_fit() -> None:
    comm = communicator()
    with pytest.raises(ArgumentError, match="premul_sum needs a factor that float64 can hold, got 1j"):
        comm.Allreduce(np.ones(3), np.ones(3), hpcoll.premul_sum(1j))


def compose(f: complex, g: complex) -> complex:
    """x -> f then g, for affine maps x -> re * x + im: associative, and the order shows."""
    return complex(f.real * g.real, f.imag * g.real + g.imag)


AFFINE = hpcoll.reduce_op(compose, commutative=False)
RIGHT = hpcoll.reduce_op(lambda left, right: right, commutative=False, name="right")
FARTHEST = hpcoll.reduce_op(
    lambda a, b: a if abs(a) > abs(b) or (abs(a) == abs(b) and a > b) else b, name="farthest"
)


def keeps_order(collective: str, algorithm: str) -> bool:
    if collective in ("scan", "exscan"):
        return True
    return algorithm in (
        "direct",
        "two_shot",
        "gpu_leaders",
        "recursive_doubling",
        "recursive_multiplying",
        "rabenseifner",
        "tree",
        "binomial",
        "dual_root",
    ) or (collective, algorithm) == (
        "allreduce",
        "double_tree",
    )


@pytest.mark.parametrize(("collective", "algorithm"), representative(REDUCTIONS))
def test_order_is_kept(collective: str, algorithm: str) -> None:
    """Composition of affine maps from rank 0 to the last: every root, segments; algorithms that cannot keep order refuse."""
    comm = communicator()
    inputs = [np.arange(1, 8 * comm.size + 1) % 3 + 1 + 1j * (rank + 1) for rank in range(comm.size)]
    fold = np.vectorize(compose, otypes=["c16"])
    if not keeps_order(collective, algorithm):
        with pytest.raises(
            ArgumentError, match="it combines ranks in any order and the operator is not commutative"
        ):
            reduced(comm, collective, inputs[comm.rank], AFFINE, algorithm=algorithm)
        return
    wrong = []
    for root in range(comm.size if collective == "reduce" else 1):
        found = reduced(comm, collective, inputs[comm.rank], AFFINE, root, algorithm=algorithm, segment=64)
        wrong += unless(
            found is None or np.array_equal(found, folded(collective, inputs, fold, comm.rank)), root
        )
    ensure_none(wrong)


@pytest.mark.once
@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter", "scan", "exscan"])
def test_user_operators(collective: str) -> None:
    """Chosen by the library: the last rank's value, and the number farthest from zero."""
    comm = communicator()
    inputs = [(np.arange(4 * comm.size) + 10 * rank + 1).astype("e") for rank in range(comm.size)]
    wrong = []
    for op, function in ((RIGHT, lambda a, b: b), (FARTHEST, np.maximum)):
        for root in range(comm.size if collective == "reduce" else 1):
            found = reduced(comm, collective, inputs[comm.rank], op, root)
            wrong += unless(
                found is None or np.array_equal(found, folded(collective, inputs, function, comm.rank)),
                (op.name, root),
            )
    ensure_none(wrong)


@pytest.mark.once
def test_operator_that_means_nothing() -> None:
    comm = communicator()
    for _ in range(2 if comm.size > 1 else 0):  # one rank alone folds nothing
        with pytest.raises(KernelError, match="operator broken could not be compiled for float64"):
            comm.Allreduce(
                np.ones(3), np.ones(3), hpcoll.reduce_op(lambda a, b: a.no_such_thing + b, name="broken")
            )
    with pytest.raises(
        ArgumentError, match=r"^rank \d: op must be an MPI.Op or an hpcoll operator, got 'sum'$"
    ):
        comm.Allreduce(np.ones(3), np.ones(3), "sum")
    with pytest.raises(ArgumentError, match="the MPI library has no operator"):
        comm.Allreduce(np.ones(3, "g"), np.ones(3, "g"), RIGHT)
    comm.Barrier()


HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


def inputs(case: str, nranks: int, dtype: Any) -> list[Array]:
    """Per rank 4 elements for each rank."""
    count = 4 * nranks
    if case == "passes the maximum and comes back":  # 40000 + 40000 is infinite in float16
        return [
            np.full(count, 40000.0 * (1 if rank % 2 == 0 else -1)).astype(dtype) for rank in range(nranks)
        ]
    if case == "tiny addends":  # each alone would be lost beside the first
        return [np.full(count, 2048.0 if rank == 0 else 0.75).astype(dtype) for rank in range(nranks)]
    return [np.random.default_rng(rank).standard_normal(count).astype(dtype) for rank in range(nranks)]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("case", ["passes the maximum and comes back", "tiny addends", "random"])
@pytest.mark.parametrize(("collective", "algorithm"), representative(REDUCTIONS))
def test_rounded_once(collective: str, algorithm: str, case: str, dtype: Any) -> None:
    """The float32 sum, rounded; in float32 these few numbers add exactly or to within far less than a half's last bit."""
    comm = communicator()
    everything = inputs(case, comm.size, dtype)
    upto = {"scan": comm.rank + 1, "exscan": max(1, comm.rank)}.get(collective, comm.size)
    found = reduced(comm, collective, everything[comm.rank], MPI.SUM, algorithm=algorithm)
    exact = block(
        np.sum([one.astype(np.float64) for one in everything[:upto]], axis=0),
        collective,
        comm.rank,
        comm.size,
    )
    last_bit = 2.0 ** (np.frexp(exact)[1] - (11 if dtype == np.float16 else 8))
    # the float32 sums of these depend on the order, by less than this
    slack = 1e-6 * comm.size if case == "random" else 0
    good = found is None or (
        found.dtype == dtype
        and bool((np.abs(found.astype(np.float64) - exact) <= last_bit / 2 + slack).all())
    )
    ensure(good, (found, exact))


@pytest.mark.parametrize("after", [np.float32, np.float16])
def test_promise_does_not_depend_on_earlier_calls(after: Any) -> None:
    """float16 works in float32, but is not the same call as a float32 one of equal size, which the MPI library may serve."""
    comm = communicator().Dup()
    for dtype in (after, np.float16, np.float32):
        x = np.full(3, 2048.0 if comm.rank == 0 else 0.75, dtype)
        y = np.empty_like(x)
        comm.Allreduce(x, y)
        total = np.float32(2048 + 0.75 * (comm.size - 1)).astype(dtype)
        ensure((y == total).all(), y)
    comm.Free()


def test_native_is_served_when_asked_for() -> None:
    comm = communicator()
    x = np.ones(3, np.float16)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="native")
    assert x.tolist() == [comm.size] * 3
    with pytest.raises(
        hpcoll.ArgumentError, match="allreduce/native cannot serve this call: the MPI library does not know"
    ):
        comm.Allreduce(MPI.IN_PLACE, np.ones(3, ml_dtypes.bfloat16), algorithm="native")


CODES = "?bhilqBHILQfdgFDG"


@pytest.mark.parametrize("method", ["Allreduce", "Bcast", "Alltoall", "Gather"])
def test_every_element_type(method: str) -> None:
    """Counts are the caller's elements; the second and the third call do not pass through mpi4py."""
    comm = communicator().Dup()
    p, wrong = comm.size, []
    for code in CODES:
        op, length = MPI.LOR if code == "?" else MPI.SUM, 3 * p
        send, recv, expected = np.zeros(length, code), np.zeros(length, code), np.zeros(length, code)
        for turn in range(3):
            send[:] = [(comm.rank + i + turn) % 2 for i in range(length)]
            recv[:] = expected[:] = 0
            arguments: dict[str, Any] = {
                "Allreduce": (send, recv, op),
                "Bcast": (send, p - 1),
                "Alltoall": (send, recv),
                "Gather": (send[:3], recv, p - 1),
            }
            theirs = [expected if one is recv else one for one in arguments[method]]
            bare = send.copy()
            getattr(MPI.Intracomm(comm), method)(*(bare if one is send else one for one in theirs))
            getattr(comm, method)(*arguments[method], algorithm="native")
            wrong += unless((recv == expected).all() and (send == bare).all(), (code, turn))
    comm.Free()
    ensure_none(wrong)


def _maximum(one: Any, other: Any, datatype: MPI.Datatype) -> None:
    numbers, into = (np.frombuffer(memory, "f8") for memory in (one, other))
    np.maximum(numbers, into, out=into)
