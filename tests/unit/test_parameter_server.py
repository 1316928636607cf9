"""Parts of the parameter server without MPI: optimisers against closed forms, shards that tile."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcoll.base.errors import ArgumentError
from hpcoll.training.optimizers import SGD, Adam, Optimizer
from hpcoll.training.shard_server import Staleness
from hpcoll.training.shard_window import Places, State, WindowWord, WorkerWord, culprit, failed
from hpcoll.training.shards import ShardLayout, cut_shards


def steps(optimizer: Optimizer, count: int, gradient: float, dtype: str = "f8") -> np.ndarray:
    """A parameter that begins at 1 after some steps of one gradient."""
    parameter, state = np.ones(3, dtype), {}
    for step in range(1, count + 1):
        optimizer(parameter, np.full(3, gradient, dtype), state, step)
    return parameter


def test_sgd_goes_along_the_gradient() -> None:
    np.testing.assert_allclose(steps(SGD(0.25), 7, 2.0), 1 - 7 * 0.25 * 2)


def test_momentum_is_a_geometric_series() -> None:
    """After n steps of gradient g: the sum over k = 1..n of rate g (1 - mu^k) / (1 - mu)."""
    rate, mu, g, n = 0.1, 0.9, 3.0, 12
    moved = rate * g * sum((1 - mu**k) / (1 - mu) for k in range(1, n + 1))
    np.testing.assert_allclose(steps(SGD(rate, mu), n, g), 1 - moved)


@pytest.mark.parametrize("gradient", [5.0, -0.01])
def test_adam_steps_by_its_rate_under_a_constant_gradient(gradient: float) -> None:
    """Both corrected means are exact then, whatever the gradient's size."""
    np.testing.assert_allclose(steps(Adam(0.1, epsilon=1e-12), 9, gradient), 1 - 9 * 0.1 * np.sign(gradient))


def test_adam_of_two_gradients() -> None:
    """By hand: g = 1, then 3, with beta1 = beta2 = 1/2: means 1 and 7/3, mean squares 1 and 19/3."""
    parameter, state = np.zeros(1), {}
    optimizer = Adam(1.0, 0.5, 0.5, 1e-12)
    optimizer(parameter, np.array([1.0]), state, 1)
    optimizer(parameter, np.array([3.0]), state, 2)
    np.testing.assert_allclose(parameter, -1 - (7 / 3) / np.sqrt(19 / 3))


@pytest.mark.parametrize("optimizer", [SGD(0.1, 0.9), Adam(0.1)])
def test_optimisers_keep_the_element_type(optimizer: Optimizer) -> None:
    parameter, state = np.ones(3, np.float32), {}
    optimizer(parameter, np.ones(3, np.float32), state, 1)
    assert {parameter.dtype, *(value.dtype for value in state.values())} == {np.dtype(np.float32)}


WRONG = [
    (SGD, {"rate": 0}),
    (SGD, {"rate": 1, "momentum": 1.0}),
    (Adam, {"rate": -1}),
    (Adam, {"beta2": 1}),
    (Adam, {"epsilon": 0}),
]


@pytest.mark.parametrize(("kind", "values"), WRONG)
def test_optimisers_refuse(kind: Any, values: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match=f"{kind.__name__}: {list(values)[-1]} must be"):
        kind(**values)


shapes = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 5)), min_size=1, max_size=6)


@given(shapes, st.integers(1, 6), st.booleans())
def test_shards_tile_the_parameters(found: list[tuple[int, int]], nservers: int, split: bool) -> None:
    """Packed by one and unpacked by another, every element comes back, and pieces lie apart."""
    layouts = [ShardLayout(f"p{i}", shape, ("float32", "float64")[i % 2]) for i, shape in enumerate(found)]
    shards = cut_shards(layouts, nservers, split=split)
    arrays = {one.name: np.arange(one.size, dtype=one.dtype).reshape(one.shape) + 1 for one in layouts}
    back = {name: np.zeros_like(array) for name, array in arrays.items()}
    for shard in shards:
        memory = np.zeros(shard.nbytes, np.uint8)
        shard.pack(arrays, memory)
        shard.unpack(memory, back)
        assert all(one.start + one.nbytes <= other.start for one, other in itertools.pairwise(shard.pieces))
    assert all(np.array_equal(arrays[name], back[name]) for name in arrays)
    sizes = [sum(piece.hi - piece.lo for piece in shard.pieces) for shard in shards]
    assert sum(sizes) == sum(one.size for one in layouts)
    if split:
        assert max(sizes) - min(sizes) <= 1
    else:
        assert all(
            piece.hi - piece.lo == arrays[piece.name].size for shard in shards for piece in shard.pieces
        )


def test_places_do_not_overlap() -> None:
    places = Places(3, 128)
    words = [places.word(word) for word in WindowWord] + [
        places.word(word, w) for w in range(3) for word in WorkerWord
    ]
    parts = [places.copy(0), places.copy(1), *(places.mailbox(worker) for worker in range(3)), places.total]
    assert len(set(words)) == len(words)
    assert max(words) + 8 <= parts[0]
    assert all(other - one == 128 for one, other in itertools.pairwise(parts))
    assert all(part % 64 == 0 for part in parts)


def test_staleness_counts() -> None:
    found = Staleness()
    assert (found.max, found.mean) == (0, 0.0)
    for value in (0, 3, 3):
        found.add(value)
    assert (found.max, found.mean, dict(found.histogram)) == (3, 2.0, {0: 1, 3: 2})


def test_states_say_who_failed_first() -> None:
    assert [culprit(state, 7) for state in (State.LEFT, failed(-1), failed(0), failed(4))] == [7, 7, 0, 4]
    assert failed(-1) == State.FAILED
