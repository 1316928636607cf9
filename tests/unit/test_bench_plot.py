"""Drawings of the results of ``hpcoll bench``, and their columns of overlap."""

import copy
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcoll.base.errors import ArgumentError
from hpcoll.cli import main, plot
from hpcoll.cli.bench import earlier
from hpcoll.cli.bench.report import Report, ResultRow, as_nccl, document, summarise

MAGIC = {".svg": b"<?xml", ".png": b"\x89PNG\r\n\x1a\n", ".pdf": b"%PDF-"}
OPEN_MPI, MPICH = "Open MPI v5.0.11, package: x, ident: 5.0.11", "MPICH Version: 5.0.2"


def rows(algorithm: str, scale: float, *, hidden: bool = False, in_place: bool = True) -> list[ResultRow]:
    found = []
    for size in (8, 512, 32768):
        seconds = np.full(3, scale * (1 + size / 4096) * 1e-6)
        side = summarise(seconds, size, 1.0, nwrong=0, native=seconds, batch=1)
        if hidden:
            side = replace(side, work_us=2.0, both_us=3.0, hidden=0.75)
        found.append(
            ResultRow(
                algorithm, algorithm, size, size // 4, "float", "sum", -1, side, side if in_place else None
            )
        )
    return found


def report(
    *names: str, mpi: str = OPEN_MPI, nranks: int = 4, mode: str = "blocking", **extras: Any
) -> Report:
    found = [
        row
        for i, name in enumerate(names or ("native", "ring", "auto"))
        for row in rows(name, i + 1.0, **extras)
    ]
    return Report(
        "allreduce",
        nranks,
        ["heading"],
        found,
        [],
        {"config": {"mpi": mpi, "mode": mode, "memory": "ordinary"}},
    )


def saved(path: Path, **extras: Any) -> Path:
    path.write_text(json.dumps(document(report(**extras))))
    return path


def drawn(path: Path, *documents: Any) -> str:
    """Return what an SVG of documents says."""
    earlier.draw([earlier.run_of(one, f"run{i}") for i, one in enumerate(documents)], path)
    return path.read_text()


def texts(svg: str) -> list[str]:
    """All texts: matplotlib writes each as a comment before its outlines."""
    return re.findall(r"<!-- (.*?) -->", svg)


def strokes(svg: str) -> set[tuple[str, bool, float]]:
    """Colour, whether dashed, and width of every line that is wide enough or coloured."""
    found = set()
    for style in re.findall(r'<path d="[^"]*"[^>]*style="(fill: none[^"]*)"', svg):
        colour, width = re.search(r"stroke: (#\w+)", style), re.search(r"stroke-width: ([\d.]+)", style)
        if colour:
            found.add((colour[1], "stroke-dasharray" in style, float(width[1]) if width else 1.0))
    return found


@pytest.mark.parametrize(
    "suffix", [".svg", ".PNG", *(pytest.param(one, marks=pytest.mark.full) for one in (".png", ".pdf"))]
)
def test_the_extension_picks_the_type(suffix: str, tmp_path: Path) -> None:
    target = tmp_path / f"picture{suffix}"
    plot.check(target)
    assert not target.exists()
    earlier.draw([earlier.run_of(document(report()), "run")], target)
    assert target.read_bytes().startswith(MAGIC[suffix.lower()])


def test_native_is_black_and_dashed_and_in_place_is_thinner(tmp_path: Path) -> None:
    svg = drawn(tmp_path / "a.svg", document(report()))
    found = strokes(svg)
    thick, thin = earlier.WIDTHS.values()
    assert thin < thick
    assert {("#000000", True, thick), ("#000000", True, thin)} <= found
    for colour in ("#1f77b4", "#ff7f0e"):
        assert {(colour, False, thick), (colour, False, thin)} <= found
    assert not {one for one in found if one[0] == "#2ca02c"}


def test_title_axes_and_legend(tmp_path: Path) -> None:
    found = texts(drawn(tmp_path / "a.svg", document(report())))
    assert {
        "allreduce, 4 ranks, float32 sum, Open MPI 5.0.11",
        "native",
        "ring",
        "auto",
        "out of place",
        "in place",
    } <= set(found)
    assert {"bus bandwidth (GB/s)", "message size", "8 B", "32 KiB"} <= set(found)
    only = texts(drawn(tmp_path / "b.svg", document(report(in_place=False))))
    assert "in place" not in only


def test_what_others_disturbed_is_crossed_out(tmp_path: Path) -> None:
    told = "disturbed: other programs used the cores"
    quiet, busy = document(report()), document(report())
    busy["results"][4]["disturbed"] = True
    assert [told in texts(drawn(tmp_path / "a.svg", one)) for one in (quiet, busy)] == [False, True]
    found = [one.crossed for one in earlier.curves([earlier.run_of(busy, "run")], "time")]
    assert found == [[], [], [1], [1], [], []]


def test_runs_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    found = texts(drawn(tmp_path / "a.svg", document(report()), document(report(mpi=MPICH))))
    assert {"allreduce, 4 ranks, float32 sum", "Open MPI 5.0.11", "MPICH 5.0.2"} <= set(found)
    found = texts(
        drawn(tmp_path / "b.svg", document(report()), document(report(nranks=8, mode="persistent")))
    )
    assert {"allreduce, float32 sum, Open MPI 5.0.11", "4 ranks", "8 ranks, persistent"} <= set(found)
    found = texts(drawn(tmp_path / "c.svg", document(report()), document(report())))
    assert {"run0", "run1"} <= set(found)


def test_overlap_draws_the_hidden_share(tmp_path: Path) -> None:
    overlap = document(report(mode="overlap", hidden=True))
    found = texts(drawn(tmp_path / "a.svg", overlap))
    assert "hidden by overlap (%)" in found
    assert "bus bandwidth (GB/s)" not in found
    found = texts(drawn(tmp_path / "b.svg", overlap, document(report())))
    assert "bus bandwidth (GB/s)" in found


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.bmp", "plot file must end in .svg, .png, .pdf, got 'a.bmp'"),
        ("a", "plot file must end in"),
        ("/nowhere/a.png", "cannot write /nowhere/a.png: No such file"),
    ],
)
def test_targets_that_cannot_be_drawn(path: str, text: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(text)):
        plot.check(Path(path))


def test_a_target_that_exists_is_kept_until_there_is_a_drawing(tmp_path: Path) -> None:
    target = tmp_path / "a.png"
    target.write_text("old")
    plot.check(target)
    assert target.read_text() == "old"
    (tmp_path / "b.png").mkdir()
    with pytest.raises(ArgumentError, match="Is a directory"):
        plot.check(tmp_path / "b.png")


def test_a_target_that_cannot_be_written_in_the_end(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"cannot write .*a\.png"):
        earlier.draw([earlier.run_of(document(report()), "run")], tmp_path / "gone" / "a.png")


def test_names_that_others_gave_are_drawn_as_they_are(tmp_path: Path) -> None:
    """Neither formulas nor what no file of pictures can hold; and what is long is cut."""
    odd = document(report("$\\frac{$", "\ud800\x1b[2J", "x" * 10_000))
    found = texts(drawn(tmp_path / "a.svg", odd | {"collective": "$\\sqrt{$"}))
    assert {"$\\frac{$", "??[2J", "x" * 39 + "…"} <= set(found)
    assert any(text.startswith("$\\sqrt{$, 4 ranks, ") for text in found)


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    with pytest.raises(ArgumentError, match=re.escape("pip install 'hpcoll[plot]'")):
        plot.check(Path("a.png"))


def test_documents_that_are_not_ours() -> None:
    good = document(report())
    for broken in ([], {}, {**good, "results": []}, {**good, "config": {}}, {**good, "nranks": "many"}):
        with pytest.raises(ArgumentError, match="file is not a result of hpcoll bench"):
            earlier.run_of(broken, "file")
    for key, value in (("type", "quad"), ("size", None), ("in_place", {}), ("out_of_place", {"time": 1})):
        broken = copy.deepcopy(good)
        broken["results"][0][key] = value
        with pytest.raises(ArgumentError, match="file is not a result of hpcoll bench"):
            earlier.run_of(broken, "file")
    for key, value in (
        ("time", 0),
        ("time", float("inf")),
        ("time", 10**400),
        ("bus_bw", float("nan")),
        ("bus_bw", -1),
        ("hidden", "x"),
    ):
        broken = copy.deepcopy(good)
        broken["results"][0]["out_of_place"][key] = value
        with pytest.raises(
            ArgumentError,
            match=rf"^file is not a result .*: field results\[0\].out_of_place.{key}: expected ",
        ):
            earlier.run_of(broken, "file")
    many = {
        **good,
        "results": [{**good["results"][0], "algorithm": str(i)} for i in range(earlier.MOST_ALGORITHMS + 1)],
    }
    with pytest.raises(ArgumentError, match="expected at most 100 algorithms, got more"):
        earlier.run_of(many, "file")
    for row in good["results"]:
        row["size"] = 0
    with pytest.raises(ArgumentError, match="file has messages without bytes"):
        earlier.run_of(good, "file")


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (OPEN_MPI, "Open MPI 5.0.11"),
        (MPICH, "MPICH 5.0.2"),
        ("Intel(R) MPI Library 2021.12 for Linux* OS", "Intel(R) MPI 2021.12"),
        ("MPI VERSION : CRAY MPICH version 8.1.27.26 (ANL base 3.4a2)", "CRAY MPICH 8.1.27.26"),
        ("something else", "something else"),
    ],
)
def test_names_of_libraries(said: str, name: str) -> None:
    assert earlier.library_name(said) == name


def test_earlier_results_are_drawn_without_mpi(tmp_path: Path) -> None:
    first, second = saved(tmp_path / "o.json"), saved(tmp_path / "m.json", mpi=MPICH)
    program = """
import sys
sys.modules["mpi4py"] = None
from hpcoll.cli import main
code = main(sys.argv[1:])
assert "numba" not in sys.modules
assert "matplotlib.pyplot" not in sys.modules
sys.exit(code)
"""
    target = tmp_path / "both.svg"
    flags = ["--plot", str(target), "--from", str(first), "--from", str(second), "--algorithms", "ring"]
    result = subprocess.run(
        [sys.executable, "-c", program, "bench", *flags], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", f"hpcoll: wrote {target}\n")
    found = texts(target.read_text())
    assert {"native", "ring", "Open MPI 5.0.11", "MPICH 5.0.2"} <= set(found)
    assert "auto" not in found


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--from", "o.json"], "--from needs --plot FILE"),
        ("--plot a.png --from none.json".split(), "cannot read none.json: No such file"),
        ("--plot a.png --from text".split(), "text, line 1: expected JSON"),
        ("--plot a.gif --from o.json".split(), "plot file must end in"),
        (
            "--plot a.png --from o.json --algorithms tree,ring".split(),
            "algorithms of the results given with --from must be one",
        ),
        ("bcast --plot a.png --from o.json".split(), "o.json is not of bcast"),
        (["--plot", "a.png"], "bench needs a collective: allreduce"),
    ],
)
def test_refused_flags(
    flags: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(Path("o.json"))
    Path("text").write_text("# hpcoll")
    assert main(["bench", *flags]) == 2
    assert capsys.readouterr().err.startswith(f"hpcoll: error: {text}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.json", "text"]


def test_overlap_adds_columns_to_every_format() -> None:
    blocking, overlap = report("native", "ring"), report("native", "ring", hidden=True)
    header, line = (
        next(line for line in as_nccl(overlap).splitlines() if key in line) for key in (" size ", " 512 ")
    )
    assert header.split()[-7:] == ["P99", "P99", *["hidden"] * 4, "algorithm"]
    assert line.split()[-5:] == [*["75"] * 4, "native"]
    assert header.rindex(" ") == line.rindex(" ")
    assert "hidden" not in as_nccl(blocking)
    sides = [document(one)["results"][0]["in_place"] for one in (overlap, blocking)]
    assert [(side["work_us"], side["both_us"], side["hidden"]) for side in sides] == [
        (2.0, 3.0, 0.75),
        (None, None, None),
    ]
