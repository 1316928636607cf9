"""Closed-form times among equal links: by hand for rows whose formula is known, and what must hold for every flat row."""

import math

import pytest

from hpcoll.analysis.cost import ALIKE, SEGMENTS, Network, best_segment, seconds
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.row import Algorithm

ALPHA, BETA, GAMMA, OVERHEAD = 1e-6, 1e-9, 0.5e-9, 0.4e-6
EAGER = Network(ALPHA, BETA, GAMMA, OVERHEAD, eager=1 << 62, handshake=1.0, cache=1 << 62, spill=1.0)
RENDEZVOUS = EAGER._replace(eager=4096, handshake=4e-6)
WHOLE = 1 << 60
SIZES = (0, 1, 8, 1000, 65536, 1 << 20, 1 << 26)
ROWS = [row for row in CATALOGUE.values() if not row.hierarchical]  # those: test_cost_nodes

every_row = pytest.mark.parametrize("row", ROWS, ids=[row.key for row in ROWS])


def test_a_ring_by_hand() -> None:
    p, m = 5, 1e6
    expected = 2 * (p - 1) * ALPHA + 2 * (p - 1) / p * m * (BETA + GAMMA)
    assert seconds(CATALOGUE["allreduce/ring"], p, m, WHOLE, EAGER) == pytest.approx(expected)


def test_a_full_pipeline_costs_its_busiest_rank() -> None:
    p, segment, n = 5, 1 << 20, 8
    first = (p - 1) * ALPHA + (p - 1) * segment * BETA
    found = seconds(CATALOGUE["bcast/chain"], p, n * segment, segment, EAGER)
    assert found == pytest.approx(first + (n - 1) * max(segment * BETA, (p - 1) * OVERHEAD))


def test_the_blocks_of_a_circulant_broadcast_are_its_segments() -> None:
    p, m, n = 9, 1 << 20, 16
    expected = (n - 1 + 4) * (ALPHA + m / n * BETA)
    assert seconds(CATALOGUE["bcast/circulant"], p, m, m / n, EAGER) == pytest.approx(expected)


def test_messages_that_do_not_stay_below_the_eager_limit_shake_hands() -> None:
    """The MPI library's header counts, too."""
    row, p = CATALOGUE["bcast/chain"], 5
    below, above = (
        seconds(row, p, m, WHOLE, RENDEZVOUS) - seconds(row, p, m, WHOLE, EAGER) for m in (3840, 3841)
    )
    assert below == pytest.approx(0, abs=1e-15)
    assert above == pytest.approx((p - 1) * 4e-6)


@every_row
def test_one_rank_costs_nothing(row: Algorithm) -> None:
    assert seconds(row, 1, 1 << 20, WHOLE, EAGER) == 0.0


@every_row
def test_time_is_at_least_that_of_the_lower_bounds(row: Algorithm) -> None:
    for p in (2, 3, 5, 8, 13, 64, 100, 1000):
        for m in SIZES:
            for segment in (WHOLE, 1 << 16):
                found = seconds(row, p, m, segment, EAGER)
                assert math.isfinite(found)
                assert found >= ALPHA + (p - 1) / p * m * BETA * 0.999 or not row.cost("critical", p, 1)


@every_row
def test_time_grows_with_the_message(row: Algorithm) -> None:
    for p in (2, 3, 8, 100):
        times = [seconds(row, p, m, WHOLE, RENDEZVOUS) for m in SIZES]
        assert times == sorted(times)


def best(row: Algorithm, p: int, m: int, network: Network) -> tuple[float, int]:
    return best_segment(
        row, tuple(range(p)), m, network.eager, lambda segment: seconds(row, p, m, segment, network)
    )


@every_row
def test_the_best_segment_is_none_worse_than_any(row: Algorithm) -> None:
    for p in (1, 2, 5, 16, 100):
        for m in SIZES:
            time, segment = best(row, p, m, RENDEZVOUS)
            assert 1 <= segment <= max(1, m)
            assert time == seconds(row, p, m, segment, RENDEZVOUS)
            assert time <= ALIKE * seconds(row, p, m, WHOLE, RENDEZVOUS)
            if not (row.pipelined or row.chunked):
                assert segment == max(1, m)
            else:
                assert time <= ALIKE * min(
                    (seconds(row, p, m, s, RENDEZVOUS) for s in SEGMENTS if s < m), default=time
                )


def test_cutting_pays_for_large_messages_only() -> None:
    row = CATALOGUE["bcast/chain"]
    assert best(row, 8, 1 << 26, EAGER)[1] < 1 << 26
    assert best(row, 8, 1 << 12, EAGER)[1] == 1 << 12
