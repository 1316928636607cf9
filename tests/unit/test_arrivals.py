"""Ranks that come late to a call in the simulator: closed forms, compiled code against plain Python; replays of traces."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from trace_cases import Run, said_as

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
    assert s.calls[:, event_loop.LEAVES] == pytest.approx(
        [NETWORK.overhead + 8 * NETWORK.beta, hop * 1.35, hop * 2.35, 5e-3], rel=1e-3
    )


@pytest.mark.parametrize(
    "row", [row for row in CATALOGUE.values() if not row.placed], ids=lambda row: row.key
)
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
    assert (
        main("simulate barrier -n 8 --bytes 8 --late=3:0.001 --late=5:2ms --algorithms=dissemination".split())
        == 0
    )
    out = capsys.readouterr().out
    assert "predicted microseconds since the last rank came" in out
    assert out.splitlines()[2].split() == ["dissemination", "6.002*"]
    expected = "late must be one of 8 ranks and a time, like 3:2ms, got"
    for wrong, message in (
        ("8:1", f"{expected} '8:1'"),
        ("1", "time must be a number of seconds"),
        ("x:1", f"{expected} 'x:1'"),
    ):
        assert main(["simulate", "barrier", "-n", "8", "--late", wrong]) == 2
        assert message in capsys.readouterr().err


def loop(late_ms: float, nranks: int = 4, nsteps: int = 10, *, of_last: int = 10) -> Run:
    """Return a trace: 10 ms of computing, the last rank's longer, then an allreduce that takes 0.5 ms, in each step.

    The last rank makes so many of them.
    """
    run, begins = Run(nranks, per_host=nranks), 1000.0
    for number in range(1, nsteps + 1):
        ends = begins + 10_500 + 1000 * late_ms
        for rank in range(nranks):
            comes = begins + 10_000 + 1000 * late_ms * (rank == nranks - 1)
            if rank < nranks - 1 or number <= of_last:
                run.call(rank, "Allreduce", number, comes, ends)
            run.region(rank, "step", begins, ends)
        begins = ends
    return run


def replayed(tmp_path: Path, content: bytes, *arguments: str) -> dict[str, Any]:
    """Return the replays of a trace by their names."""
    (tmp_path / "run.trace").write_bytes(content)
    assert (
        main(
            [
                "simulate",
                "--arrivals",
                str(tmp_path / "run.trace"),
                *arguments,
                "--json",
                str(tmp_path / "found.json"),
            ]
        )
        == 0
    )
    return {one["name"]: one for one in json.loads((tmp_path / "found.json").read_text())["replays"]}


def test_a_replay_says_what_a_late_rank_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = replayed(tmp_path, loop(5.0).content(), "--on-time", "3", "--on-time", "1,2", "--on-time", "all")
    assert found["measured"]["run"] == pytest.approx(0.155)
    assert found["measured"]["steps"] == pytest.approx([0.0155] * 10)
    assert (
        found["rank 3 on time"]["steps"]
        == found["all ranks on time"]["steps"]
        == pytest.approx([0.0105] * 10, rel=0.01)
    )
    assert found["ranks 1,2 on time"]["steps"] == pytest.approx([0.0155] * 10)
    out = capsys.readouterr().out
    assert "without the lateness of rank 3 the step takes 10.5" in out
    assert " instead of 15.5 ms" in out


def test_a_replay_elsewhere_takes_what_calls_take_there(tmp_path: Path) -> None:
    """The ring's closed form, without what calls took longer than simulated where the trace was made."""
    found = replayed(
        tmp_path,
        loop(0.0).content(),
        "--ranks-per-node",
        "1",
        "--network",
        "ethernet,alpha=1e-5,overhead=1e-5,eager=1e9,gamma=0",
    )
    ring = 6 * (1e-5 + 2**18 / 125e6)
    assert found["elsewhere"]["steps"] == pytest.approx([0.010 + ring] * 10)
    chosen = replayed(
        tmp_path, loop(0.0).content(), "--ranks-per-node", "1", "--network", "ethernet", "--choose"
    )
    assert chosen["elsewhere"]["run"] < found["elsewhere"]["run"] * 1.1


def test_calls_in_flight_hide_their_time_behind_computing(tmp_path: Path) -> None:
    """Rank 1 comes 3 ms late; rank 0 computes 4 ms and then waits for nothing, or without computing for all of it."""

    def content(computes: float) -> bytes:
        run, what = Run(2), {"count": 1, "algorithm": "recursive_doubling"}
        for rank, begin in ((0, 1000.0), (1, 4000.0)):
            waits = begin + computes
            ends = max(4100, waits)
            run.call(rank, "Allreduce", 1, begin, 4100, lane=1, wait=(waits, ends), **what)  # type: ignore[arg-type]
            run.call(rank, "Barrier", 1, ends + 1000, 12_000, algorithm="dissemination")
        return run.content()

    hidden = replayed(tmp_path, content(4000.0), "--on-time", "1")
    assert hidden["measured"]["run"] == pytest.approx(0.011)
    # 4 and 1 ms of computing, and the barrier's 3
    assert hidden["rank 1 on time"]["run"] == pytest.approx(0.008, rel=0.01)
    waited = replayed(tmp_path, content(0.0), "--on-time", "1")
    assert waited["rank 1 on time"]["run"] == pytest.approx(waited["measured"]["run"] - 0.003, rel=0.01)


def test_what_cannot_be_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Calls that a killed rank has not made count as computing of the others."""
    found = replayed(tmp_path, loop(5.0, of_last=9).content())
    assert found["measured"]["run"] == pytest.approx(0.155)
    assert "1 call not known of all ranks" in capsys.readouterr().out
    for arguments, message in (
        (
            ["--arrivals", str(tmp_path / "run.trace"), "--on-time", "4"],
            "on-time must be all, or some of ranks 0-3 with commas, got '4'",
        ),
        (
            ["allreduce", "--arrivals", str(tmp_path / "run.trace")],
            "takes the calls from the trace, got collective 'allreduce'",
        ),
        (
            ["--arrivals", str(tmp_path / "run.trace"), "--late", "1:2ms"],
            "takes the calls from the trace, got late",
        ),
        ([], "simulate needs a collective, a file or --arrivals, got none of them"),
    ):
        assert main(["simulate", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_ranks_that_a_trace_lacks_take_no_room(tmp_path: Path) -> None:
    """A rank may have any number: what is replayed is what the trace has, and the rank is known by its number."""
    far, run = 2**31 - 2, loop(5.0)
    content = b"".join(map(run.of_rank, range(3))) + said_as(run.of_rank(3), b'"rank":3', b'"rank":%d' % far)
    tracemalloc.start()
    found = replayed(tmp_path, content, "--on-time", str(far))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20
    assert found["simulated"]["run"] == pytest.approx(
        replayed(tmp_path, loop(5.0).content())["simulated"]["run"]
    )
