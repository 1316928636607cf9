"""Constants fitted to synthetic times of messages: they are found again, and whatever comes in, what comes out is a model."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from hpcoll.analysis.cost import NEVER, Network, byte_seconds, seconds
from hpcoll.cli.tune.exchange import SIZES, find_pairs
from hpcoll.cli.tune.fit import fit_network, largest_errors
from hpcoll.schedules.catalogue import find

GIGABIT = Network(12e-6, 8e-9, 0.2e-10, 5e-6, 16 << 10, 160e-6, NEVER, 1.0)
MEMORY = Network(0.25e-6, 0.8e-10, 0.2e-10, 0.1e-6, NEVER, 0.0, 1 << 20, 1.5)
LIBRARY = Network(0.4e-6, 0.6e-10, 0.3e-10, 0.15e-6, 6 << 10, 3e-6, 2 << 20, 1.8)
PLAIN = Network(2e-6, 1e-10, 0.0, 0.0, NEVER, 0.0, NEVER, 1.0)
ALL = {"gigabit": GIGABIT, "memory": MEMORY, "library": LIBRARY, "plain": PLAIN}

FITTED = slice(Network._fields.index("read_from"))  # the fields that a fit finds


def times(network: Network, sizes: Sequence[int] = SIZES) -> np.ndarray:
    """Return what messages take by the model."""
    lone = np.array([network.alpha + network.handshake * (nbytes > network.eager) for nbytes in sizes])
    return lone + [nbytes * byte_seconds(network, nbytes, reduces=False) for nbytes in sizes]


def disturbed(network: Network, seed: int) -> np.ndarray:
    """With 3 % of noise, and four sizes that something made slower."""
    rng = np.random.default_rng(seed)
    found = times(network) * rng.normal(1, 0.03, len(SIZES))
    found[rng.choice(len(SIZES) - 4, 4, replace=False)] *= rng.uniform(1.5, 4, 4)
    return found


def fitted(network: Network, one_way: np.ndarray) -> Network:
    return fit_network(SIZES, one_way, network.overhead, network.gamma)


@pytest.mark.parametrize("name", ALL)
def test_exact_times_give_the_constants_back(name: str) -> None:
    network = ALL[name]
    assert np.allclose(fitted(network, times(network))[FITTED], network[FITTED], rtol=1e-3, atol=0)
    assert largest_errors(network, SIZES, times(network)) == (0, 0)


@pytest.mark.parametrize(("name", "seed"), product(ALL, range(5)))
def test_noise_moves_the_constants_by_less_than_a_tenth(name: str, seed: int) -> None:
    network = ALL[name]
    found = fitted(network, disturbed(network, seed))
    breaks = {"eager": network.eager, "cache": network.cache}  # may be told one size too early or too late
    assert np.allclose(found._replace(**breaks)[FITTED], network[FITTED], rtol=0.1, atol=0), found
    assert all(1 / 1.51 < getattr(found, name) / place < 1.51 for name, place in breaks.items()), found


RNG = np.random.default_rng(9)
ODD = {
    "flat": np.full(len(SIZES), 1e-6),
    "falling": np.geomspace(1e-3, 1e-6, len(SIZES)),
    "proportional": 1e-9 * np.array(SIZES),
    "steep": 1e-12 * np.array(SIZES, float) ** 2,
    "wild": RNG.uniform(1e-7, 1e-3, len(SIZES)),
    "short": times(GIGABIT)[:3],
    "tiny": np.full(len(SIZES), 1e-12),
}


@pytest.mark.parametrize(("name", "burst", "gamma"), product(ODD, (-1e-6, 0.0, 1e-3), (-1e-12, 0.0, 1e-10)))
def test_whatever_was_measured_gives_a_model(name: str, burst: float, gamma: float) -> None:
    curve = ODD[name]
    network = fit_network(SIZES[: len(curve)], curve, burst, gamma)
    assert np.isfinite(network[FITTED]).all()
    assert 0 <= network.overhead <= network.alpha > 0 < network.beta
    assert min(network.gamma, network.handshake, network.eager) >= 0
    assert min(network.cache, network.spill) >= 1
    assert 0 < seconds(find("allreduce", "ring"), 8, 1 << 20, 1 << 16, network) < float("inf")


@pytest.mark.parametrize(
    ("hosts", "leaders", "pairs"),
    [
        ("aabb", (0, 0, 2, 2), {"node": (0, 1), "network": (0, 2)}),
        ("abab", (0, 1, 0, 1), {"node": (0, 2), "network": (0, 1)}),
        ("abbb", (0, 1, 1, 1), {"node": (1, 2), "network": (0, 1)}),
        ("aaab", (0, 1, 2, 3), {"network": (0, 3)}),  # nobody shares memory: still two hosts
        ("aaaa", (0, 0, 2, 2), {"node": (0, 1), "network": (0, 2)}),
        ("aa", (0, 0), {"node": (0, 1)}),
        ("a", (0,), {}),
    ],
)
def test_two_ranks_stand_for_each_level(
    hosts: str, leaders: tuple[int, ...], pairs: dict[str, tuple[int, int]]
) -> None:
    assert find_pairs(hosts, leaders) == pairs
