"""What launchers of MPI programs tell their processes: environment variables of rank, number of ranks, and rank on the node."""

from typing import NamedTuple

OPEN_MPI, MPICH, ANY = "Open MPI", "MPICH", ""  # families: whose libraries a launcher serves
# Beginnings of all their variables. A child without any is an MPI program of one process.
PREFIXES = ("OMPI_COMM", "PMIX_", "PMI_", "PMI2_", "PRTE_", "SLURM_", "MPI_LOCAL", "HYDRA_", "HYDI_", "PALS_", "ALPS_", "FLUX_")


class Variables(NamedTuple):
    """Variables of one launcher; the empty string where it has none.

    Attributes:
        name: The launcher, as a user knows it.
        family: Whose libraries it serves; the empty string when that depends on its options.
        rank, nranks: Of the program.
        local_rank: Rank among those of the node.
        also: One that must be set, too, for it to be this launcher.
        inherited: Whether they are left over in whatever is started from a shell under it.
    """

    name: str
    family: str
    rank: str
    nranks: str
    local_rank: str = ""
    also: str = ""
    inherited: bool = False


# The first that fits counts: mpirun may have used srun.
LAUNCHERS = (
    Variables("jsrun", ANY, "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", inherited=True),
    Variables("Open MPI's mpirun", OPEN_MPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    Variables("MVAPICH's launcher", MPICH, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
    Variables("mpiexec of MPICH or Intel MPI", MPICH, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", also="MPI_LOCALNRANKS"),
    Variables("PALS (aprun or mpiexec)", ANY, "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID"),
    Variables("flux", ANY, "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", inherited=True),
    Variables("srun", ANY, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", inherited=True),
    Variables("a launcher that speaks PMI", MPICH, "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK"),
    Variables("a launcher that speaks PMIx", ANY, "PMIX_RANK", ""),
)
