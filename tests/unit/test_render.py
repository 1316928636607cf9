"""Drawings hold the whole structure and stay inside their bounds; colours and labels of drawings of many algorithms."""

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hpcoll.analysis.render import Drawing, Ring, Rounds, Tree, channel_name, chunk_name, draw
from hpcoll.analysis.render_svg import render_svg
from hpcoll.analysis.render_text import render_text
from hpcoll.cli import plot
from hpcoll.cli.bench import earlier
from hpcoll.cli.bench.earlier import Result, Run
from hpcoll.schedules.catalogue import CATALOGUE, algorithms
from hpcoll.schedules.ir import Buffer, Chunk, inputs

SVG = "{http://www.w3.org/2000/svg}"


def drawing(key: str, nranks: int, root: int = 0, nchunks: int = 3) -> Drawing:
    return draw(CATALOGUE[key], nranks, root, nchunks)


def lines(key: str, nranks: int, width: int = 80, root: int = 0) -> list[str]:
    return render_text(drawing(key, nranks, root), width).splitlines()


@pytest.mark.ci
@pytest.mark.parametrize("nranks", [1, 2, 3, 8])
@pytest.mark.parametrize("key", CATALOGUE)
def test_every_row_is_drawn_as_text(key: str, nranks: int) -> None:
    for width in (40, 80, 200):
        found = lines(key, nranks, width)
        assert found[0].startswith(key[: width - 1])
        assert max(len(line) for line in found) <= width
        first = next(i for i, line in enumerate(found) if line.startswith("round "))
        rows = found[first + 1 : first + 1 + nranks * drawing(key, nranks).nchannels]
        assert [int(row.split()[0]) for row in rows if row[:3].strip()] == list(range(nranks))


@pytest.mark.parametrize("nranks", [1, 2, 3, 8, 20])
@pytest.mark.parametrize("key", CATALOGUE)
def test_every_row_is_drawn_as_a_picture(key: str, nranks: int) -> None:
    picture = ElementTree.fromstring(render_svg(drawing(key, nranks)))
    texts = [element.text for element in picture.iter(f"{SVG}text")]
    assert {f"rank {rank}" for rank in range(nranks)} <= set(texts)
    if nranks > 1:
        assert {str(rank) for rank in range(nranks)} <= set(texts)
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
    for element in picture.iter():
        if "x" in element.attrib:
            assert 0 <= float(element.attrib["x"]) < width
            assert 0 <= float(element.attrib["y"]) < height


@pytest.mark.parametrize(
    ("key", "boxes", "said"),
    [
        ("allreduce/hierarchical", True, "a box, and a tint: ranks of a node"),
        ("bcast/hierarchical", False, "a tint: ranks of a node"),
        ("bcast/binomial", False, ""),
    ],
)
def test_a_picture_shows_the_nodes_and_explains_its_marks(key: str, boxes: bool, said: str) -> None:
    """Every rank in the box of its node, in each round; every kind of mark on a bar in the legend."""
    row, nodes = CATALOGUE[key], (0, 0, 0, 1, 2, 2)
    picture = ElementTree.fromstring(render_svg(draw(row, 6, 0, 1, nodes if row.placed else ())))
    texts = [element.text or "" for element in picture.iter(f"{SVG}text")]
    legend = " ".join(text for text in texts if ": " in text)
    marks = {
        mark
        for text in texts
        if ": " not in text and text[:1] in ("<", ">")
        for mark in "<>+s-"
        if mark in text
    }
    assert all(f"{mark}{'0' * (mark == 's')}" in legend for mark in marks), (marks, legend)
    assert said in legend
    assert ("tint" in legend, texts.count("node 2")) == ((True, 2) if said else (False, 0))
    rects = [
        [float(one.attrib[name]) for name in ("x", "y", "width", "height")]
        for one in picture.iter(f"{SVG}rect")
        if "x" in one.attrib
    ]
    ranks = [(float(one.attrib["cx"]), float(one.attrib["cy"])) for one in picture.iter(f"{SVG}circle")]
    inside = [any(x < cx < x + w and y < cy < y + h for x, y, w, h in rects) for cx, cy in ranks]
    assert all(inside) if boxes else not any(inside)


def test_a_tree_is_printed_with_every_rank_once() -> None:
    text = "\n".join(lines("bcast/binomial", 8, root=2))
    structure = text[text.index("tree, sent from rank 2") :].split("\n\n")[0].splitlines()[1:]
    assert structure[0].strip() == "2"
    assert sorted(int(line.strip(" │├└─")) for line in structure) == list(range(8))


def test_shapes_are_found() -> None:
    assert drawing("allreduce/ring", 4).shapes == ((0, Ring((0, 1, 2, 3))),)
    assert drawing("allreduce/ring", 2).shapes == ((0, Ring((0, 1))),)
    assert drawing("allreduce/ring", 1).shapes == ()
    tree = Tree(2, ((1,), (), (3, 0), ()), "", "sent")
    assert drawing("bcast/binomial", 4, root=2).shapes == ((0, tree),)
    assert drawing("bcast/binomial", 2).shapes == ((0, Tree(0, ((1,), ()), "", "sent")),)
    assert drawing("reduce/binomial", 2).shapes == ((0, Tree(0, ((1,), ()), "reduced", "")),)
    (channel, rounds) = drawing("alltoall/pairwise", 3).shapes[0]
    assert (channel, rounds) == (
        0,
        Rounds(((1, 1, ((0, 1), (1, 2), (2, 0))), (2, 2, ((0, 2), (1, 0), (2, 1))))),
    )


def test_double_tree_has_a_tree_in_each_channel() -> None:
    shapes = drawing("allreduce/double_tree", 8).shapes
    assert [channel for channel, _ in shapes] == [0, 1]
    assert all(
        isinstance(shape, Tree) and shape.up == "reduced" and shape.down == "sent" for _, shape in shapes
    )
    assert shapes[0][1].caption == "tree, reduced towards rank 0, then sent from rank 0"


def test_ring_timeline_in_full() -> None:
    assert lines("allreduce/ring", 2)[-8:] == [
        "ring",
        "  0 → 1 → 0",
        "",
        "round   1             2",
        "  0     >1 c1 <1+c0   >1 c0 <1 c1",
        "  1     >0 c0 <0+c1   >0 c1 <0 c0",
        "",
        "  >1 sends to rank 1, <1 receives from it, + reduces, c0: chunk 0",
    ]


def test_many_ranks_and_rounds_are_left_out_and_counted() -> None:
    found = lines("allreduce/ring", 60)
    assert "  ... 28 more ranks" in found
    assert any(re.fullmatch(r"  \.\.\. rounds \d+ to 118 are left out", line) for line in found)
    assert any("..." in line and "→" in line for line in found)
    assert "  ... 36 more ranks" in lines("bcast/binomial", 100)


def test_rounds_alike_at_all_ranks_are_one_line() -> None:
    assert "  round 2: every rank r → r+2" in lines("alltoall/direct", 5)
    assert "  round 4: every rank r → r-1" in lines("alltoall/direct", 5)


def test_chunks_are_named_by_what_they_hold() -> None:
    allgather, alltoall = (drawing(key, 3).schedules[1] for key in ("allgather/ring", "alltoall/direct"))
    assert chunk_name(allgather, inputs(0)) == "c1"
    assert chunk_name(alltoall, inputs(0, 2)) == "c1.0-1.1"
    assert chunk_name(alltoall, Chunk(Buffer.OUTPUT, 2)) == "c2.1"
    assert chunk_name(alltoall, Chunk(Buffer.SCRATCH, 2)) == "s2"
    assert [channel_name(channel) for channel in (0, 25, 26)] == ["A", "Z", "26"]


pytest.importorskip("matplotlib")
NAMES = ("native", "auto", *algorithms("allreduce"))


def results(name: str, us: float) -> list[Result]:
    return [
        Result(name, side, size, {"time": us * size / 8, "bus_bw": 8 / us / size})
        for side in ("out_of_place", "in_place")
        for size in (8, 64)
    ]


def test_every_algorithm_has_a_look_of_its_own() -> None:
    found = plot.looks(NAMES)
    assert len(set(found.values())) == len(NAMES) > 15
    assert len({colour for _, colour in found.values()}) == 7, "more cannot be told apart"


def test_labels_keep_apart_below_the_top() -> None:
    found = plot.spread([0.5] * 8 + [0.99] * 3)
    assert all(b - a >= plot.GAP - 1e-9 for a, b in itertools.pairwise(found))
    assert found[0] == 0.5
    assert found[-1] <= 1
    assert plot.spread([0.1, 0.5, 0.9]) == [0.1, 0.5, 0.9]


@pytest.mark.ci
def test_of_many_algorithms_the_slow_ones_are_faded_and_all_are_labelled(tmp_path: Path) -> None:
    found = [one for i, name in enumerate(NAMES) for one in results(name, 10.0 - i / 10)]
    run = Run("run", ("allreduce",), tuple(found))
    assert earlier.fastest([run]) == {"native", "auto", NAMES[-1]}
    few = Run("few", ("allreduce",), tuple(found[:16]))
    assert earlier.fastest([few]) == set(NAMES[:4])
    earlier.draw([run], tmp_path / "a.svg")
    svg = (tmp_path / "a.svg").read_text()
    texts = re.findall(r"<!-- (.*?) -->", svg)
    assert all(texts.count(name) == 2 for name in NAMES), "once in each panel"
    assert len(re.findall(r'<path d="[^"]*"[^>]*stroke-opacity: 0.3', svg)) >= 2 * (len(NAMES) - 3)
