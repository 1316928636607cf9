"""Predicted times: compiled code against plain Python, symmetry against all ranks, segments, nodes, known figures; the command."""

import json
import random
import re
import sys
from pathlib import Path

import pytest

from hpcoll.analysis.cost import Levels, Network
from hpcoll.analysis.timeline import simulate
from hpcoll.cli import main
from hpcoll.cli.simulate.command import NETWORKS
from hpcoll.cli.simulate.predict import predict, subject
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.placement import Nodes, numbered, parse_nodes
from hpcoll.schedules.row import Algorithm, schedule

Capture = pytest.CaptureFixture[str]

NETWORK = Network(alpha=2e-6, beta=1 / 12.5e9, gamma=1e-11, overhead=0.7e-6)
LEVELS = Levels(NETWORK._replace(alpha=0.5e-6, beta=2e-11, overhead=0.2e-6), NETWORK)
SYMMETRIC = (
    "allreduce/ring",
    "allreduce/circulant",
    "allgather/ring",
    "allgather/circulant",
    "reduce_scatter/ring",
    "alltoall/pairwise",
)
flat_rows = pytest.mark.parametrize(
    "row", [row for row in CATALOGUE.values() if not row.hierarchical], ids=lambda row: row.key
)


def alone(nranks: int) -> Nodes:
    return tuple(range(nranks))


@flat_rows
@pytest.mark.parametrize("nbytes", [8, 1 << 20])
def test_compiled_code_agrees_with_plain_python(row: Algorithm, nbytes: int) -> None:
    """Also where a message is in two runs of chunks on some ranks, as those of circulant are."""
    nchunks = 5 if row.chunked else 1
    for nranks in (2, 3, 4, 7, 8, 16):
        expected = simulate(
            [schedule(row, nranks, rank, 0, nchunks) for rank in range(nranks)], nbytes, NETWORK
        ).total
        found = predict(
            subject(row, alone(nranks), 0, nchunks, exact=True), nbytes, Levels(NETWORK, NETWORK), window=9
        ).seconds
        assert found == pytest.approx(expected, rel=1e-9), nranks


@pytest.mark.parametrize("key", SYMMETRIC)
@pytest.mark.parametrize(
    ("nranks", "per_node"), [(2, "1"), (7, "1"), (12, "3"), (40, "1"), (40, "4"), (64, "2"), (100, "5")]
)
def test_few_ranks_stand_for_all(key: str, nranks: int, per_node: str) -> None:
    row, nodes = CATALOGUE[key], parse_nodes(per_node, nranks)
    few, every = subject(row, nodes), subject(row, nodes, exact=True)
    assert every.table.nbuilt == nranks
    if key.endswith("/ring"):
        assert few.table.nbuilt == int(per_node)
    for nbytes in (8, 1 << 20):
        expected = predict(every, nbytes, LEVELS).seconds
        # who of several comes first on a link that they share
        tolerance = 1e-9 if per_node == "1" or key.endswith("ring") else 0.2
        assert predict(few, nbytes, LEVELS).seconds == pytest.approx(expected, rel=tolerance)


def test_ranks_that_differ_are_all_built() -> None:
    rng = random.Random(5)
    nodes = numbered(rng.choices(range(4), k=11))
    assert subject(CATALOGUE["allreduce/ring"], nodes).table.nbuilt == 11
    assert subject(CATALOGUE["allreduce/tree"], alone(11)).table.nbuilt == 11


@pytest.mark.parametrize(
    "key", ["bcast/chain", "allreduce/tree", "allreduce/double_tree", "reduce/double_tree"]
)
def test_long_pipelines_go_on_at_their_pace(key: str) -> None:
    what = subject(CATALOGUE[key], alone(30))
    call = what, 64 << 20, Levels(NETWORK, NETWORK), 1000, 10 * what.table.nchannels
    whole = predict(*call, exact=True)
    assert not whole.extrapolated
    assert whole.simulated == whole.stands_for == what.table.nmessages * 1000
    some = predict(*call, most_messages=200 * what.table.nmessages)
    assert some.extrapolated
    assert some.simulated < whole.simulated
    assert some.seconds == pytest.approx(whole.seconds, rel=0.15)


def test_a_segmented_chain_takes_what_theory_says() -> None:
    """(p - 2 + n) segments, of which the first pays the latency on each hop."""
    nranks, nsegments, nbytes = 6, 64, 16 << 20
    what = subject(CATALOGUE["bcast/chain"], alone(nranks))
    found = predict(what, nbytes, Levels(NETWORK, NETWORK), nsegments, 64).seconds
    piece = nbytes / nsegments * NETWORK.beta
    assert found == pytest.approx(
        (nranks - 1) * (NETWORK.alpha + piece) + (nsegments - 1) * (NETWORK.overhead + piece), rel=1e-9
    )


def test_ranks_of_a_node_share_its_link() -> None:
    """Cyclic ranks of a ring all send to another node, ranks by blocks one per node."""
    row, nbytes = CATALOGUE["allreduce/ring"], 64 << 20
    by_blocks, cyclic = (
        predict(subject(row, parse_nodes(text, 16)), nbytes, LEVELS).seconds for text in ("4", "4:cyclic")
    )
    assert 3.5 < cyclic / by_blocks < 4.5
    stripes = CATALOGUE["allreduce/hierarchical"]
    found = [
        predict(subject(stripes, parse_nodes(text, 16)), nbytes, LEVELS).seconds for text in ("4", "4:cyclic")
    ]
    assert found[0] == pytest.approx(found[1], rel=0.01)
    assert found[1] < cyclic / 2


def test_long_messages_are_asked_for() -> None:
    levels = Levels(NETWORK, NETWORK._replace(eager=1000, handshake=1e-5))
    what = subject(CATALOGUE["bcast/chain"], alone(3))
    assert predict(what, 1000, levels).seconds == pytest.approx(
        predict(what, 1000, Levels(NETWORK, NETWORK)).seconds
    )
    assert predict(what, 1001, levels).seconds == pytest.approx(
        predict(what, 1001, Levels(NETWORK, NETWORK)).seconds + 2e-5
    )


@pytest.mark.parametrize(
    ("name", "short_ms", "long_ms"),
    [pytest.param("ring", 99.0, 109.8, marks=pytest.mark.full), ("circulant", 0.060, 11.5)],
)
def test_known_figures_at_24756_ranks(name: str, short_ms: float, long_ms: float) -> None:
    """8 bytes and 64 MiB with 2 us and 12.5 GB/s; the ring of 180 ms with what a hop costs between GPUs."""
    what = subject(CATALOGUE[f"allreduce/{name}"], alone(24756))
    assert what.table.nbuilt == 1
    for nbytes, ms in ((8, short_ms), (64 << 20, long_ms)):
        assert predict(what, nbytes, NETWORKS["fast"]).seconds == pytest.approx(ms * 1e-3, rel=0.05), nbytes


def test_command(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "found.json"
    what = "simulate bcast -n 12 --bytes 8:1M:3 --ranks-per-node 3 --network fast,alpha=3e-6,node.beta=1e-11".split()
    assert main([*what, "--json", str(out)]) == 0
    text = capsys.readouterr().out
    document = json.loads(out.read_text())
    assert "bcast on 12 ranks, 4 nodes of 3 ranks, by blocks" in text
    assert "hierarchical" in text
    assert (document["levels"]["network"]["alpha"], document["levels"]["node"]["beta"]) == (3e-6, 1e-11)
    names = {cell["algorithm"] for cell in document["cells"]}
    assert (
        len({(cell["algorithm"], cell["nbytes"]) for cell in document["cells"]})
        == len(document["cells"])
        == 3 * len(names)
    )
    assert main("simulate allreduce -n 12 --bytes 8:64 --algorithms ring,tree --exact".split()) == 0
    capsys.readouterr()


def test_neighbours_on_a_grid(tmp_path: Path, capsys: Capture) -> None:
    """Bundles pay between hosts for short blocks, not for long ones. A ring is where no grid is."""
    out = tmp_path / "found.json"
    what = "simulate neighbor_alltoall --ranks-per-node 8:cyclic --network ethernet --bytes 48,48M".split()
    what += ["--json", str(out)]
    assert main([*what, "--grid", "4x4x4", "--periodic"]) == 0
    document = json.loads(out.read_text())
    assert (document["nranks"], document["grid"], document["periodic"]) == (64, "4x4x4", True)
    cells = {(cell["nbytes"], cell["algorithm"]): cell["seconds"] for cell in document["cells"]}
    for nbytes, bundled in ((48, True), (48 << 20, False)):
        assert (cells[nbytes, "hierarchical"] < cells[nbytes, "direct"]) == bundled
    assert main([*what, "-n", "16"]) == 0
    titles = [
        line.partition(":")[0]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("neighbor_alltoall")
    ]
    where = "64 ranks, periodic grid 4x4x4, 8", "16 ranks, ring, 2"
    assert titles == [f"neighbor_alltoall on {one} nodes of 8 ranks, cyclic" for one in where]


@pytest.mark.parametrize("placement", [["--ranks-per-node=3"], []])
def test_the_picture_says_what_was_simulated(placement: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "a.svg"
    assert (
        main(
            [
                "simulate",
                "bcast",
                "-n12",
                *placement,
                "--network=ethernet",
                "--bytes=8",
                "--plot",
                str(picture),
            ]
        )
        == 0
    )
    nodes = "4 nodes of 3 ranks, by blocks" if placement else "12 nodes of 1 rank"
    assert f"bcast, 12 ranks, {nodes}, network ethernet" in picture.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "1"], "simulate needs 2 to 262144 ranks"),
        (
            ["--bytes", "8:64:0"],
            "bytes must look like 64K, 8,64K,1M, 8:1G or 8:1G:12, at most 1000 sizes, got '8:64:0'",
        ),
        (["--bytes", "8,x"], "size must be a number of bytes such as 8, 64K or 1.5M, got 'x'"),
        (["--bytes", "0"], "bytes must be at least 1, got '0'"),
        (["--bytes", "64:8"], "bytes need 1 <= FROM <= TO"),
        (["--network", "slow"], "network must be one of"),
        (["--network", "fast,speed=1"], "must be one of alpha, beta"),
        (["--network", "fast,alpha=x"], "network constant alpha must be a number"),
        (["--network", "fast,alpha=1e-7"], "network needs 0 <= overhead <= alpha"),
        (
            ["--nodes", "8"],
            "--nodes took the ranks of each node, and is called what it takes now: write --ranks-per-node 8\n",
        ),
        (["--ranks-per-node", "3+3"], "nodes '3+3' have 6 ranks together"),
        ("--ranks-per-node 8 --domains 3+3".split(), "nodes '3+3' have 6 ranks together, expected 8"),
        (
            "--ranks-per-node=8 --domains=4 --network fast,domains.streams=0".split(),
            "domains.streams must be a number from 1 to 1e+09",
        ),
        (["--algorithms", "rings"], "allreduce algorithm must be one of"),
    ],
)
def test_refused(arguments: list[str], message: str, capsys: Capture) -> None:
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
def test_files_that_cannot_be_written_are_refused(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    assert main(["simulate", "allreduce", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_root_is_like_no_other_rank() -> None:
    """In a chain all others look alike, and their steps would wait for ever for a message that begins nowhere."""
    row, nodes = CATALOGUE["bcast/chain"], parse_nodes("3", 99)
    assert (
        predict(subject(row, nodes, 41), 8, LEVELS).seconds
        == predict(subject(row, nodes, 41, exact=True), 8, LEVELS).seconds
    )


def test_tables_fit_120_columns_however_many_sizes_and_algorithms(capsys: Capture) -> None:
    assert (
        main("simulate allreduce -n 16 --ranks-per-node 4 --bytes 8:64M:24 --network ethernet".split()) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 120
    heads = [re.split("  +", line) for line in lines if line.startswith("algorithm ")]
    assert (len(heads) > 1, sum(len(head) - 1 for head in heads)) == (True, 24)
    assert sum(line.startswith("recursive_multiplying ") for line in lines) == len(heads)
    assert (
        "network: alpha 30 us, overhead 5 us, beta 8 ns/byte, gamma 0.01 ns/byte, eager to 64 KiB, else handshake 60 us"
        in lines
    )
