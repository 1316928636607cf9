"""The search for schedules: optima that others have published are found again, what is impossible is said to be, and bad topologies."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcoll.analysis.prove import prove
from hpcoll.cli import main
from hpcoll.schedules.row import schedule
from hpcoll.synthesis.hops import SERVED, Hop, Task, row
from hpcoll.synthesis.search import Outcome, bounds, search
from hpcoll.synthesis.topologies import Fabric, topology

Capture = pytest.CaptureFixture[str]


def found(collective: str, where: str | Fabric, chunks: int = 1, **limits: int) -> list[tuple[int, int, int]]:
    """Steps, rounds and chunks sent of each schedule found; all are proven, and proven to have the fewest rounds."""
    pytest.importorskip("ortools.sat.python.cp_model", reason="the search needs OR-tools")
    fabric = topology(where) if isinstance(where, str) else where
    task = Task(collective, fabric.nranks, limits.pop("root", 0), chunks)
    outcomes = list(search(task, fabric, **limits))
    for one in outcomes:
        check(task, fabric, one)
        assert one.least == sum(one.rounds)
        assert one.fewest_sent
    return [(one.steps, sum(one.rounds), one.sent) for one in outcomes]


def check(task: Task, fabric: Fabric, one: Outcome) -> None:
    """Prove the schedule; its steps, counted here once more, fit the links."""
    proof = prove(row(task, one.parts, "found", "", ""), task.nranks, task.root)
    assert one.sent >= proof.messages
    first = 0
    for hops in one.parts:
        for step in {hop.step for hop in hops}:
            loads = dict.fromkeys(fabric.links, 0)
            for hop in hops:
                loads[hop.sender, hop.receiver] += hop.step == step
            rounds = one.rounds[first + step - 1]
            assert all(load <= rounds * fabric.links[edge] for edge, load in loads.items())
            assert all(sum(loads[edge] for edge in edges) <= rounds * width for edges, width in fabric.groups)
        first += one.steps // len(one.parts)


@pytest.mark.parametrize(
    ("where", "chunks", "optima"),
    [
        ("ring:4", 1, [(2, 2, 12)]),
        ("ring:4", 2, [(2, 3, 24)]),
        ("hypercube:8", 1, [(3, 3, 56)]),
        ("dgx1", 1, [(2, 2, 56)]),
        ("dgx1", 2, [(2, 3, 112)]),
        ("dgx1", 3, [(2, 5, 168), (3, 4, 168)]),
        ("dgx1", 6, [(2, 9, 336), (3, 7, 336)]),
    ],
)
def test_known_optima_of_an_allgather(where: str, chunks: int, optima: list[tuple[int, int, int]]) -> None:
    """A ring, a hypercube, and of a DGX-1 SCCL's: fewest steps with 1 and 2 chunks, all bandwidth with 6 chunks in 3 steps."""
    assert found("allgather", where, chunks) == optima


@pytest.mark.parametrize("collective", SERVED)
def test_all_collectives_on_a_one_way_ring(collective: str) -> None:
    """On links that go one way only, a reduction must go them, too; relays send what others want, and nothing else."""
    one_way = Fabric("one way", 4, {(rank, (rank + 1) % 4): 1 for rank in range(4)})
    optima = {
        "allgather": (3, 3, 12),
        "reduce_scatter": (3, 3, 12),
        "allreduce": (6, 6, 24),
        "alltoall": (3, 6, 24),
        "bcast": (3, 3, 3),
        "reduce": (3, 3, 3),
        "gather": (3, 3, 6),
        "scatter": (3, 3, 6),
    }
    root = 2 if collective in ("bcast", "reduce", "gather", "scatter") else 0
    assert found(collective, one_way, root=root)[-1] == optima[collective]


def test_more_steps_where_they_save_rounds() -> None:
    """A message in chunks along a line: 2 steps carry all of it twice, more steps overlap its chunks."""
    assert found("bcast", "grid:1x3", 4) == [(2, 8, 8), (3, 6, 8), (5, 5, 8)]
    assert found("bcast", "grid:1x3", 4, max_steps=4) == [(2, 8, 8), (3, 6, 8)]


def test_links_of_a_group_share_its_bandwidth() -> None:
    """A switch with one port per rank: an allgather takes as many rounds as there are others, where all links take one."""
    ranks = range(4)
    ports = tuple((tuple((a, b) for b in ranks if a != b), 1) for a in ranks)
    assert found("allgather", "full:4") == [(1, 1, 12)]
    assert found("allgather", topology("full:4")._replace(groups=ports)) == [(1, 3, 12)]
    assert found("bcast", topology("full:4")._replace(groups=ports)) == [(1, 3, 3), (2, 2, 3)]


def test_fewer_rounds_are_proven_impossible(capsys: Capture) -> None:
    """By bounds, and by search: of 8 rounds in 2 steps no bound says that a DGX-1 needs 9."""
    task, dgx1 = Task("allgather", 8, 0, 6), topology("dgx1")
    assert bounds(task, dgx1) == (2, 7, 336)
    assert found("allgather", "dgx1", 6, max_rounds=8, max_steps=2) == []
    assert found("allgather", "dgx1", 6, max_rounds=6) == []
    assert main("synthesize allgather --topology hypercube:8 --max-rounds 2".split()) == 1
    assert capsys.readouterr().out.endswith("No schedule has at most 2 rounds: proven.\n")


@pytest.mark.parametrize(
    ("collective", "messages"), [("allgather", 24), ("reduce_scatter", 24), ("alltoall", 24)]
)
def test_ranks_take_turns_where_slots_are_few(collective: str, messages: int) -> None:
    """Six messages each way in a step, of every other chunk: with 4 slots two ranks that first send all of them would wait for ever."""
    task = Task(collective, 2, 0, 12)
    ends = [(one.item, one.source, *one.targets) for one in task.demands]
    ways = [
        Hop(1 + number % 2, item, b, a) if task.meaning.reduces else Hop(1 + number % 2, item, a, b)
        for number, (item, a, b) in enumerate(ends)
    ]
    assert prove(row(task, [ways], "every other", "", ""), 2).messages == messages


def test_the_command_draws_what_it_found(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    pytest.importorskip("ortools.sat.python.cp_model", reason="the search needs OR-tools")
    file = tmp_path / "pair.json"
    file.write_text(json.dumps({"nranks": 2, "links": [[0, 1, 2]], "both_ways": True}))
    assert main(f"synthesize allgather --topology {file} --chunks 2".split()) == 0
    out = capsys.readouterr().out
    assert "allgather on pair: 2 ranks, 2 links, 2 chunks per block" in out
    assert "No schedule has fewer rounds, or fewer steps." in out
    assert "allgather/synthesized on 2 ranks, 4 chunks, 1 channel" in out
    assert "c0.1: chunk 1 of block 0" in out


def test_what_is_written_is_proven_when_it_is_read(tmp_path: Path, capsys: Capture) -> None:
    """In both formats. A wrong suffix is refused before the search."""
    pytest.importorskip("ortools.sat.python.cp_model", reason="the search needs OR-tools")
    what = "synthesize allreduce --topology grid:2x2 --chunks 2 --write".split()
    for suffix in (".xml", ".goal"):
        assert main([*what, str(tmp_path / f"found{suffix}")]) == 0
    assert (tmp_path / "found.goal").read_text().startswith("num_ranks 4\n")
    assert "No reduce_scatter with an allgather behind it has fewer rounds" in " ".join(
        capsys.readouterr().out.split()
    )
    assert main(["verify", str(tmp_path / "found.xml")]) == 0
    assert capsys.readouterr().out.count("allreduce of 4 gpus, out of place and in place") == 1
    assert main([*what, str(tmp_path / "found.txt")]) == 2
    assert capsys.readouterr().err.startswith(
        "hpcoll: error: schedules are written to a file that ends in .xml, .goal"
    )


def test_ctrl_c_ends_the_search_and_keeps_what_was_found(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """With 4 chunks to 2 others in a row: stopped after the first of three numbers of steps."""
    pytest.importorskip("ortools.sat.python.cp_model", reason="the search needs OR-tools")

    def stopped(*task: Any, **limits: Any) -> Iterator[Outcome]:
        yield next(search(*task, **limits))
        raise KeyboardInterrupt

    monkeypatch.setattr("hpcoll.cli.synthesize.search", stopped)
    assert main("synthesize bcast --topology grid:1x3 --chunks 4".split()) == 0
    assert "in 2 steps and 8 rounds. Whether fewer rounds do is not known" in " ".join(
        capsys.readouterr().out.split()
    )


def test_without_or_tools_the_error_says_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "ortools"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ortools", None)
    assert main("synthesize allgather --topology ring:4".split()) == 2
    assert capsys.readouterr().err.endswith("pip install 'hpcoll[synthesize]'\n")


LINKS = [[0, 1, 1], [1, 2, 1], [2, 0, 1]]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([], "the whole: expected an object, got []"),
        ({"nranks": 1, "links": []}, "field nranks: expected an integer from 2 to 64, got 1"),
        ({"nranks": 3}, "field links: expected a list, got none"),
        (
            {"nranks": 3, "links": [[0, 1]]},
            "field links[0]: expected 3 integers, from 0 to 2, 2, 65536, got [0, 1]",
        ),
        ({"nranks": 3, "links": [[0, 3, 1]]}, "field links[0]: expected 3 integers"),
        ({"nranks": 3, "links": [[0, True, 1]]}, "field links[0]: expected 3 integers"),
        (
            {"nranks": 3, "links": [*LINKS, [1, 2, 4]]},
            "field links[3]: expected [from, to, bandwidth], of two ranks",
        ),
        ({"nranks": 3, "links": [[1, 1, 1]]}, "field links[0]: expected [from, to, bandwidth], of two ranks"),
        ({"nranks": 3, "links": [[0, 1, 0]]}, "field links[0]: expected [from, to, bandwidth], of two ranks"),
        ({"nranks": 3, "links": LINKS, "both_ways": 1}, "field both_ways: expected true or false, got 1"),
        (
            {"nranks": 3, "links": LINKS, "groups": [{"links": [[1, 0]], "bandwidth": 1}]},
            "groups[0].links[0]: expected [from, to]",
        ),
        (
            {"nranks": 3, "links": LINKS, "groups": [{"links": []}]},
            "field groups[0].bandwidth: expected an integer, got none",
        ),
        ({"nranks": 3, "links": LINKS[:2]}, "expected a way between all ranks"),
        (
            {"nranks": 64, "links": [[i, (i + 1) % 64, 1] for i in range(64)]},
            "search: expected at most 12 ranks and 1024 chunks",
        ),
    ],
)
def test_a_bad_topology_is_refused_in_one_line(
    content: object, text: str, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(content))
    assert main(f"synthesize allgather --topology {file}".split()) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--topology", "ring:1"], "topology must be ring:N, full:N"),
        (["--topology", "hypercube:6"], "topology must be ring:N, full:N"),
        (
            ["--topology", "nowhere"],
            "topology must be ring:N, full:N, hypercube:N, grid:AxB, torus:AxB, dgx1 or the name of a JSON file",
        ),
        (["--topology", "rings:4"], "topology must be ring:N"),
        ("--topology ring:4 --chunks 0".split(), "--chunks must be at least 1, got 0"),
        ("--topology ring:4 --max-rounds -1".split(), "--max-rounds must be at least 1, got -1"),
        ("--topology ring:4 --seconds nan".split(), "--seconds must be a number above 0, got nan"),
        (
            "--topology ring:4 --root 1".split(),
            "--root: expected none, because allgather has no root, got 1",
        ),
        (
            ["--topology", "ring:4", "--chunks", str(2**62)],
            "search: expected at most 12 ranks and 1024 chunks",
        ),
        (
            "--topology torus:3x4 --chunks 60".split(),
            "search: expected at most 65,536 as chunks times links times steps, got 103,680",
        ),
    ],
)
def test_a_bad_argument_is_refused_in_one_line(more: list[str], text: str, capsys: Capture) -> None:
    assert main(["synthesize", "allgather", *more]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"hpcoll: error: {text}")
    assert (captured.out, captured.err.count("\n")) == ("", 1)


def test_a_row_is_built_for_its_ranks_again_and_again() -> None:
    """Builders write into a new writer each time: a second schedule is the same, and the first stays as it was."""
    pytest.importorskip("ortools.sat.python.cp_model", reason="the search needs OR-tools")
    task = Task("reduce_scatter", 4, 0, 2)
    built = row(task, next(search(task, topology("ring:4"))).parts, "found", "", "")
    first = schedule(built, 4, 1)
    assert (first, first.nchunks) == (schedule(built, 4, 1), 8)
