"""Environment variables by which launchers of MPI programs tell a process its rank, the number of ranks, and both on its node."""

import os
import re
import sys
from collections.abc import Mapping
from typing import NamedTuple

from hpcoll.base.text import is_count

OPEN_MPI, MPICH, ANY = "Open MPI", "MPICH", ""  # families of MPI libraries
_FAMILIES = {
    **dict.fromkeys([OPEN_MPI, "Spectrum MPI"], OPEN_MPI),
    **dict.fromkeys([MPICH, "Intel MPI", "MVAPICH", "MVAPICH2", "Cray MPI"], MPICH),
}
JOB = "_HPCOLL_JOB"  # a name of the job, set where hpcoll began MPI
# Prefixes of variables by which MPI libraries know that they were started as ranks.
MPI_PREFIXES = (
    "OMPI_COMM",
    "PMIX_",
    "PMI_",
    "PMI2_",
    "PRTE_",
    "MPI_LOCAL",
    "HYDRA_",
    "HYDI_",
    "PALS_",
    "ALPS_",
    "FLUX_",
)
# Prefixes of all variables of their launchers. A child process without any is an MPI program of its own, with one rank.
PREFIXES = (*MPI_PREFIXES, "SLURM_")

_PID = os.getpid()


class Variables(NamedTuple):
    """The variables of one launcher; the empty string where it has none."""

    name: str  # of the launcher, for users
    family: str  # of MPI libraries that it serves; empty where its options decide
    rank: str
    nranks: str
    local_rank: str = ""  # rank on the node
    also: str = ""  # a variable that must be set, too, for it to be this launcher
    inherited: bool = False  # programs started from a shell under this launcher inherit its variables


# variables of batch systems
_JOBS = (
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "FLUX_JOB_ID",
    "COBALT_JOBID",
    "JOB_ID",
)
# The first match counts: mpirun may have used srun.
LAUNCHERS = (
    Variables(
        "jsrun", ANY, "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", inherited=True
    ),
    Variables(
        "Open MPI's mpirun",
        OPEN_MPI,
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    Variables(
        "MVAPICH's launcher", MPICH, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"
    ),
    Variables(
        "mpiexec of MPICH or Intel MPI",
        MPICH,
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALRANKID",
        also="MPI_LOCALNRANKS",
    ),
    Variables("PALS (aprun or mpiexec)", ANY, "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID"),
    Variables("flux", ANY, "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", inherited=True),
    Variables("srun", ANY, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", inherited=True),
    Variables("a launcher that speaks PMI", MPICH, "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK"),
    Variables("a launcher that speaks PMIx", ANY, "PMIX_RANK", ""),
    Variables(
        "torchrun or its like", MPICH, "RANK", "WORLD_SIZE", "LOCAL_RANK", also="MASTER_ADDR", inherited=True
    ),
)

_LOCAL_NRANKS = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
YIELDS = "OMPI_MCA_mpi_yield_when_idle"  # tells Open MPI that ranks share cores
_NO = ("", "0", "false", "f", "no", "n", "disabled", "off")


def family_of(name: str) -> str:
    """Return the family of an MPI library, by the name that mpi4py has for it; a library that is not known is a family of its own."""
    return _FAMILIES.get(name, name)


def local_nranks(environment: Mapping[str, str]) -> int:
    """Return the number of ranks of the program on this node; 0 where no launcher says it.

    >>> local_nranks({"MPI_LOCALNRANKS": "4"}), local_nranks({"OMPI_COMM_WORLD_LOCAL_SIZE": "2(x3)"}), local_nranks({})
    (4, 0, 0)
    """
    return max(number_in(environment, name) for name in _LOCAL_NRANKS)


def number_in(environment: Mapping[str, str], name: str) -> int:
    """Return the rank or the number of ranks in a variable; 0 where it has neither.

    >>> number_in({"PMI_RANK": "3"}, "PMI_RANK"), number_in({"PMI_RANK": "9" * 5000}, "PMI_RANK"), number_in({}, "PMI_RANK")
    (3, 0, 0)
    """
    text = environment.get(name, "")
    return int(text) if is_count(text) else 0


def local_rank(environment: Mapping[str, str], nranks: int | None = None) -> int | None:
    """Return the rank of this process on its node; None where no launcher says it. Inherited variables count last.

    Launchers with another number of ranks than ``nranks``, if that is known, do not count.

    >>> local_rank({"SLURM_LOCALID": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}), local_rank({}), local_rank({"SLURM_LOCALID": "x"})
    (1, None, None)
    """
    for launcher in sorted(LAUNCHERS, key=lambda launcher: launcher.inherited):
        text = environment.get(launcher.local_rank, "")
        if (text == "0" or is_count(text)) and (
            nranks is None or environment.get(launcher.nranks) in (None, str(nranks))
        ):
            return int(text)
    return None


def is_fork() -> bool:
    """Say whether this process is a fork of the one that imported hpcoll."""
    return os.getpid() != _PID


def rank_above() -> int:
    """Return the process id of the rank whose child of ``multiprocessing`` this process is; 0: it is none, or no launcher started that."""
    parent = (
        "multiprocessing.process" in sys.modules and sys.modules["multiprocessing.process"].parent_process()
    )
    return parent.pid if parent and local_rank(os.environ) is not None else 0


def gives_cores_away(environment: Mapping[str, str]) -> bool:
    """Say whether ranks yield their core while they wait, as a user or a launcher short of cores asks for.

    >>> [gives_cores_away({YIELDS: value}) for value in ("1", "true", "0", "No", "")], gives_cores_away({})
    ([True, True, False, False, False], False)
    """
    return environment.get(YIELDS, "").lower() not in _NO


def job_of(environment: Mapping[str, str], pid: int) -> str:
    """Return the id of the batch job, with its step where it has steps, or the process id; fit for the name of a file.

    >>> job_of({"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0"}, 5), job_of({"PBS_JOBID": "17[3].host"}, 5), job_of({}, 5)
    ('17.0', '17_3_.host', '5')
    """
    job = next((environment[name] for name in _JOBS if environment.get(name)), "")
    steps = [job, environment.get("SLURM_STEP_ID", "") if job == environment.get("SLURM_JOB_ID") else ""]
    return re.sub(r"[^\w.-]", "_", ".".join(filter(None, steps)), flags=re.ASCII) or str(pid)
