"""The fit of the cost model's constants to measured times of messages; NumPy only, no MPI.

A message of ``b`` bytes takes ``alpha + beta b``. From a break on it also takes ``handshake`` (the MPI library's rendezvous); from
another one on each byte takes ``spill`` times as long (the message fits no cache). For given breaks that is linear. Iteratively
reweighted least squares minimise the sum of relative errors, so that a few disturbed sizes have little weight. All pairs of
measured sizes are tried as breaks, and none; a break must lessen the errors by more than noise would let it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcoll.analysis.cost import NEVER, Network, byte_seconds

LARGE_NBYTES = 64 << 10  # from here on, errors of messages are counted apart from errors of shorter ones
_NOISE = 0.005  # relative error below which there is nothing to explain
_ROUNDS = 12  # of corrected weights
_CHARGE = 4.0  # for a break: its two constants, and the choice among so many places
# least factor, and least part of a message's time before the break: below, there is none
_LEAST_SPILL, _LEAST_STEP = (
    1.1,
    0.2,
)
_LEAST_CACHE, _MOST_EAGER = 16 << 10, 256 << 10  # bytes
_BESIDE = 2  # sizes on either side of a break, at least
_LEAST_ALPHA, _LEAST_BETA = 1e-9, 1e-14  # seconds, seconds per byte: a fit to odd times is cut to these
_DIGITS = 4  # of rounded constants


class Errors(NamedTuple):
    """Largest relative errors of a fit: of messages below `LARGE_NBYTES`, and of others; 0 where there are none."""

    below: float
    above: float


def fit_network(
    sizes: Sequence[float],
    one_way_seconds: Sequence[float],
    burst_seconds_per_message: float,
    gamma: float,
    *,
    cached: bool = True,
) -> Network:
    """Return the constants of the model, from seconds of messages of at least 3 sizes; without a break, ``eager`` or ``cache`` is `NEVER`.

    A message that took longer than a larger one was disturbed, and counts as long as that one. ``cached``: short messages may stay in a
    cache. Otherwise there is no spill: messages that an idle link carried faster than a stream count as long as in a stream.
    """
    nbytes, times = np.asarray(sizes, float), np.asarray(one_way_seconds, float)
    assert nbytes.size == times.size >= 3, (nbytes, times)
    times = np.minimum.accumulate(times[::-1])[::-1]
    alpha, beta, eager, handshake, cache, spill = _solve(nbytes, times, spills=True)
    if not cached and cache < NEVER:
        in_a_stream = np.maximum(times, alpha + beta * spill * nbytes)
        alpha, beta, eager, handshake, cache, spill = _solve(nbytes, in_a_stream, spills=False)
    overhead = min(max(burst_seconds_per_message, 0.0), alpha)
    alpha, beta, gamma, overhead, handshake, spill = map(
        _rounded, (alpha, beta, max(0.0, gamma), overhead, handshake, spill)
    )
    return Network(alpha, beta, gamma, overhead, eager, handshake, cache, spill)


def largest_errors(network: Network, sizes: Sequence[float], one_way_seconds: Sequence[float]) -> Errors:
    """Return the largest differences between the model and the measured times."""
    relative = []
    for nbytes, seconds in zip(sizes, one_way_seconds):
        modelled = (
            network.alpha
            + network.handshake * (nbytes > network.eager)
            + byte_seconds(network, nbytes, reduces=False) * nbytes
        )
        relative.append((nbytes, abs(modelled / seconds - 1)))
    below = max((error for nbytes, error in relative if nbytes < LARGE_NBYTES), default=0.0)
    return Errors(below, max((error for nbytes, error in relative if nbytes >= LARGE_NBYTES), default=0.0))


def _solve(
    nbytes: np.ndarray, times: np.ndarray, *, spills: bool
) -> tuple[float, float, int, float, int, float]:
    """Return alpha, beta, eager, handshake, cache and spill of the best pair of breaks; the first pair tried is none."""
    breaks = nbytes[_BESIDE - 1 : -_BESIDE]
    grid = np.meshgrid(
        [NEVER, *breaks[breaks <= _MOST_EAGER]], [NEVER, *breaks[(breaks >= _LEAST_CACHE) & spills]]
    )
    eager, cache = (places.ravel() for places in grid)
    long, spilled = nbytes > eager[:, None], nbytes > cache[:, None]
    columns = (
        np.stack([np.ones_like(long), nbytes * ~spilled, long, nbytes * spilled], axis=2) / times[:, None]
    )
    solved, error = _least_errors(columns)
    alpha, beta, handshake, spilled_beta = solved.T
    alpha[0], beta[0] = max(alpha[0], _LEAST_ALPHA), max(beta[0], _LEAST_BETA)
    with np.errstate(all="ignore"):  # NaN is not sensible
        spill = np.where(cache < NEVER, spilled_beta / beta, 1.0)
        steps = (eager == NEVER) | (handshake >= _LEAST_STEP * (alpha + beta * eager))
        sensible = (alpha > 0) & (beta > 0) & steps & ((cache == NEVER) | (spill >= _LEAST_SPILL))
    nbreaks = (eager < NEVER) * 1 + (cache < NEVER)
    criterion = 2 * times.size * np.log(np.maximum(error, _NOISE)) + _CHARGE * np.log(times.size) * nbreaks
    best = int(np.where(sensible, criterion, np.inf).argmin())
    step = float(handshake[best]) if eager[best] < NEVER else 0.0
    return float(alpha[best]), float(beta[best]), int(eager[best]), step, int(cache[best]), float(spill[best])


def _least_errors(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the factors ``[problem, column]`` with which ``columns[problem, row, column]`` add up to about 1, and the mean errors."""
    lengths = np.linalg.norm(columns, axis=1)
    lengths[lengths == 0] = 1
    scaled = columns / lengths[:, None]
    weights = np.ones((*columns.shape[:2], 1))
    for _ in range(_ROUNDS):
        weighted = (scaled * weights).swapaxes(1, 2)
        square = weighted @ scaled
        square += 1e-12 * np.trace(square, axis1=1, axis2=2)[:, None, None] * np.eye(columns.shape[2])
        solved = np.linalg.solve(square, weighted.sum(axis=2, keepdims=True))
        errors = np.abs(scaled @ solved - 1)
        weights = 1 / np.maximum(errors, _NOISE)
    return solved[:, :, 0] / lengths, errors[:, :, 0].mean(axis=1)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS - 1}e}")
