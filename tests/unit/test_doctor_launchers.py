"""Which launcher ``hpcoll doctor`` recognises, and what it says when launcher and MPI library do not fit."""

from pathlib import Path

import pytest

from hpcoll.cli.doctor.findings import FAIL, NOTE, OK, WARN
from hpcoll.cli.doctor.launchers import Launcher, MpiLibrary, check_launch, family_of_mpiexec, find_launcher, own_mpiexec, remedy

OURS = MpiLibrary("Open MPI", "5.0.1", "/opt/lib/libmpi.so.40", "3.1", 8, "4.1.0")
THEIRS = MpiLibrary("MPICH", "4.2.0", "/opt/lib/libmpi.so.12", "4.1", 4, "4.1.0")


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1", "SLURM_STEP_NUM_TASKS": "2"}, ("Open MPI's mpirun", 4, 1)),
        ({"PMI_SIZE": "4", "PMI_RANK": "3", "MPI_LOCALNRANKS": "2", "SLURM_STEP_NUM_TASKS": "2"}, ("mpiexec of MPICH or Intel MPI", 4, 3)),
        ({"PMI_SIZE": "4", "PMI_RANK": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}, ("srun", 4, 3)),
        ({"PMI_SIZE": "8", "PMI_RANK": "7", "PALS_RANKID": "7"}, ("PALS (aprun or mpiexec)", 8, 7)),
        ({"PMI_SIZE": "8", "PMI_RANK": "7"}, ("a launcher that speaks PMI", 8, 7)),
        ({"PMIX_RANK": "7"}, ("a launcher that speaks PMIx", 0, 7)),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, None),  # a batch script, before srun
        ({}, None),
    ],
)
def test_launchers(variables: dict[str, str], launcher: tuple[str, int, int] | None) -> None:
    found = find_launcher(variables)
    assert (found and (found.name, found.size, found.rank)) == launcher


MPIRUN = Launcher("Open MPI's mpirun", "Open MPI", "OMPI_COMM_WORLD_SIZE", 4, 0)
PMIX = Launcher("a launcher that speaks PMIx", "", "", 0, 0)


@pytest.mark.parametrize(
    ("launcher", "nranks", "variables", "level", "text"),
    [
        (MPIRUN, 4, {}, OK, "Open MPI's mpirun, 4 ranks"),
        (MPIRUN, 1, {}, FAIL, "Open MPI's mpirun started 4 ranks (OMPI_COMM_WORLD_SIZE=4), but MPICH sees one rank in each"),
        (MPIRUN, 3, {}, WARN, "Open MPI's mpirun started 4 ranks (OMPI_COMM_WORLD_SIZE=4), but MPI.COMM_WORLD has 3 ranks"),
        (PMIX, 2, {}, OK, "a launcher that speaks PMIx, 2 ranks"),
        (PMIX, 1, {}, NOTE, "a launcher that speaks PMIx, one rank"),
        (None, 2, {}, OK, "one that leaves no trace, 2 ranks"),
        (None, 1, {"SLURM_NTASKS": "8"}, NOTE, "none, one rank, in a Slurm job of 8 tasks"),
    ],
)
def test_launches(launcher: Launcher | None, nranks: int, variables: dict[str, str], level: str, text: str) -> None:
    finding = check_launch(launcher, nranks, THEIRS, variables)
    assert (finding.level, finding.found[: len(text)]) == (level, text)


def test_how_to_start_under_slurm() -> None:
    srun = Launcher("srun", "", "SLURM_STEP_NUM_TASKS", 4, 0)
    assert remedy(srun, OURS).startswith("srun --mpi=pmix, if")
    assert remedy(srun, THEIRS).startswith("srun --mpi=pmi2 or --mpi=pmix, if")
    assert remedy(srun, THEIRS._replace(name="Intel MPI")).startswith("export I_MPI_PMI_LIBRARY=")
    assert "have mpi4py load Open MPI" in remedy(MPIRUN, THEIRS)
    assert remedy(MPIRUN, OURS).endswith("the mpiexec that belongs to /opt/lib/libmpi.so.40")


def test_mpiexec_programs(tmp_path: Path) -> None:
    for name, text in (("mpiexec", "HYDRA build details:"), ("mpiexec.openmpi", "mpiexec (OpenRTE) 4.1.4"), ("silent", "")):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho '{text}'\n")
        program.chmod(0o700)
    families = [family_of_mpiexec(str(tmp_path / "bin" / name)) for name in ("mpiexec", "mpiexec.openmpi", "silent", "absent")]
    assert families == ["MPICH", "Open MPI", "", ""]
    assert own_mpiexec(OURS._replace(path=str(tmp_path / "lib/x86_64/libmpi.so"))) == str(tmp_path / "bin/mpiexec.openmpi")
    assert own_mpiexec(THEIRS._replace(path=str(tmp_path / "lib/libmpi.so"))) == str(tmp_path / "bin/mpiexec")
    assert own_mpiexec(OURS._replace(path="")) == ""
