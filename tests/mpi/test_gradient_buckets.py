"""Gradient buckets: means over ranks whatever the order in which gradients become ready, what is refused, what is named."""

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from reference import agreed, ensure, ensure_none

import hpcoll

WORLD = MPI.COMM_WORLD
SHAPES = {"w1": (9, 7), "b1": (7,), "w2": (7, 300), "b2": (300,), "scale": (), "w3": (300, 2)}


@pytest.fixture
def comm() -> Any:
    made = hpcoll.Communicator(WORLD.Dup())
    yield made
    made.Free()


def parameters(seed: int, dtype: Any = "f4") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}


def gradient(name: str, rank: int, step: int = 0) -> np.ndarray:
    """Small integers, whose sums are exact in all types."""
    return np.random.default_rng([step, rank, *name.encode()]).integers(-8, 9, SHAPES[name]).astype("f4")


def total(name: str, step: int = 0) -> np.ndarray:
    return sum((gradient(name, rank, step) for rank in range(WORLD.size)), np.zeros(SHAPES[name], "f4"))


def wrong(buckets: Any, step: int = 0, factor: float = 1.0) -> list[str]:
    return [
        name
        for name in SHAPES
        if not np.allclose(buckets.gradients[name], factor * total(name, step), rtol=1e-6)
    ]


@pytest.mark.parametrize("bucket", [1, 2000, "1M"])
@pytest.mark.parametrize("mean", [False, True])
def test_sums_and_means(comm: Any, bucket: Any, mean: bool) -> None:
    """Every rank has its own order; gradients are given, or written in place."""
    buckets, found = hpcoll.GradientBuckets(comm, parameters(0), bucket=bucket, mean=mean), list[str]()
    for step in range(4):
        for i, name in enumerate(np.random.default_rng([comm.rank, step]).permutation(list(SHAPES)).tolist()):
            if i % 2:
                buckets.ready(name, gradient(name, comm.rank, step))
            else:
                buckets.gradients[name][...] = gradient(name, comm.rank, step)
                buckets.ready(name)
        buckets.wait()
        found += wrong(buckets, step, 1 / comm.size if mean else 1)
    ensure_none(found)


def test_order(comm: Any) -> None:
    """Sums whose bits depend on neither the buckets nor the way that they go: those of an Allreduce of that order."""
    rng, found = np.random.default_rng(comm.rank), list[Any]()
    given = {
        name: (rng.normal(size=shape) * 2.0 ** rng.integers(-20, 20, shape)).astype("f4")
        for name, shape in SHAPES.items()
    }
    wanted = {name: np.zeros_like(one) for name, one in given.items()}
    for name, one in given.items():
        comm.Allreduce(one, wanted[name], order="rank")
    for bucket, overlap, algorithm in (
        (1, True, None),
        (2000, False, None),
        ("1M", None, "direct"),
        ("1M", True, "two_shot"),
    ):
        keywords = {
            "bucket": bucket,
            "overlap": overlap,
            "algorithm": algorithm,
            "mean": False,
            "order": "rank",
        }
        buckets = hpcoll.GradientBuckets(comm, parameters(0), **keywords)
        for name in given:
            buckets.ready(name, given[name])
        buckets.wait()
        found += [
            (name, bucket) for name in given if buckets.gradients[name].tobytes() != wanted[name].tobytes()
        ]
    with pytest.raises(hpcoll.ArgumentError, match="order must be 'rank' or None, got 'ring'"):
        hpcoll.GradientBuckets(comm, parameters(0), order="ring")
    ensure_none(found)


@pytest.mark.parametrize("overlap", [None, True, False])
def test_in_flight_or_one_after_another(comm: Any, overlap: bool | None) -> None:
    """After some steps in both ways all ranks take the same one."""
    buckets, found, ways = (
        hpcoll.GradientBuckets(comm, parameters(0), bucket=2000, mean=False, overlap=overlap),
        list[str](),
        list[bool](),
    )
    for step in range(30):
        ways.append(buckets.overlaps)
        for name in SHAPES:
            buckets.ready(name, gradient(name, comm.rank, step % 3))
        buckets.wait()
        found += wrong(buckets, step % 3)
    ensure_none(found)
    assert WORLD.allgather(ways) == [ways] * comm.size
    assert set(ways[:16]) == ({True, False} if overlap is None else {overlap})
    assert len(set(ways[-8:])) == 1


def test_buckets_are_of_the_size_asked_for(comm: Any) -> None:
    """The last parameter first, and none alone that fits with the one behind it; one that is longer is alone."""
    buckets = hpcoll.GradientBuckets(comm, parameters(0), bucket=2000)
    assert [[*bucket.members] for bucket in buckets.buckets] == [
        ["w3"],
        ["scale", "b2"],
        ["w2"],
        ["b1", "w1"],
    ]
    assert all(bucket.flat.base is not None for bucket in buckets.buckets)


def test_those_of_one_element_type_travel_together(comm: Any) -> None:
    given = {name: one.astype("f8" if "b" in name else "f4") for name, one in parameters(0).items()}
    buckets = hpcoll.GradientBuckets(comm, given)
    assert [[*bucket.members] for bucket in buckets.buckets] == ["w3 scale w2 w1".split(), ["b2", "b1"]]
    for name in SHAPES:
        buckets.ready(name, gradient(name, comm.rank))
    buckets.wait()
    ensure_none(wrong(buckets, factor=1 / comm.size))
    assert {name: one.dtype for name, one in buckets.gradients.items()} == {
        name: one.dtype for name, one in given.items()
    }


@pytest.mark.parametrize(("wire", "rounding"), [("float16", 2**-11), ("bfloat16", 2**-8), ("f8", 0)])
def test_another_type_travels(comm: Any, wire: str, rounding: float) -> None:
    """Rounded once, after the sum in float32: what every rank adds is lost where each sum is rounded."""
    buckets = hpcoll.GradientBuckets(comm, parameters(0), wire=wire, mean=False)
    for name in SHAPES:
        buckets.ready(name, gradient(name, comm.rank))
    buckets.wait()
    ensure_none(
        [
            name
            for name in SHAPES
            if (abs(buckets.gradients[name] - total(name)) > rounding * abs(total(name))).any()
        ]
    )
    assert buckets.buckets[0].wire.dtype.itemsize == (8 if wire == "f8" else 2)


def test_a_broadcast_gives_all_the_parameters_of_one(comm: Any) -> None:
    given, root = parameters(comm.rank), comm.size - 1
    hpcoll.GradientBuckets(comm, given, bucket=2000).broadcast(root)
    ensure_none([name for name, one in parameters(root).items() if not np.array_equal(given[name], one)])


def test_gradients_of_several_passes_add_up(comm: Any) -> None:
    buckets = hpcoll.GradientBuckets(comm, parameters(0), mean=False)
    with buckets.no_sync():
        for step in (0, 1):
            for name in SHAPES:
                buckets.ready(name, gradient(name, comm.rank, step))
    for name in SHAPES:
        buckets.ready(name, gradient(name, comm.rank, 2))
    buckets.wait()
    both = {name: total(name, 0) + total(name, 1) + total(name, 2) for name in SHAPES}
    ensure_none([name for name in SHAPES if not np.array_equal(buckets.gradients[name], both[name])])
    for name in SHAPES:
        buckets.ready(name, gradient(name, comm.rank))
    buckets.wait()
    assert agreed(wrong(buckets)) == [], "the next step begins anew"


def test_what_a_rank_does_not_use_is_zero(comm: Any) -> None:
    buckets = hpcoll.GradientBuckets(comm, parameters(0), mean=False, unused=True)
    for step in range(2):
        for name in SHAPES:
            if name != "w2" or comm.rank == 0:
                buckets.ready(name, gradient(name, comm.rank, step))
        buckets.wait()
        ensure(np.array_equal(buckets.gradients["w2"], gradient("w2", 0, step)), step)


def test_the_norm_over_all_parameters(comm: Any) -> None:
    buckets = hpcoll.GradientBuckets(comm, parameters(0), mean=False)
    for name in SHAPES:
        buckets.ready(name, gradient(name, comm.rank))
    buckets.wait()
    norm = float(np.sqrt(sum((total(name).astype("f8") ** 2).sum() for name in SHAPES)))
    assert buckets.clip(2 * norm) == pytest.approx(norm)
    ensure_none(wrong(buckets))
    norms = WORLD.allgather(buckets.clip(norm / 3))
    assert set(norms) == {norms[0]}, "not the same bits on all ranks"
    ensure_none(wrong(buckets, factor=1 / 3))


def test_what_is_not_finite_is_named(comm: Any) -> None:
    buckets, last = hpcoll.GradientBuckets(comm, parameters(0), finite=True), comm.size - 1
    for name in SHAPES:
        one = gradient(name, comm.rank)
        one[...] = np.nan if (name, comm.rank) == ("b2", last) else one
        buckets.ready(name, one)
    with pytest.raises(hpcoll.GradientError, match=rf"^gradients are not finite: rank {last}: b2$"):
        buckets.wait()
    for name in SHAPES:
        buckets.ready(name, gradient(name, comm.rank))
    buckets.wait()
    ensure_none(wrong(buckets, factor=1 / comm.size))


def test_sums_that_are_too_large_are_told_apart(comm: Any) -> None:
    buckets = hpcoll.GradientBuckets(comm, [np.zeros(3, "f4")], finite=True, wire="float16", mean=False)
    buckets.ready(0, np.full(3, 40_000, "f4") if comm.size > 1 else np.full(3, 70_000, "f4"))
    with pytest.raises(
        hpcoll.GradientError, match="the sum of finite ones is too large for its element type"
    ):
        buckets.wait()


# --- refused


def test_different_parameters_are_refused_on_every_rank(comm: Any) -> None:
    if comm.size == 1:
        pytest.skip("one rank differs from none")
    last, given = comm.size - 1, parameters(0)
    renamed = {("w9" if (name, comm.rank) == ("w2", last) else name): one for name, one in given.items()}
    fewer = {name: one for name, one in given.items() if name != "w3" or comm.rank != last}
    typed = {**given, "b1": np.zeros(7, "i8")} if comm.rank == last else given
    lacks = "the list of parameters, compared with rank 0's, lacks parameter"
    for one, more, text in (
        (renamed, {}, f"{lacks} 'w2'"),
        (fewer, {}, f"{lacks} 'w3'"),
        (
            given,
            {"bucket": 1000 + 1000 * (comm.rank == last)},
            "bucket must be equal on all ranks, expected 1000 as on rank 0, got 2000",
        ),
        (typed, {}, "parameter 'b1' must have floating-point elements, got int64"),
    ):
        with pytest.raises(hpcoll.ArgumentError, match=rf"^rank {last}: {text}"):
            hpcoll.GradientBuckets(comm, one, **more)


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda b: b.ready("w7"), "no parameter 'w7'; there are w1, b1, w2"),
        (lambda b: (b.ready("b1"), b.ready("b1")), "the gradient of 'b1' was ready before in this step"),
        (
            lambda b: b.ready("b1", np.zeros(8, "f4")),
            r"the gradient of 'b1' must have shape \(7,\) of float32 .*, got shape \(8,\)",
        ),
        (lambda b: b.ready("b1", [0.0] * 7), "expected an array, got list"),
        (lambda b: (b.ready("b1"), b.clip(1)), "clip in the middle of a step: b1 are ready"),
        (
            lambda b: (b.ready("b1"), b.wait()),
            r"wait\(\) needs the gradients of w1, w2, b2, scale, w3, of which ready",
        ),
    ],
    ids=["no such parameter", "twice", "shape", "no array", "clip", "missing"],
)
def test_refused(comm: Any, act: Any, why: str) -> None:
    buckets = hpcoll.GradientBuckets(comm, parameters(0), bucket="1M")
    with pytest.raises(hpcoll.ArgumentError, match=why):
        act(buckets)


@pytest.mark.parametrize("given", [{}, [], {"a": 3}])
def test_no_parameters(comm: Any, given: Any) -> None:
    with pytest.raises(
        hpcoll.ArgumentError, match=r"expected parameters, got none|expected an array, got int"
    ):
        hpcoll.GradientBuckets(comm, given)
