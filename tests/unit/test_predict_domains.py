"""Predicted times on the cache domains of one node: each level's cost, links that are shared, who is faster, the command."""

import json
from pathlib import Path

import pytest
from test_predict import LEVELS, NETWORK

from hpcoll.analysis.cost import STREAMS, Levels, apart, seconds_on_nodes
from hpcoll.cli import main
from hpcoll.cli.simulate.predict import predict, subject
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.placement import parse_nodes

NEAR = NETWORK._replace(alpha=0.5e-6, beta=2e-11, overhead=0.2e-6)
CACHES = Levels(NEAR, NETWORK, apart(NEAR))


def on_caches(
    key: str, nbytes: int, text: str = "8", nranks: int = 64, levels: Levels = CACHES, *, exact: bool = False
) -> float:
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
    few, many = (
        on_caches("allreduce/ring", nranks << 20, f"{nranks // 2}:cyclic", nranks)
        for nranks in (2 * STREAMS, 8 * STREAMS)
    )
    steps = [2 * (nranks - 1) for nranks in (2 * STREAMS, 8 * STREAMS)]
    piece = CACHES.across().beta * (1 << 20)
    assert few / steps[0] < 1.5 * piece
    assert many / steps[1] > 3 * piece


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
    model = [
        seconds_on_nodes(CATALOGUE[key], nodes, nbytes, nbytes, CACHES.on_parts((0,) * 64, nodes))
        for key in (faster, slower)
    ]
    simulated = [on_caches(key, nbytes) for key in (faster, slower)]
    assert model[0] < model[1]
    assert simulated[0] < simulated[1]


def test_command_with_domains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found.json"
    what = "simulate allreduce -n 16 --ranks-per-node 16 --domains 4 --bytes 8,64K".split()
    assert main([*what, "--network", "fast,domains.alpha=2e-5", "--json", str(out)]) == 0
    text, document = capsys.readouterr().out, json.loads(out.read_text())
    assert (
        "allreduce on 16 ranks, 1 node of 16 ranks; 4 cache domains of 4 ranks, by blocks: predicted" in text
    )
    assert (
        "domains: alpha 20 us, overhead 0.625 us, beta 0.05 ns/byte, gamma 0.01 ns/byte, always eager, streams 4"
        in text
    )
    assert {"hierarchical", "leaders"} <= {cell["algorithm"] for cell in document["cells"]}
    assert document["levels"]["domains"]["alpha"] == 2e-5
    found = {(cell["algorithm"], cell["nbytes"]): cell["seconds"] for cell in document["cells"]}
    assert found["recursive_doubling", 8] > 2 * 2e-5, "two rounds of it cross"
    assert (
        main("simulate allreduce -n8 --ranks-per-node=4 --domains 3+1 --bytes 8 --algorithms ring".split())
        == 0
    )
    exact = "--algorithms hierarchical --exact".split()
    assert (
        main(["simulate", "allreduce", "-n", "16", "--ranks-per-node", "4", "--bytes", "8", *exact]) == 0
    ), "ranks of a node differ"
    assert (
        "2 nodes of 4 ranks, by blocks; 4 cache domains of 1 to 3 ranks, by blocks" in capsys.readouterr().out
    )
    assert main("simulate allreduce -n 8 --ranks-per-node 8 --bytes 8 --algorithms ring".split()) == 0
    assert "domains" not in capsys.readouterr().out
