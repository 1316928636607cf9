"""``jobs/gpu_check.sh``: the environment that it makes over another, and that what breaks in a step costs nothing but that step."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from gpu_machine import CHECK, NOTHING_TO_DO, ROOT, check, left, running, variables
from slowness import slowed

sys.path.append(str(CHECK))
_PROGRAM = """
from cuda.pathfinder import load_nvidia_dynamic_lib
print(*(load_nvidia_dynamic_lib(name).found_via for name in ("nvrtc", "nvJitLink", "nvvm")))
from numpy import dtype
from hpcoll.base.ops import SUM
from hpcoll.kernels import device
print(b".entry" in device.fold(SUM, dtype("f4"), (9, 0)).ptx)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("over") / "venv"
    subprocess.run([sys.executable, ROOT / "jobs" / "environment_over.py", folder], check=True)
    return folder / "bin" / "python"


def answer(python: Path, program: str, tmp_path: Path) -> list[str]:
    """Return what a program prints that has neither this process's folder nor kernels that were kept."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "CUDA_HOME": ""}
    command = [python, "-c", program]
    run = subprocess.run(
        command,
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=slowed(100),
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_cuda_libraries_of_the_outer_environment_are_found_and_compile(python: Path, tmp_path: Path) -> None:
    pytest.importorskip("cuda.pathfinder")
    assert answer(python, _PROGRAM, tmp_path) == ["site-packages"] * 3 + ["True"]


def test_what_is_installed_in_it_comes_first(python: Path, tmp_path: Path) -> None:
    (packages,) = python.parents[1].glob("lib/python3*/site-packages")
    (packages / "numpy.py").write_text("where = 'inner'\n")
    try:
        assert answer(python, "import numpy; print(numpy.where)", tmp_path) == ["inner"]
    finally:
        (packages / "numpy.py").unlink()


def test_what_the_index_gives_is_locked(tmp_path: Path, python: Path) -> None:
    """By hash, and no package beside those of the lock files; a folder of wheels is the caller's."""
    import install
    from knobs import Knobs

    knobs = replace(Knobs(), wheels="", work=tmp_path, venv=python.parents[1], python=sys.executable)
    for cuda in ("12", "13"):
        of_cuda = replace(knobs, cuda=cuda)
        asked = install.packages(of_cuda)
        words = install.pip(of_cuda, [*asked, *install.every(of_cuda)])
        assert {"--require-hashes", "--no-deps"} <= {*words}
        text = Path(words[-1]).read_text()
        assert [name for name in asked if f"{install.normal(name)}==" not in text] == []
        assert "--no-index" in install.pip(replace(of_cuda, wheels="wheels"), asked)
    lacks = install.lacking(knobs, ["numpy", "pytest", "numba-cuda[cu13]", "no-such-package"])
    assert "numpy" not in lacks
    assert {"pytest", "pluggy", "no-such-package"} <= {*lacks}


_WITHOUT_OTHERS = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if "editable" not in getattr(one, "__module__", "")]
import hpcoll.kernels.device
print(hpcoll.__file__, hpcoll.kernels.__file__)
"""


def test_the_environment_has_this_checkout_and_no_other(tmp_path: Path) -> None:
    check(tmp_path, 2, **NOTHING_TO_DO)
    (tmp_path / "hpcoll.py").write_text("")  # another hpcoll, in the folder that is searched first
    found = answer(tmp_path / "venv" / "bin" / "python", _WITHOUT_OTHERS, tmp_path)
    assert found == [f"{ROOT}/hpcoll/__init__.py", f"{ROOT}/hpcoll/kernels/__init__.py"]


_HANGS = """
import os, subprocess, sys, time
def asleep_in_here(marker, depth):
    if depth:
        subprocess.Popen([sys.executable, __file__, marker, str(depth - 1)], start_new_session=True)
        if depth == 2:
            os._exit(0)  # the next one becomes an orphan
    time.sleep(60)
asleep_in_here(sys.argv[1], int(sys.argv[2]))
"""


def contained(tmp_path: Path, limit_s: float, *command: object) -> tuple[str, str]:
    """Status and log of a command, run by a process of its own, which adopts what the command leaves."""
    log = tmp_path / "log.txt"
    program = "import sys; from contained import *; adopt_orphans(); print(run(sys.argv[3:], Path(sys.argv[1]), float(sys.argv[2])).status)"
    words = map(str, [sys.executable, "-c", program, log, limit_s, *command])
    found = os.environ | {"PYTHONPATH": str(CHECK)}
    run = subprocess.run(
        list(words), env=found, capture_output=True, text=True, check=True, timeout=slowed(60)
    )
    return run.stdout.strip(), log.read_text()


def test_over_its_limit_a_command_and_all_below_it_dump_their_stacks_and_end(tmp_path: Path) -> None:
    program = tmp_path / "hangs.py"
    program.write_text(_HANGS)
    status, log = contained(tmp_path, 3, "sh", "-c", f"{sys.executable} {program} {tmp_path} 1; true")
    assert status == "hung"
    assert log.count("in asleep_in_here") == 2
    assert running(str(program)) == []


_WAITS = """
from mpi4py import MPI
def waits_in_mpi():
    MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank).Barrier()
    MPI.COMM_WORLD.recv(source=1 - MPI.COMM_WORLD.rank)
waits_in_mpi()
"""


@pytest.mark.full
def test_ranks_that_wait_in_mpi_dump_their_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    program = tmp_path / "waits.py"
    program.write_text(_WAITS)
    status, log = contained(
        tmp_path, 6, Path(sys.executable).with_name("mpirun"), "-n", "2", sys.executable, program
    )
    assert status == "hung"
    assert log.count("in waits_in_mpi") == 2
    assert running(str(program)) == []


def test_what_a_command_leaves_behind_is_ended(tmp_path: Path) -> None:
    program = tmp_path / "hangs.py"
    program.write_text(_HANGS)
    status, _ = contained(tmp_path, 20, sys.executable, program, tmp_path, 2)
    assert status == "ok"
    assert running(str(program)) == []


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("exit 0", "ok"),
        ("exit 3", "exit 3"),
        ("kill -SEGV $$", "SIGSEGV"),
        ("exit 139", "SIGSEGV"),
        ("exit 124", "hung"),
        ("exit 255", "exit 255"),
    ],
)
def test_outcomes_are_named(program: str, status: str, tmp_path: Path) -> None:
    assert contained(tmp_path, 20, "sh", "-c", program)[0] == status


def test_a_program_that_is_missing_is_an_outcome(tmp_path: Path) -> None:
    assert contained(tmp_path, 20, "no-such-program")[0] == "not found: no-such-program"


@pytest.mark.parametrize(
    "hangs", [3, *(pytest.param(number, marks=pytest.mark.full) for number in (1, 2, 4, 5, 6, 7))]
)
def test_a_step_that_hangs_and_one_that_crashes_cost_only_themselves(hangs: int, tmp_path: Path) -> None:
    crashes = hangs % 7 + 1
    breaks = {f"--step {hangs} ": "hang", f"--step {crashes} ": "crash"}
    knobs = NOTHING_TO_DO | {"PYTHON": sys._base_executable, "LIMITS": f"{hangs}=1"}
    left = check(tmp_path, BREAKS=breaks, **knobs)
    wanted = {hangs: "hung", crashes: "SIGABRT"}
    assert {number: step["status"] for number, step in left.steps.items()} == {
        number: wanted.get(number, "ok") for number in range(1, 8)
    }
    assert left.status == 1
    for number, step in left.steps.items():
        folder = f"{number}-{step['name'].replace(' ', '-')}"
        assert f"| {number} {step['name']} | {step['began']} | {step['status']} |" in left.table
        assert ("in _break" in left.logs[f"{folder}/log.txt"]) is (number in wanted)
        parts = {one["name"] for one in step["parts"]}
        assert parts >= (
            {1: {"limits", "shm", "packages", "nvidia-smi"}, 2: {"environment"}, 6: {"mps"}, 7: {"none"}}.get(
                number, set()
            )
            if number not in wanted
            else set()
        )
        assert {f"{folder}/{name}.txt" for name in parts} <= left.logs.keys()
    assert f"### step {hangs} {left.steps[hangs]['name']}: hung" in left.table
    assert left.processes == []


def test_a_probe_that_crashes_and_one_that_hangs_cost_only_themselves(tmp_path: Path) -> None:
    breaks = {"probes.py symbols": "crash", "probes.py memory": "hang"}
    left = check(tmp_path, 3, PROBES="symbols memory context", PROBE_LIMIT_S=4, BREAKS=breaks)
    assert {one["name"]: one["status"] for one in left.steps[3]["parts"]} == {
        "symbols": "SIGABRT",
        "memory": "hung",
        "context": "ok",
    }
    assert "in _break" in left.logs["3-probes/memory.txt"]
    assert left.found("context")["name of GPU 0"] == "Double 0"
    assert "# Double 0" in left.table
    assert left.processes == []


def test_ranks_that_hang_dump_their_stacks(tmp_path: Path) -> None:
    breaks = {"mpi_run.py --rank": "hang"}
    left = check(tmp_path, 5, NRANKS=2, FILES="collectives", WAYS="ipc", TEST_LIMIT_S=7, BREAKS=breaks)
    assert left.part(5, "collectives-ipc-2")["status"] == "hung"
    assert left.logs["5-tests/collectives-ipc-2.txt"].count("in _break") == 2
    assert left.processes == []


def test_what_is_cut_off_has_reported(tmp_path: Path) -> None:
    environment = variables(
        tmp_path, **NOTHING_TO_DO, PYTHON=sys._base_executable, BREAKS={"--step 3 ": "hang"}
    )
    with subprocess.Popen(
        [ROOT / "jobs" / "gpu_check.sh", "1", "3"], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        while not any("--step 3 " in line for line in running(str(tmp_path))):
            time.sleep(0.05)
        process.terminate()
        output = process.communicate(timeout=slowed(30))[0]
    found = left(tmp_path, process.returncode, output)
    assert found.status == 128 + signal.SIGTERM
    assert {number: step["status"] for number, step in found.steps.items()} == {1: "ok", 3: "running"}
    assert found.processes == []


def test_a_later_call_adds_steps(tmp_path: Path) -> None:
    knobs = NOTHING_TO_DO | {"PYTHON": sys._base_executable}
    assert set(check(tmp_path, 1, 7, **knobs).steps) == {1, 7}
    found = check(tmp_path, STEPS="4", **knobs)
    assert set(found.steps) == {1, 4, 7}
    assert found.status == 0
    assert "no step 9" in check(tmp_path, 9, reads=False, **knobs).output


def test_steps_go_on_where_results_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "gpu.md").mkdir()
    run = check(tmp_path, 1, 7, **NOTHING_TO_DO, PYTHON=sys._base_executable, reads=False)
    assert "IsADirectoryError" in run.output
    assert [line for line in run.output.splitlines() if line.endswith(" s")][-1].startswith("7 failures: ok")


def test_files_that_were_cut_off_do_not_end_the_report(tmp_path: Path) -> None:
    import report

    folder = tmp_path / "work" / "4-small-bench"
    folder.mkdir(parents=True)
    (folder / "step.json").write_text(
        json.dumps({"number": 4, "name": "small bench", "began": "", "status": "ok", "seconds": 1})
    )
    (folder / "parts.jsonl").write_text('{"name": "a", "status": "exit 1", "seconds": 1}\n{"name": "b", "sta')
    (folder / "a.txt").write_text('{"what": "one", "value": 1}\n{"what": "tw\nlast words\n')
    (folder / "bench-a.json").write_text('{"collective": "allreduce"}')
    (folder / "bench-b.json").write_text('{"collec')
    text = report.write(tmp_path / "work", tmp_path).read_text()
    for line in (
        "# gpu",
        "| a | exit 1 | 1.0 |  |",
        "| a | one | 1 |  |",
        "last words",
        "not as expected: KeyError 'results'",
    ):
        assert line in text.splitlines(), text


@pytest.mark.parametrize(
    ("lines", "case"),
    [
        ([["a", "begin"], ["a", "passed", 0.1], ["b", "begin"], ["b", "failed", 0.1], ["c", "begin"]], "b"),
        ([["a", "begin"]], "a"),
        ([["a", "begin"], ["a", "passed", 0.1]], ""),
    ],
)
def test_the_first_test_that_failed_or_never_ended_is_run_again(
    lines: list[list[object]], case: str, tmp_path: Path
) -> None:
    import failures

    (tmp_path / "cases-0").write_text("")
    (tmp_path / "cases-1").write_text("".join(json.dumps(line) + "\n" for line in lines) + '["d", "beg')
    assert failures.first_failing(tmp_path) == case
