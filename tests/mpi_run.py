"""Runs pytest on several ranks and believes only what every rank wrote down: ``mpi_run.py NRANKS [PYTEST ARGUMENTS]``.

Rank 0 reports as usual; what the others print goes to files that are shown when something failed.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import descendants
import outcomes
from outcomes import RANK, TOKENS
from slowness import slowed

LIMIT_S = float(os.environ.get("MPI_LIMIT_S", "900"))  # on an idle machine
TAIL_LINES = 80

# More ranks than cores: let Open MPI start them, and let idle ranks give their core away.
OPEN_MPI = {
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_osc_ucx_verbose": "-1",  # else every window prints that UCX cannot have it
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # Open MPI 4
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # Open MPI 5
}
# Where Open MPI has its shared memory. It names that by 16 bits of a job's name: of two jobs that run at once and have the same ones, both
# crash or hang, so each stage has a folder of its own.
SEGMENTS = "OMPI_MCA_btl_sm_backing_directory"
# glibc: arrays go back to the system when they are freed, however many there were
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
OPEN_MPI_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def run_rank(nranks: int, pytest_args: list[str]) -> int:
    """Run pytest in this process, which is one rank."""
    import pytest
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.size != nranks:
        print(
            f"expected {nranks} ranks, got {world.size}: mpiexec and mpi4py use different MPI libraries",
            file=sys.stderr,
        )
        return 1
    os.environ[RANK] = str(world.rank)
    verbosity = "--quiet"
    if world.rank > 0:
        verbosity = "--verbose"  # the file then ends with the test that was running
        output = os.open(
            Path(os.environ[TOKENS], f"output-{world.rank}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        )
        os.dup2(output, 1)
        os.dup2(output, 2)
    # the second imports hypothesis, which no test here needs
    unused = (
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
    )
    return pytest.main(["--with-mpi", verbosity, "--color=no", *unused, *pytest_args])


def show_output(folder: Path, rank: int) -> None:
    """The end of what a rank printed, where that is in a file."""
    output = folder / f"output-{rank}"
    if output.exists():
        print(f"\n-- rank {rank}, end of its output:")
        print("\n".join(output.read_text(errors="replace").splitlines()[-TAIL_LINES:]))


def judge(folder: Path, nranks: int, status: int) -> bool:
    """Prints the result of every rank, the cases that failed and one line for all; True when nothing failed anywhere."""
    for rank in range(nranks):
        token = outcomes.token(folder, rank)
        if not token.exists():
            token.write_text(f"0 passed, 1 failed: {outcomes.NO_RESULT}\n")
        if " 0 failed" not in token.read_text():
            show_output(folder, rank)
    for rank in range(nranks):
        print(f"rank {rank}: {outcomes.token(folder, rank).read_text().strip()}")
    cases = outcomes.merge(folder, nranks)
    failed = {name: case for name, case in cases.items() if case.outcome == outcomes.FAILED}
    for name, case in failed.items():
        print(f"failed: {name}: {case.note}")
    if status:
        print(
            f"mpiexec ended with status {status}"
            + (f": over {slowed(LIMIT_S):.0f} s" if status in (124, 137) else "")
        )
    print(f"{outcomes.tally(cases.values())} on {nranks} ranks")
    return status == 0 and not failed


def mpiexec(nranks: int, command: list[str], folder: Path) -> int:
    """Starts a Python program on the ranks, which write to the folder what becomes of their cases; the status of ``mpiexec``."""
    outcomes.clear(folder)
    program = Path(sys.executable).with_name("mpiexec")
    limited = ["timeout", "-k", "5", str(slowed(LIMIT_S)), str(program) if program.exists() else "mpiexec"]
    starter = [*limited, "-n", str(nranks), sys.executable]
    ours = MALLOC | OPEN_MPI | (OPEN_MPI_ROOT if os.geteuid() == 0 else {})
    environment = ours | os.environ | {TOKENS: str(folder), "PYTHONUNBUFFERED": "1"}
    with descendants.leaving_none():
        return descendants.wait(
            subprocess.Popen([*starter, *command], env=environment, stdin=subprocess.DEVNULL)
        )


def launch(nranks: int, pytest_args: list[str]) -> int:
    """Starts the ranks and judges what they left."""
    folder = Path(os.environ.get(TOKENS) or tempfile.mkdtemp(prefix="hpcoll-tests-"))
    status = mpiexec(nranks, [__file__, "--rank", str(nranks), *pytest_args], folder)
    return 0 if judge(folder, nranks, status) else 1


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        sys.exit(run_rank(int(sys.argv[2]), sys.argv[3:]))
    sys.exit(launch(int(sys.argv[1]), sys.argv[2:]))
