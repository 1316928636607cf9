"""Ranks that come late to a call in the simulator: closed forms, compiled code against plain Python; replays of traces."""

import pytest

from hpcoll.analysis import event_loop
from hpcoll.analysis.cost import Levels, Network
from hpcoll.cli import main
from hpcoll.cli.simulate.predict import predict, simulate, subject
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.row import Algorithm

NETWORK = Network(alpha=2e-6, beta=1 / 12.5e9, gamma=1e-11, overhead=0.7e-6)
LEVELS = Levels(NETWORK, NETWORK)


def since_the_last_came(key: str, nbytes: int, comes: list[float]) -> float:
    what = subject(CATALOGUE[key], tuple(range(len(comes))), exact=True)
    return predict(what, nbytes, LEVELS, comes=comes).seconds


def test_a_short_message_waits_for_a_late_rank_and_a_long_one_with_its_sender() -> None:
    nbytes = event_loop.BUFFERED
    one_hop = NETWORK.alpha + NETWORK.beta * (nbytes + 1)
    assert since_the_last_came("bcast/binomial", nbytes, [0.0, 1e-3]) == pytest.approx(0, abs=1e-12)
    assert since_the_last_came("bcast/binomial", nbytes + 1, [0.0, 1e-3]) == pytest.approx(one_hop)
    assert since_the_last_came("bcast/binomial", nbytes + 1, [1e-3, 0.0]) == pytest.approx(one_hop)


def test_each_rank_leaves_when_it_has_its_result() -> None:
    """In a chain whose last rank is late, the others do not wait for it."""
    table = subject(CATALOGUE["bcast/chain"], (0, 1, 2, 3), exact=True).table
    s = event_loop.prepare(table, LEVELS, 8, 1, 1, comes=[0.0, 0.0, 0.0, 5e-3])
    simulate(s)
    hop = NETWORK.alpha + 8 * NETWORK.beta
    assert s.calls[:, event_loop.LEAVES] == pytest.approx([NETWORK.overhead + 8 * NETWORK.beta, hop * 1.35, hop * 2.35, 5e-3], rel=1e-3)


@pytest.mark.parametrize("row", [row for row in CATALOGUE.values() if not row.placed], ids=lambda row: row.key)
def test_compiled_code_agrees_with_plain_python(row: Algorithm) -> None:
    """Also where long messages wait for several late ranks; ranks leave after all that they wait for have come."""
    table = subject(row, tuple(range(7)), exact=True).table
    comes = [0.0, 3e-4, 0.0, 1e-3, 0.0, 0.0, 2e-4]
    plain, compiled = (event_loop.prepare(table, LEVELS, 7 << 20, 2, 2, comes=comes) for _ in range(2))
    assert simulate(compiled) == pytest.approx(event_loop.simulate(plain), rel=1e-9)
    assert compiled.calls == pytest.approx(plain.calls, rel=1e-9)
    if row.collective in ("allreduce", "allgather", "alltoall", "barrier"):
        assert compiled.calls[:, event_loop.LEAVES].min() > 1e-3


def test_late_ranks_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A barrier by dissemination takes its rounds once the last rank has come, 2 us each."""
    assert main(["simulate", "barrier", "-n", "8", "--bytes", "8", "--late=3:0.001", "--late=5:0.002", "--algorithms=dissemination"]) == 0
    out = capsys.readouterr().out
    assert "predicted microseconds since the last rank came" in out
    assert out.splitlines()[2].split() == ["8", "B", "6.002*"]
    for wrong in ("8:1", "x:1", "1", "1:-1", "1:nan"):
        assert main(["simulate", "barrier", "-n", "8", "--late", wrong]) == 2
        assert f"late must be one of 8 ranks and its seconds, like 3:0.002, got '{wrong}'" in capsys.readouterr().err
