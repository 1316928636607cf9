"""Predicted times: compiled code against plain Python, symmetry against all ranks, segments, nodes, known figures."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from hpcoll.analysis.cost import STREAMS, Levels, Network, apart, seconds_on_nodes
from hpcoll.analysis.timeline import simulate
from hpcoll.base.errors import ArgumentError
from hpcoll.cli import main
from hpcoll.cli.simulate import command
from hpcoll.cli.simulate.command import NETWORKS
from hpcoll.cli.simulate.predict import in_lockstep, predict, predict_in_lockstep, subject
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.placement import Nodes, numbered, parse_nodes
from hpcoll.schedules.row import Algorithm, schedule

NETWORK = Network(alpha=2e-6, beta=1 / 12.5e9, gamma=1e-11, overhead=0.7e-6)
LEVELS = Levels(NETWORK._replace(alpha=0.5e-6, beta=2e-11, overhead=0.2e-6), NETWORK)
SYMMETRIC = ("allreduce/ring", "allreduce/circulant", "allgather/ring", "allgather/circulant", "reduce_scatter/ring", "alltoall/pairwise")
flat_rows = pytest.mark.parametrize("row", [row for row in CATALOGUE.values() if not row.hierarchical], ids=lambda row: row.key)


def alone(nranks: int) -> Nodes:
    return tuple(range(nranks))


@flat_rows
@pytest.mark.parametrize("nbytes", [8, 1 << 20])
def test_compiled_code_agrees_with_plain_python(row: Algorithm, nbytes: int) -> None:
    """Runs of chunks that wrap, as those of circulant do, are one message in a prediction, and two in a timeline."""
    nchunks, tolerance = 5 if row.chunked else 1, 0.3 if row.name == "circulant" else 1e-9
    for nranks in (2, 3, 4, 7, 8, 16):
        expected = simulate([schedule(row, nranks, rank, 0, nchunks) for rank in range(nranks)], nbytes, NETWORK).total
        found = predict(subject(row, alone(nranks), 0, nchunks, exact=True), nbytes, Levels(NETWORK, NETWORK), window=9).seconds
        assert found == pytest.approx(expected, rel=tolerance), nranks


@pytest.mark.parametrize("key", SYMMETRIC)
@pytest.mark.parametrize(("nranks", "per_node"), [(2, "1"), (7, "1"), (12, "3"), (40, "1"), (40, "4"), (64, "2"), (100, "5")])
def test_few_ranks_stand_for_all(key: str, nranks: int, per_node: str) -> None:
    row, nodes = CATALOGUE[key], parse_nodes(per_node, nranks)
    few, every = subject(row, nodes), subject(row, nodes, exact=True)
    assert every.table.nbuilt == nranks
    if key.endswith("/ring"):
        assert few.table.nbuilt == int(per_node)
    for nbytes in (8, 1 << 20):
        expected = predict(every, nbytes, LEVELS).seconds
        tolerance = 1e-9 if per_node == "1" or key.endswith("ring") else 0.2  # who of several comes first on a link that they share
        assert predict(few, nbytes, LEVELS).seconds == pytest.approx(expected, rel=tolerance)
        if few.table.nbuilt < nranks and few.table.nbuilt == int(per_node):
            assert predict_in_lockstep(few, nbytes, LEVELS).seconds == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize(("per_node", "nranks"), [("2", 10), ("3", 24), ("4", 28)])
def test_the_ranks_of_a_node_stand_for_all_where_stripes_wrap_at_other_ranks(per_node: str, nranks: int) -> None:
    """What goes round the end of a stripe counts as one message, which is at most one more for each that is simulated."""
    row, nodes = CATALOGUE["allreduce/hierarchical"], parse_nodes(per_node, nranks)
    few, every = subject(row, nodes), subject(row, nodes, exact=True)
    assert few.table.nbuilt == int(per_node)
    assert every.table.nbuilt == nranks
    short, long = (predict(few, nbytes, LEVELS).seconds / predict(every, nbytes, LEVELS).seconds for nbytes in (8, 1 << 24))
    assert 0.6 < short <= 1.01
    assert long == pytest.approx(1, rel=0.1)


def test_ranks_that_differ_are_all_built() -> None:
    rng = random.Random(5)
    nodes = numbered(rng.choices(range(4), k=11))
    assert subject(CATALOGUE["allreduce/ring"], nodes).table.nbuilt == 11
    assert subject(CATALOGUE["allreduce/tree"], alone(11)).table.nbuilt == 11
    with pytest.raises(ArgumentError, match="cannot be simulated in lockstep: its ranks differ"):
        predict_in_lockstep(subject(CATALOGUE["allreduce/tree"], alone(11)), 8, LEVELS)


@pytest.mark.parametrize("key", ["bcast/chain", "allreduce/tree", "allreduce/double_tree", "reduce/double_tree"])
def test_long_pipelines_go_on_at_their_pace(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    what = subject(CATALOGUE[key], alone(30))
    whole = predict(what, 64 << 20, Levels(NETWORK, NETWORK), 1000, 10 * what.table.nchannels, exact=True)
    assert not whole.extrapolated
    assert whole.simulated == whole.stands_for == what.table.nmessages * 1000
    monkeypatch.setattr("hpcoll.cli.simulate.predict.MAX_MESSAGES", 200 * what.table.nmessages)
    some = predict(what, 64 << 20, Levels(NETWORK, NETWORK), 1000, 10 * what.table.nchannels)
    assert some.extrapolated
    assert some.simulated < whole.simulated
    assert some.seconds == pytest.approx(whole.seconds, rel=0.15)


def test_a_segmented_chain_takes_what_theory_says() -> None:
    """(p - 2 + n) segments, of which the first pays the latency on each hop."""
    nranks, nsegments, nbytes = 6, 64, 16 << 20
    what = subject(CATALOGUE["bcast/chain"], alone(nranks))
    found = predict(what, nbytes, Levels(NETWORK, NETWORK), nsegments, 64).seconds
    piece = nbytes / nsegments * NETWORK.beta
    assert found == pytest.approx((nranks - 1) * (NETWORK.alpha + piece) + (nsegments - 1) * (NETWORK.overhead + piece), rel=1e-9)


def test_ranks_of_a_node_share_its_link() -> None:
    """Cyclic ranks of a ring all send to another node, ranks by blocks one per node."""
    row, nbytes = CATALOGUE["allreduce/ring"], 64 << 20
    by_blocks, cyclic = (predict(subject(row, parse_nodes(text, 16)), nbytes, LEVELS).seconds for text in ("4", "4:cyclic"))
    assert 3.5 < cyclic / by_blocks < 4.5
    stripes = CATALOGUE["allreduce/hierarchical"]
    found = [predict(subject(stripes, parse_nodes(text, 16)), nbytes, LEVELS).seconds for text in ("4", "4:cyclic")]
    assert found[0] == pytest.approx(found[1], rel=0.01)
    assert found[1] < cyclic / 2


def test_long_messages_are_asked_for() -> None:
    levels = Levels(NETWORK, NETWORK._replace(eager=1000, handshake=1e-5))
    what = subject(CATALOGUE["bcast/chain"], alone(3))
    assert predict(what, 1000, levels).seconds == pytest.approx(predict(what, 1000, Levels(NETWORK, NETWORK)).seconds)
    assert predict(what, 1001, levels).seconds == pytest.approx(predict(what, 1001, Levels(NETWORK, NETWORK)).seconds + 2e-5)


@pytest.mark.parametrize(
    ("name", "short_ms", "long_ms"), [pytest.param("ring", 99.0, 109.8, marks=pytest.mark.full), ("circulant", 0.060, 11.5)]
)
def test_known_figures_at_24756_ranks(name: str, short_ms: float, long_ms: float) -> None:
    """8 bytes and 64 MiB with 2 us and 12.5 GB/s; the ring of 180 ms with what a hop costs between GPUs."""
    what = subject(CATALOGUE[f"allreduce/{name}"], alone(24756))
    assert what.table.nbuilt == 1
    for nbytes, ms in ((8, short_ms), (64 << 20, long_ms)):
        assert predict(what, nbytes, NETWORKS["fast"]).seconds == pytest.approx(ms * 1e-3, rel=0.05), nbytes


def test_too_many_steps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcoll.cli.simulate.predict.MAX_STEPS", 100)
    with pytest.raises(ArgumentError, match=r"allreduce/tree on 50 ranks has some \d+ steps that must be built one by one, more than 100"):
        subject(CATALOGUE["allreduce/tree"], alone(50))


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found.json"
    what = ["simulate", "bcast", "-n", "12", "--bytes", "8:1M:3", "--nodes", "3", "--network", "fast,alpha=3e-6,node.beta=1e-11"]
    assert main([*what, "--json", str(out)]) == 0
    text = capsys.readouterr().out
    document = json.loads(out.read_text())
    assert "bcast on 12 ranks, 4 nodes of 3 ranks, by blocks" in text
    assert "hierarchical" in text
    assert (document["levels"]["network"]["alpha"], document["levels"]["node"]["beta"]) == (3e-6, 1e-11)
    names = {cell["algorithm"] for cell in document["cells"]}
    assert len({(cell["algorithm"], cell["nbytes"]) for cell in document["cells"]}) == len(document["cells"]) == 3 * len(names)
    assert main(["simulate", "allreduce", "-n", "12", "--bytes", "8:64", "--algorithms", "ring,tree", "--exact"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(("text", "expected"), [("64K", ["64 KiB"]), ("1K,8", ["8 B", "1 KiB"]), ("8:512:2", ["8 B", "512 B"])])
def test_one_size_a_list_or_a_range(text: str, expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "bcast", "-n", "4", "--bytes", text, "--algorithms", "binomial"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line[:7].strip() for line in lines[: len(expected)]] == expected
    assert lines[len(expected)].startswith("node: ")


def test_what_takes_too_long_is_left_out_unless_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "PATIENCE_S", -1.0)
    assert main(["simulate", "bcast", "-n", "4"]) == 0
    out = capsys.readouterr().out
    assert "left out: binomial: not done within" in out
    assert "left out: hierarchical: there are no nodes of several ranks among others; --algorithms hierarchical simulates it" in out
    assert main(["simulate", "bcast", "-n", "4", "--bytes", "8", "--algorithms", "all"]) == 0
    assert "left out" not in capsys.readouterr().out


def test_the_picture_says_what_was_simulated(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "a.svg"
    assert main(["simulate", "bcast", "-n", "12", "--nodes", "3", "--network", "ethernet", "--bytes", "8", "--plot", str(picture)]) == 0
    assert "bcast, 12 ranks, 4 nodes of 3 ranks, by blocks, network ethernet" in picture.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "1"], "simulate needs 2 or more ranks"),
        (["--bytes", "8:64:0"], "bytes must look like 64K, 8,64K,1M, 8:1G or 8:1G:12, got '8:64:0'"),
        (["--bytes", "8,x"], "size must be a number of bytes such as 8, 64K or 1.5M, got 'x'"),
        (["--bytes", "0"], "bytes must be at least 1, got '0'"),
        (["--bytes", "64:8"], "bytes need 1 <= FROM <= TO"),
        (["--network", "slow"], "network must be one of"),
        (["--network", "fast,speed=1"], "network constant must be one of"),
        (["--network", "fast,alpha=x"], "network constant alpha must be a number"),
        (["--network", "fast,alpha=1e-7"], "network needs 0 <= overhead <= alpha"),
        (["--nodes", "3+3"], "nodes '3+3' have 6 ranks together"),
        (["--nodes", "8", "--domains", "3+3"], "nodes '3+3' have 6 ranks together, expected 8"),
        (["--nodes", "8", "--domains", "4", "--network", "fast,domains.streams=0"], "spill and streams >= 1"),
        (["--algorithms", "rings"], "allreduce algorithm must be one of"),
    ],
)
def test_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "allreduce", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plot", "x.xyz"], "plot file must end in .svg, .png, .pdf, got 'x.xyz'"),
        (["--plot", "x.png"], "plot needs matplotlib"),
        (["--json", "/nowhere/x.json"], "cannot write /nowhere/x.json: No such file or directory"),
    ],
)
def test_files_are_refused_before_anything_is_simulated(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_cells", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    assert main(["simulate", "allreduce", *arguments]) == 2
    assert message in capsys.readouterr().err


# --- cache domains of one node

NEAR = NETWORK._replace(alpha=0.5e-6, beta=2e-11, overhead=0.2e-6)
CACHES = Levels(NEAR, NETWORK, apart(NEAR))


def on_caches(key: str, nbytes: int, text: str = "8", nranks: int = 64, levels: Levels = CACHES, *, exact: bool = False) -> float:
    """Seconds on one node, in one segment."""
    what = subject(CATALOGUE[key], (0,) * nranks, domains=parse_nodes(text, nranks), exact=exact)
    return predict(what, nbytes, levels).seconds


def test_a_message_costs_what_its_level_does() -> None:
    """A chain from rank to rank: within a domain, across, and from node to node."""
    row, m, network = CATALOGUE["bcast/chain"], 1 << 20, NETWORK
    near, across, far = (one.alpha + one.beta * m for one in (NEAR, CACHES.across(), network))
    assert on_caches(row.key, m, "4", 8) == pytest.approx(6 * near + across)
    assert on_caches(row.key, m, "3+1+4", 8) == pytest.approx(5 * near + 2 * across)
    assert on_caches(row.key, m, "8", 8) == pytest.approx(7 * near)
    both = subject(row, parse_nodes("4", 8), domains=parse_nodes("2", 8))
    assert predict(both, m, CACHES).seconds == pytest.approx(4 * near + 2 * across + far)
    own = CACHES._replace(domains=NEAR._replace(alpha=1.0))
    assert on_caches(row.key, 8, "4", 8, own) == pytest.approx(1.0, rel=1e-3), "as set, where it is set"


def test_with_one_domain_nothing_changes() -> None:
    for key in ("allreduce/ring", "allreduce/double_tree", "bcast/binomial"):
        plain = predict(subject(CATALOGUE[key], (0,) * 16), 1 << 16, LEVELS).seconds
        assert on_caches(key, 1 << 16, "16", 16, LEVELS) == plain


def test_ranks_of_a_domain_share_its_link_once_it_is_full() -> None:
    """A ring of two domains in turn: all ranks send across; up to as many as a link has streams for keep out of each other's way."""
    few, many = (on_caches("allreduce/ring", nranks << 20, f"{nranks // 2}:cyclic", nranks) for nranks in (2 * STREAMS, 8 * STREAMS))
    steps = [2 * (nranks - 1) for nranks in (2 * STREAMS, 8 * STREAMS)]
    piece = CACHES.across().beta * (1 << 20)
    assert few / steps[0] < 1.5 * piece
    assert many / steps[1] > 3 * piece


@pytest.mark.parametrize("key", ["allreduce/ring", "allreduce/circulant", "allreduce/hierarchical", "alltoall/pairwise", "alltoall/direct"])
@pytest.mark.parametrize(("text", "nranks"), [("4", 16), ("8", 32), ("5+3", 8), ("2:cyclic", 8)])
def test_a_domain_stands_for_all_where_they_are_alike(key: str, text: str, nranks: int) -> None:
    row, domains = CATALOGUE[key], parse_nodes(text, nranks)
    few, every = (subject(row, (0,) * nranks, domains=domains, exact=exact) for exact in (False, True))
    assert every.table.nbuilt == nranks
    assert few.table.nbuilt <= nranks
    for nbytes in (8, 1 << 20):
        expected = predict(every, nbytes, CACHES).seconds
        tolerance = 1e-9 if few.table.nbuilt == nranks else 0.4 if key == "allreduce/hierarchical" else 0.2
        assert predict(few, nbytes, CACHES).seconds == pytest.approx(expected, rel=tolerance)
        if in_lockstep(few):
            assert predict_in_lockstep(few, nbytes, CACHES).seconds == pytest.approx(expected, rel=0.4)


@pytest.mark.parametrize(
    ("faster", "slower", "nbytes"),
    [
        ("allreduce/hierarchical", "allreduce/circulant", 1 << 14),
        ("allreduce/hierarchical", "allreduce/recursive_doubling", 1 << 18),
        ("allreduce/hierarchical", "allreduce/ring", 1 << 18),
        ("allreduce/hierarchical", "allreduce/leaders", 1 << 18),
        ("allreduce/leaders", "allreduce/hierarchical", 8),
        ("allreduce/recursive_doubling", "allreduce/circulant", 8),
        ("bcast/hierarchical", "bcast/binomial", 1 << 18),
        ("allgather/hierarchical", "allgather/circulant", 1 << 18),
        ("reduce_scatter/hierarchical", "reduce_scatter/circulant", 1 << 18),
    ],
)
def test_model_and_simulation_agree_on_who_is_faster(faster: str, slower: str, nbytes: int) -> None:
    nodes = parse_nodes("8", 64)
    model = [seconds_on_nodes(CATALOGUE[key], nodes, nbytes, nbytes, CACHES.on_parts((0,) * 64, nodes)) for key in (faster, slower)]
    simulated = [on_caches(key, nbytes) for key in (faster, slower)]
    assert model[0] < model[1]
    assert simulated[0] < simulated[1]


def test_command_with_domains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found.json"
    what = ["simulate", "allreduce", "-n", "16", "--nodes", "16", "--domains", "4", "--bytes", "8,64K"]
    assert main([*what, "--network", "fast,domains.alpha=2e-5", "--json", str(out)]) == 0
    text, document = capsys.readouterr().out, json.loads(out.read_text())
    assert "allreduce on 16 ranks, 1 node of 16 ranks; 4 cache domains of 4 ranks, by blocks: predicted" in text
    assert "domains: alpha 2e-05, beta 5e-11" in text
    assert {"hierarchical", "leaders"} <= {cell["algorithm"] for cell in document["cells"]}
    assert document["levels"]["domains"]["alpha"] == 2e-5
    found = {(cell["algorithm"], cell["nbytes"]): cell["seconds"] for cell in document["cells"]}
    assert found["recursive_doubling", 8] > 2 * 2e-5, "two rounds of it cross"
    assert main(["simulate", "allreduce", "-n", "8", "--nodes", "4", "--domains", "3+1", "--bytes", "8", "--algorithms", "ring"]) == 0
    exact = ["--algorithms", "hierarchical", "--exact"]
    assert main(["simulate", "allreduce", "-n", "16", "--nodes", "4", "--bytes", "8", *exact]) == 0, "ranks of a node differ"
    assert "2 nodes of 4 ranks, by blocks; 4 cache domains of 1 to 3 ranks, by blocks" in capsys.readouterr().out
    assert main(["simulate", "allreduce", "-n", "8", "--nodes", "8", "--bytes", "8", "--algorithms", "ring"]) == 0
    assert "domains" not in capsys.readouterr().out
