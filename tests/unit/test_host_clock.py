"""The line on which a host's clock runs beside another one."""

from hpcoll.comm.telemetry.clock import UNKNOWN_NS, DriftLine, Sample

S = 1_000_000_000


def test_drift_is_known_from_two_samples() -> None:
    """Before the first sample nothing is known, after the second the drift is, and errors grow ten times less."""
    line = DriftLine()
    assert line.error_at(7 * S) == UNKNOWN_NS
    assert line.told(7 * S) == 7 * S
    line.add(Sample(10 * S, -3 * S, 5000))
    assert line.told(11 * S) == 8 * S
    assert line.error_at(11 * S) == 5000 + 100_000
    line.add(Sample(20 * S, -3 * S + 500_000, 5000))  # 50 ppm
    assert line.told(30 * S) == 27 * S + 1_000_000
    assert 5000 + 10_000 <= line.error_at(30 * S) <= 5000 + 25_000


def test_poor_sample_is_left_out() -> None:
    """A sample that knows less than the line changes nothing."""
    line = DriftLine()
    line.add(Sample(10 * S, 100, 50))
    line.add(Sample(11 * S, 700_000, 900_000))
    assert line.last == Sample(10 * S, 100, 50)


def test_contradiction_starts_anew() -> None:
    """A clock that was set, or slewed by more than it can drift, is believed at once."""
    line = DriftLine()
    for at in (10, 20):
        line.add(Sample(at * S, 0, 50))
    line.add(Sample(30 * S, 5 * S, 90_000))
    assert line.told(30 * S) == 35 * S
    assert line.error_at(30 * S) == 90_000
    assert line.drift == 0
