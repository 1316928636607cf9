"""Arrays change hands: after a redistribution each rank has what it would have of the whole array; bad input is refused by all ranks."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from distributions import local, random_distribution, random_shape, summed
from mpi4py import MPI
from reference import Array, communicator, ensure, ensure_none, fresh, raised, unless

import hpcoll
from hpcoll import ArgumentError, Distribution

pytestmark = [pytest.mark.mpi]
NRANKS, RANK = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank
DTYPES: list[Any] = [
    "f8",
    "f4",
    "c16",
    "i1",
    ">i4",
    "bool",
    "M8[s]",
    "S5",
    [("a", "i2"), ("b", "f8")],
]
CASTS = {"<f8": "f4", "<f4": "c16", "|i1": "i2", ">i4": "f8"}
SUMMED = ("<f8", "<f4", "<c16", "|i1")
_BESIDES_NBYTES = 5 << 19  # modules, programs, maps and datatypes, which do not grow with arrays
SHAPE = (12, 10)
WHOLE = np.arange(120.0).reshape(SHAPE)
ROWS = Distribution(SHAPE, NRANKS, split=0)
COLUMNS = Distribution(SHAPE, NRANKS, split=1)


def numbered(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array whose bytes are numbers, and no two of whose first elements are equal."""
    n = int(np.prod(shape))
    values = (np.arange(n * dtype.itemsize) * 7 + np.arange(n).repeat(dtype.itemsize)) % 127
    values = values % 2 if dtype.kind == "b" else values
    return values.astype(np.uint8).view(dtype).reshape(shape)


def laid_out(random: np.random.Generator, array: Array) -> Array:
    """A copy in C order, in Fortran order, or with gaps or backwards."""
    kind = int(random.integers(4))
    if kind < 2:
        return np.array(array, order="CF"[kind])
    if kind == 2:
        gapped = np.zeros([2 * n for n in array.shape], array.dtype)[
            tuple(slice(None, None, 2) for _ in array.shape)
        ]
    else:
        gapped = np.zeros(array.shape, array.dtype)[::-1]
    gapped[...] = array
    return gapped


def same(found: Array, wanted: Array) -> bool:
    return (found.shape, found.dtype, found.tobytes()) == (wanted.shape, wanted.dtype, wanted.tobytes())


@pytest.mark.parametrize("seed", range(10))
def test_random_pairs(seed: int) -> None:
    """Any distributions, types, orders of memory and of axes; into new and given arrays; converted, summed, and in any number of rounds."""
    random = np.random.default_rng(seed)
    ensure_none([found for case in range(27) for found in random_pair(random, case)])


def random_pair(random: np.random.Generator, case: int) -> list[Any]:
    """What is wrong with the answers of a random call, blocking and in flight."""
    comm, shape = communicator(), random_shape(random)
    axes = random.permutation(len(shape)).tolist() if random.random() < 0.5 else list(range(len(shape)))
    source = random_distribution(random, shape, NRANKS)
    target = random_distribution(random, tuple(shape[axis] for axis in axes), NRANKS)
    dtype = np.dtype(DTYPES[case % len(DTYPES)])
    out_dtype = np.dtype(CASTS.get(dtype.str, dtype)) if random.random() < 0.5 else dtype
    op = MPI.SUM if dtype.str in SUMMED and random.random() < 0.5 else None
    more: dict[str, Any] = {"axes": axes, "order": str(random.choice(["C", "F"])), "op": op}
    if random.random() < 0.5:
        more["memory"] = int(random.integers(NRANKS * 1000, NRANKS * 10000))
    plain = op is None and out_dtype == dtype
    whole = numbered(shape, dtype) if plain else (np.arange(np.prod(shape)).reshape(shape) % 41).astype(dtype)
    wholes = [whole + rank if op else whole for rank in range(NRANKS)]
    answer = summed(source, wholes) if op else whole
    wanted = local(target, answer.transpose(axes), RANK).astype(out_dtype)
    x = laid_out(random, local(source, wholes[RANK], RANK))
    out = laid_out(random, np.zeros_like(wanted)) if random.random() < 0.5 else None
    before = x.copy()
    with hpcoll.Redistribution(comm, source, target, dtype, out_dtype=out_dtype, **more) as plan:
        results = [plan(x, out).copy(), plan.start(x, out).wait().copy()]
    results.append(hpcoll.redistribute(x, source, target, comm, out, dtype=out_dtype, **more))
    good = all(same(one, wanted) for one in results) and same(x, before)
    return unless(
        good and (out is None or results[2] is out),
        (case, source, target, dtype, out_dtype, plan.nrounds, more),
    )


def test_seen_by_its_name() -> None:
    """The ledger counts exchanges of a redistribution by its name; so errors and traces, which have regions, know it."""
    comm = fresh()
    for _ in range(2):
        hpcoll.redistribute(X, ROWS, COLUMNS, comm)
    with hpcoll.Redistribution(comm, ROWS, COLUMNS, float) as plan:
        plan.start(X).wait()
    found = {row.region: row.calls for row in comm.ledger.regions()}
    comm.Free()
    ensure(found == {"redistribute": 2, "Redistribution": 1}, found)


@pytest.mark.parametrize("kind", ["moved", "converted", "summed", "gapped"])
def test_extra_memory_is_bounded(way: str, kind: str) -> None:
    """What a call takes, packing for other nodes included, stays within the bound, a tenth of what it takes without."""
    n, comm = 4096 * NRANKS, fresh()
    everywhere, rows = Distribution((n, 256), NRANKS), Distribution((n, 256), NRANKS, split=0)
    source, target = everywhere if kind == "summed" else rows, Distribution((n, 256), NRANKS, split=1)
    dtype = np.dtype("f8")
    more: dict[str, Any] = {"op": MPI.SUM if kind == "summed" else None}
    more["out_dtype"] = np.dtype("f4" if kind == "converted" else "f8")
    whole = (np.arange(n * 256.0) % 1000).reshape(n, 256)
    x, out = local(source, whole, RANK), np.empty(target.local_shape(RANK), more["out_dtype"])
    if kind == "gapped":
        x = np.repeat(x, 2, axis=1)[:, ::2]
    wrong = list[Any]()
    for memory in ("1M", None):
        plan = hpcoll.Redistribution(comm, source, target, dtype, memory=memory, **more)
        tracemalloc.start()
        plan(x, out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        plan.Free()
        wanted = local(target, whole * (NRANKS if kind == "summed" else 1), RANK)
        wrong += unless(same(out, wanted.astype(out.dtype)), (memory, "answer"))
        if memory:
            wrong += unless(peak < (1 << 20) + _BESIDES_NBYTES, (memory, peak))
        elif way == "messages" or kind in ("converted", "summed"):
            wrong += unless(peak >= 8 << 20, (memory, peak))
    comm.Free()
    ensure_none(wrong)


def test_ranks_without_elements_need_no_array() -> None:
    """From the last rank to the first; the others have nothing, and no rank else knows the element type."""
    whole = [(0, 12), (0, 10)]
    source = Distribution(SHAPE, NRANKS, boxes=[None] * (NRANKS - 1) + [whole])
    target = Distribution(SHAPE, NRANKS, boxes=[whole] + [None] * (NRANKS - 1))
    x = WHOLE.astype(np.int32) if RANK == NRANKS - 1 else None
    found = hpcoll.redistribute(x, source, target, communicator())
    wanted = WHOLE.astype(np.int32) if RANK == 0 else np.zeros((0, 0), np.int32)
    wrong = unless(same(found, wanted), found)
    nothing = Distribution((0, 3), NRANKS)
    wrong += unless(hpcoll.redistribute(None, nothing, nothing, communicator()).shape == (0, 3), "nothing")
    ensure_none(wrong)


def test_new_arrays_have_the_order_that_is_asked_for() -> None:
    x = np.asfortranarray(local(ROWS, WHOLE, RANK))
    found = hpcoll.redistribute(x, ROWS, COLUMNS, communicator(), order="F")
    other = hpcoll.redistribute(x, ROWS, COLUMNS, communicator())
    wanted = local(COLUMNS, WHOLE, RANK)
    ensure(
        same(found, wanted) and same(other, wanted) and found.flags.f_contiguous and other.flags.c_contiguous,
        (found, other),
    )


def test_one_array_is_source_and_target() -> None:
    """What is sent is copied before it is overwritten; so are parts of the same memory."""
    swapped = (
        Distribution(SHAPE, NRANKS, boxes=[ROWS.boxes(NRANKS - 1 - rank)[0] for rank in range(NRANKS)])
        if NRANKS <= 12
        else ROWS
    )
    memory = np.zeros(300)
    count = local(ROWS, WHOLE, RANK).size
    x = memory[:count].reshape(ROWS.local_shape(RANK))
    x[...] = local(ROWS, WHOLE, RANK)
    wanted = local(swapped, WHOLE, RANK)
    out = memory[5 : 5 + wanted.size].reshape(wanted.shape)
    found = hpcoll.redistribute(x, ROWS, swapped, communicator(), out)
    ensure(found is out and same(found, wanted), found)


def test_a_communicator_of_mpi4py() -> None:
    """In reverse order of ranks; several transfers run at once, and `Free` waits for those that nobody waited for."""
    comm = MPI.COMM_WORLD.Split(0, -RANK)
    plan = hpcoll.Redistribution(comm, ROWS, COLUMNS, float)
    x = local(ROWS, WHOLE, comm.rank)
    wanted = local(COLUMNS, WHOLE, comm.rank)
    outs = [np.zeros_like(wanted), np.zeros(wanted.shape, order="F"), np.zeros((2, *wanted.shape))[::2][0]]
    running = [plan.start(x + i, out) for i, out in enumerate(outs)]
    wrong = unless("3 running" in repr(plan), repr(plan))
    wrong += unless(running[1].wait() is outs[1] is running[1].wait(), "the result, however often")
    plan.Free()
    plan.Free()
    wrong += unless(all(same(out, wanted + i) for i, out in enumerate(outs)), outs)
    wrong += unless(raised(lambda: plan(x)) is not None and "freed" in repr(plan), repr(plan))
    nsent = (
        x.size
        - local(COLUMNS, WHOLE, comm.rank)[slice(*ROWS.boxes(comm.rank)[0][0]) if x.size else slice(0)].size
    )
    wrong += unless(plan.nbytes == 8 * nsent, plan.nbytes)
    comm.Free()
    ensure_none(wrong)


# --- what is refused


def refused(run: Any, text: str) -> list[Any]:
    """What is wrong, if a call does not raise an error with this text on this rank."""
    error = raised(run)
    return unless(isinstance(error, ArgumentError) and text in str(error), (text, error))


X = local(ROWS, WHOLE, RANK)
LAST = NRANKS - 1
OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "source": (
        {"source": COLUMNS},
        "source of redistribute must be equal on all ranks, expected hpcoll.Distribution",
    ),
    "target": ({"target": ROWS}, "target of redistribute must be equal on all ranks"),
    "axes": (
        {"axes": (0, 1), "order": "F"},
        "order of redistribute must be equal on all ranks, expected 'C' as on rank 0",
    ),
    "dtype": ({"x": X.astype("f4")}, "dtype of redistribute must be equal on all ranks, expected float64"),
    "result": (
        {"dtype": "f4"},
        "dtype of the result of redistribute must be equal on all ranks, expected None",
    ),
    "op": ({"op": MPI.MAX}, "op of redistribute must be equal on all ranks, expected None"),
    "memory": ({"memory": "1M"}, "memory of redistribute must be equal on all ranks, expected None"),
}


def arguments(**other: Any) -> dict[str, Any]:
    return {"x": X, "source": ROWS, "target": COLUMNS, "comm": communicator(), **other}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", OTHER)
def test_ranks_that_differ(name: str) -> None:
    """All raise the same error, which names the rank; the communicator is as before."""
    other, text = OTHER[name]
    given = arguments(**other) if RANK == LAST else arguments()
    if name == "source" and RANK == LAST:
        given["x"] = local(COLUMNS, WHOLE, RANK)
    wrong = refused(lambda: hpcoll.redistribute(**given), f"rank {LAST}: {text}")
    wrong += unless(same(hpcoll.redistribute(**arguments()), local(COLUMNS, WHOLE, RANK)), "afterwards")
    ensure_none(wrong)


READ_ONLY = np.zeros(COLUMNS.local_shape(RANK))
READ_ONLY.flags.writeable = False
BAD: list[tuple[dict[str, Any], str]] = [
    ({"x": np.zeros((1, 2, 3))}, "needs x of shape"),
    ({"x": [1.0, 2.0]}, "needs x as an array of NumPy, or on a GPU, of shape"),
    ({"x": None}, "needs x as an array of NumPy, or on a GPU, of shape"),
    ({"x": X.astype(object)}, "needs elements of fixed size, got object"),
    ({"out": np.zeros(1)}, "needs out of shape"),
    ({"out": np.zeros(COLUMNS.local_shape(RANK), "f4")}, "needs out of shape"),
    ({"out": READ_ONLY}, "needs out that can be written"),
    ({"source": "rows"}, "needs a Distribution as source, got 'rows'"),
    ({"target": Distribution(SHAPE, NRANKS + 1, split=1)}, f"needs a target for {NRANKS} ranks, got one for {NRANKS + 1}"),
    ({"target": Distribution((10, 12), NRANKS, split=1)}, "needs a target of shape (12, 10), as its source has it, got (10, 12)"),
    ({"axes": (0, 0)}, "needs axes= with each of 2 axes once, got (0, 0)"),
    ({"axes": (0, 2)}, "needs axes= with each of 2 axes once"),
    ({"axes": 1}, "needs axes= with each of 2 axes once"),
    ({"order": "K"}, "needs order= C or F, got 'K'"),
    ({"memory": "much"}, "needs memory= as bytes: size must be a number of bytes such as 8, 64K or 1.5M, got 'much'"),
    ({"op": "sum"}, "needs op= that combines two elements by itself, got 'sum'"),
    ({"op": hpcoll.AVG}, "needs op= that combines two elements by itself, got"),
    ({"op": MPI.MAXLOC}, "needs op= that combines two elements by itself, got"),
    ({"dtype": "no type"}, "needs an element type of NumPy, got 'no type'"),
]  # fmt: skip


@pytest.mark.parametrize(("other", "text"), BAD)
def test_bad_input_of_one_rank(other: dict[str, Any], text: str) -> None:
    """The first rank's, which has elements whatever the number of ranks."""
    given = arguments(**other) if RANK == 0 else arguments()
    ensure_none(refused(lambda: hpcoll.redistribute(**given), f"rank 0: redistribute {text}"))


def test_parts_that_each_rank_knows() -> None:
    """They are exchanged once; where they overlap or leave a gap, all ranks name the first element, and its ranks."""
    low, high = ROWS.boxes(RANK)[0][0] if ROWS.boxes(RANK) else (0, 0)
    gathered = lambda mine: Distribution((12,), NRANKS, boxes=communicator().allgather([mine]))  # noqa: E731
    wrong = unless(gathered((low, high)) == Distribution((12,), NRANKS, split=0), "the parts")
    text = "Distribution needs each element in the box of one rank, got element"
    if 2 <= NRANKS <= 6:
        twice = (low - (RANK == 1), high)
        wrong += refused(
            lambda: gathered(twice), f"{text} ({12 // NRANKS + (12 % NRANKS > 0) - 1},) on ranks 0-1"
        )
    gap = (low, high - (RANK == 0))
    last = ROWS.boxes(0)[0][0][1] - 1
    wrong += refused(lambda: gathered(gap), f"{text} ({last},) on no rank")
    ensure_none(wrong)


EVERYWHERE = Distribution(SHAPE, NRANKS)
UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"op": MPI.BAND}, "redistribute needs elements that hpcoll.BAND takes, got float64"),
    (
        {"dtype": np.int64},
        "redistribute needs a result to whose type float64 is cast by 'same_kind', got int64",
    ),
    ({"memory": 8 if NRANKS > 1 else 0, "op": MPI.SUM}, "redistribute needs memory= of"),
]


@pytest.mark.parametrize(("other", "text"), UNFIT)
def test_what_does_not_fit_together(other: dict[str, Any], text: str) -> None:
    """All ranks find it, or are told by one that does."""
    given = arguments(x=WHOLE, source=EVERYWHERE, **other)
    ensure_none(refused(lambda: hpcoll.redistribute(**given), text))


def test_bounded_memory_has_no_room_for_a_copy() -> None:
    memory = np.zeros(SHAPE)
    given = arguments(x=memory, out=memory, source=EVERYWHERE, target=EVERYWHERE, memory="1M")
    text = "redistribute needs x and out apart from each other for memory=, got arrays that overlap"
    ensure_none(refused(lambda: hpcoll.redistribute(**given), text))


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "c16"])
def test_contributions_are_combined_as_in_rank_order(dtype: str) -> None:
    """To the last bit, whoever receives, however it is cut; and the exact sum is rounded once."""
    comm = communicator()
    every = np.random.default_rng(3).standard_normal((NRANKS, *SHAPE)).astype(dtype) * 100
    wrong = list[Any]()
    for op in (MPI.SUM, MPI.PROD, hpcoll.EXACT_SUM, hpcoll.reduce_op(lambda a, b: a + 2 * b)):
        wanted = np.empty_like(every[0])
        comm.Allreduce(np.ascontiguousarray(every[RANK]), wanted, op, order="rank")
        for memory in (None, NRANKS * 400):
            found = hpcoll.redistribute(every[RANK], EVERYWHERE, COLUMNS, comm, op=op, memory=memory)
            wrong += unless(same(found, local(COLUMNS, wanted, RANK)), (op, memory))
    ensure_none(wrong)


def test_bad_input_of_a_plan() -> None:
    """Ranks agree on a plan; each checks the arrays of a call by itself."""
    comm = communicator()
    wrong = refused(
        lambda: hpcoll.Redistribution(comm, ROWS, COLUMNS, "f8" if RANK else object),
        "rank 0: Redistribution needs elements of fixed size, got object",
    )
    wrong += refused(
        lambda: hpcoll.Redistribution(comm, ROWS, COLUMNS, "f8" if RANK else "no type"),
        "rank 0: Redistribution needs an element type of NumPy, got 'no type'",
    )
    wrong += refused(
        lambda: hpcoll.Redistribution(None, ROWS, COLUMNS, "f8"),  # type: ignore[arg-type]
        "needs an intracommunicator",
    )
    plan = hpcoll.Redistribution(comm, ROWS, COLUMNS, "f8")
    wrong += refused(
        lambda: plan(np.zeros((1, 1, 1))), f"rank {RANK}: Redistribution needs x of shape {X.shape} and type"
    )
    wrong += refused(
        lambda: plan.start(X, out=READ_ONLY), f"rank {RANK}: Redistribution needs out that can be written"
    )
    wrong += unless(same(plan(X), local(COLUMNS, WHOLE, RANK)), "afterwards")
    plan.Free()
    wrong += refused(lambda: plan(X), f"rank {RANK}: Redistribution needs to be in use, was freed")
    ensure_none(wrong)
