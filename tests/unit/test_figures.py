"""Colours, labels at the ends of curves, and what is faded in drawings of many algorithms."""

import doctest
import itertools
import re
from pathlib import Path

import pytest

from hpcoll.cli import figures
from hpcoll.cli.bench import plot
from hpcoll.cli.bench.plot import Line, Run
from hpcoll.schedules.catalogue import algorithms

pytest.importorskip("matplotlib")
NAMES = ("native", "auto", *algorithms("allreduce"))


def lines(name: str, us: float) -> list[Line]:
    values = {"time": (us, 2 * us), "bus_bw": (1 / us, 2 / us)}
    return [Line(name, side, (8, 64), values) for side in ("out_of_place", "in_place")]


def test_every_algorithm_has_a_colour_of_its_own() -> None:
    found = figures.colours(NAMES)
    assert len(set(found.values())) == len(NAMES) > 11


def test_labels_keep_apart_below_the_top() -> None:
    assert doctest.testmod(figures).failed == 0
    found = figures.spread([50.0] * 8, 100)
    assert all(b - a >= figures._GAP for a, b in itertools.pairwise(found))
    assert found[-1] <= 100


def test_of_many_algorithms_the_slow_ones_are_faded_and_all_are_labelled(tmp_path: Path) -> None:
    found = [line for i, name in enumerate(NAMES) for line in lines(name, 10.0 - i / 10)]
    run = Run("run", ("allreduce",), tuple(found))
    assert plot._best([run]) == {"native", "auto", NAMES[-1]}
    few = Run("few", ("allreduce",), tuple(found[:8]))
    assert plot._best([few]) == set(NAMES[:4])
    plot.draw([run], tmp_path / "a.svg")
    svg = (tmp_path / "a.svg").read_text()
    texts = re.findall(r"<!-- (.*?) -->", svg)
    assert all(texts.count(name) == 2 for name in NAMES), "once in each panel"
    assert len(re.findall(r'<path d="[^"]*"[^>]*stroke-opacity: 0.3', svg)) >= 2 * (len(NAMES) - 3)
