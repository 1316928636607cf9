"""Probes of one process's machine, without MPI: each returns findings and raises nothing.

Folders are parameters where a test builds one of its own.
"""

import json
import math
import os
import platform
import resource
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import hpcoll
from hpcoll.base import disk_cache
from hpcoll.base.children import python
from hpcoll.base.errors import ArgumentError
from hpcoll.base.files import OwnedFolder
from hpcoll.base.machine import CGROUP, MEMBERSHIP, MEMINFO, cgroups, limits, machine_nbytes, read
from hpcoll.base.text import format_nbytes, printable
from hpcoll.cli.doctor.findings import FAIL, NOTE, OK, WARN, Finding, one_line
from hpcoll.cli.doctor.gpus import judge
from hpcoll.runtime.transports.cross_memory import ProbeWord, ptrace_scope, refusal
from hpcoll.selection.config import meant_variable, read_config

SMALL_SHM_NBYTES = 64 << 20  # a container's default
SMALL_MEMORY_NBYTES = 1 << 30
LOW_MEMLOCK_NBYTES = 1 << 30
_CUDA_LIMIT_S = 60
_NEEDED = ("numpy", "numba", "llvmlite", "ml_dtypes", "mpi4py")
_CUDA_PACKAGES = ("cupy-cuda13x", "cupy-cuda12x", "cupy", "torch", "numba-cuda")
_REINSTALL = "pip install --force-reinstall hpcoll"


def examine(rank: int) -> list[Finding]:
    """Run all probes, in the order of the report; only rank 0 looks for the tuning file, which no other rank reads."""
    mine = [
        *software(),
        *system(),
        *shared_memory(),
        *memory(),
        *cuda(),
        *infiniband(),
        *numba_cache(),
        *locks(),
        *settings(os.environ),
    ]
    return mine if rank else [*mine, *tuning_file(os.environ)]


def software(needed: Sequence[str] = _NEEDED) -> list[Finding]:
    """Report the versions of Python and of the packages that hpcoll needs."""
    found = {name: installed(name) for name in needed}
    versions = {"hpcoll": hpcoll.__version__, "Python": platform.python_version(), **found}
    text = ", ".join(f"{name} {number}" for name, number in versions.items() if number)
    missing = [
        Finding(FAIL, "software", f"{name} is not installed", f"pip install {name}")
        for name in found
        if not found[name]
    ]
    return [Finding(OK, "software", text), *missing]


def installed(name: str) -> str:
    """Return the version of a distribution, or the empty string."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def system(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Report kernel, processor type, and hints of a container."""
    hints = {"docker": (root / ".dockerenv").exists(), "podman": (root / "run/.containerenv").exists()}
    hints |= {"apptainer": "APPTAINER_NAME" in environment or "SINGULARITY_NAME" in environment}
    hints |= {"kubernetes": "KUBERNETES_SERVICE_HOST" in environment}
    kinds = [name for name, holds in hints.items() if holds]
    text = f"{platform.system()} {platform.release()} on {platform.machine()}"
    return [Finding(OK, "system", f"{text}, in a container ({', '.join(kinds)})" if kinds else text)]


def shared_memory(folder: Path = Path("/dev/shm"), small_nbytes: int = SMALL_SHM_NBYTES) -> list[Finding]:
    """Report whether shared memory, through which the ranks of one host exchange data, is there, writable and large enough."""
    subject = "shared memory"
    try:
        state = os.statvfs(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(resource.getpagesize()))
            file.flush()
    except OSError as error:
        text = f"{folder} cannot be used: {error.strerror}"
        return [
            Finding(
                WARN,
                subject,
                text,
                f"mount a tmpfs that you may write to at {folder}; without it MPI may be slow, or not start",
            )
        ]
    size, free = state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize
    text = f"{folder} is writable, {format_nbytes(size)}, {100 * free // max(size, 1)} % free"
    if size <= small_nbytes:
        return [
            Finding(
                NOTE,
                subject,
                text,
                "this is a container's default: start it with --shm-size=1g or more, or --ipc=host",
            )
        ]
    if free <= small_nbytes:
        return [
            Finding(
                WARN,
                subject,
                text,
                f"remove files that crashed programs have left in {folder}, or make it larger",
            )
        ]
    return [Finding(OK, subject, text)]


def one_copy(words: Sequence[ProbeWord], scope: str | None = None) -> list[Finding]:
    """Report whether this rank can read the memory of the other ranks of its host, so that long messages need not be staged."""
    problem = next(filter(None, map(refusal, words)), "")
    if len(words) < 2:
        return []
    if not problem:
        return [Finding(OK, "one copy", "ranks of a host can read each other's memory (process_vm_readv)")]
    how = (
        "sysctl kernel.yama.ptrace_scope=1"
        if (scope or ptrace_scope()) in ("2", "3")
        else "in a container: --cap-add=SYS_PTRACE"
    )
    what = f"long messages are staged, which costs time only where cores share no cache; to have it: {how}"
    return [Finding(NOTE, "one copy", f"ranks of a host cannot read each other's memory: {problem}", what)]


def memory(root: Path = CGROUP, membership: Path = MEMBERSHIP, meminfo: Path = MEMINFO) -> list[Finding]:
    """Report the machine's memory, and how much of it this process's control groups allow."""
    nbytes = machine_nbytes("MemTotal", meminfo)
    limit = min(limits(root, membership).values(), default=nbytes)
    if not nbytes or limit >= nbytes:
        return [
            Finding(
                OK,
                "memory",
                f"{format_nbytes(nbytes) if nbytes else 'of unknown size'}, no limit by a control group",
            )
        ]
    text = f"{format_nbytes(nbytes)}, limited to {format_nbytes(limit)} by a control group"
    if limit < SMALL_MEMORY_NBYTES:
        return [
            Finding(
                NOTE,
                "memory",
                text,
                "ranks are killed above it, /dev/shm counts: raise --memory (container) or --mem (Slurm)",
            )
        ]
    return [Finding(OK, "memory", text)]


def cpu_quota(root: Path = CGROUP, membership: Path = MEMBERSHIP) -> float:
    """Return the cores' worth of time that this process's control groups allow; infinity where they set no limit."""
    quotas = [math.inf]
    for folder in cgroups("cpu", root, membership):
        texts = read(folder / "cpu.max").split() or [
            read(folder / "cpu.cfs_quota_us"),
            read(folder / "cpu.cfs_period_us"),
        ]
        if len(texts) == 2 and all(text.isdecimal() for text in texts) and int(texts[1]):  # else "max", or -1
            quotas.append(int(texts[0]) / int(texts[1]))
    return min(quotas)


def cuda(device_files: Path = Path("/dev")) -> list[Finding]:
    """Report driver, GPUs, Python packages and compiler for CUDA; a process of its own asks the driver."""
    command = python("from hpcoll.cli.doctor.gpus import main; main()")
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CUDA_LIMIT_S,
            check=False,
        )
        answer: Any = (
            json.loads(done.stdout)
            if done.returncode == 0
            else {"error": f"asking it ended with status {done.returncode}"}
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as failure:
        answer = {"error": f"asking it failed: {one_line(failure)}"}
    packages = {name: text for name in _CUDA_PACKAGES if (text := installed(name))}
    findings = judge(answer, any(device_files.glob("nvidia[0-9]*")), packages, os.environ)
    return findings if not answer.get("devices") else [*findings, *locked_memory(NOTE, "GPUs")]


def infiniband(
    root: Path = Path("/sys/class/infiniband"), device_files: Path = Path("/dev/infiniband")
) -> list[Finding]:
    """Report ports of InfiniBand and RoCE devices, whether they can be opened, and how much memory may be locked for them."""
    ports = sorted(root.glob("*/ports/*"))
    if not ports:
        return [Finding(OK, "InfiniBand", "no InfiniBand or RoCE device")]
    active = [_word(port / "state") == "ACTIVE" for port in ports]
    findings = [_port(port, up, any(active)) for port, up in zip(ports, active)]
    if not any(os.access(file, os.R_OK | os.W_OK) for file in device_files.glob("uverbs*")):
        what = "in a container: --device=/dev/infiniband; else load the kernel module ib_uverbs"
        findings.append(
            Finding(WARN, "InfiniBand", f"{device_files}/uverbs* is absent or not yours to open", what)
        )
    return [*findings, *locked_memory(WARN, "InfiniBand")]


def locked_memory(level: str, user: str) -> list[Finding]:
    """Report how much memory may be locked for devices that read and write it, with ``level`` where that is little."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit != resource.RLIM_INFINITY and limit < LOW_MEMLOCK_NBYTES:
        what = "ulimit -l unlimited (limits.conf; LimitMEMLOCK of slurmd; --ulimit memlock=-1 of a container), or "
        what += {
            "InfiniBand": "MPI goes by TCP",
            "GPUs": "memory that GPUs share with the host may be refused",
        }[user]
        return [Finding(level, "locked memory", f"at most {format_nbytes(limit)}", what)]
    return [
        Finding(OK, "locked memory", "unlimited" if limit == resource.RLIM_INFINITY else format_nbytes(limit))
    ]


def _port(port: Path, up: bool, another_is_up: bool) -> Finding:
    kind = read(port / "link_layer")
    kind = "RoCE" if kind == "Ethernet" else kind or "unknown link"
    state, physical = (_word(port / name) for name in ("state", "phys_state"))
    text = f"{port.parents[1].name} port {port.name}: {kind}, {read(port / 'rate')}, {state}, {physical}"
    if up:
        return Finding(OK, "InfiniBand", text)
    advice = (
        f"plug the cable in, or enable the port ({'ip link set ... up' if kind == 'RoCE' else 'ibportstate'})"
    )
    if physical == "LinkUp" and kind != "RoCE":
        advice = "the fabric has no subnet manager: start opensm, or ask its administrator"
    return Finding(NOTE if another_is_up else WARN, "InfiniBand", text, advice)


def _word(path: Path) -> str:
    """Return the word in a file such as "4: ACTIVE"."""
    return read(path).rpartition(": ")[2]


def numba_cache() -> list[Finding]:
    """Report whether Numba compiles, and where compiled code is kept."""
    subject = "Numba cache"
    try:
        from numba import config
    except Exception as error:  # a broken compiler raises whatever it likes
        return [Finding(FAIL, subject, f"numba cannot be imported: {one_line(error)}", _REINSTALL)]
    if config.DISABLE_JIT:
        return [
            Finding(FAIL, subject, "NUMBA_DISABLE_JIT is set: nothing is compiled", "unset NUMBA_DISABLE_JIT")
        ]
    what = f"each node compiles, and keeps it in {disk_cache.node_folder()}: set NUMBA_CACHE_DIR to a folder in which you may write"
    return [_owned(subject, disk_cache.own_folder, disk_cache.folder(), what)]


def locks() -> list[Finding]:
    """Report whether ranks of a node can share the work of compiling."""
    what = "every process compiles: set TMPDIR to a folder of the node in which you may make one"
    return [_owned("compile locks", disk_cache.lock_folder, disk_cache.node_folder(), what)]


def _owned(subject: str, opened: Callable[[], OwnedFolder], path: Path, what: str) -> Finding:
    """Report whether a folder can be opened, which must be this user's alone."""
    try:
        opened().close()
    except OSError as error:
        text = f"{path} cannot be used: {error.strerror}" if error.strerror else one_line(error)
        return Finding(WARN, subject, text, what)
    return Finding(OK, subject, f"{path} is writable, and yours alone")


def settings(environment: Mapping[str, str]) -> list[Finding]:
    """Report the ``HPCOLL_*`` variables, and those that mean nothing."""
    ours = {name: value for name, value in sorted(environment.items()) if name.startswith("HPCOLL_")}
    try:
        unknown: Iterable[str] = read_config(ours).unknown
    except ArgumentError as error:
        return [
            Finding(
                FAIL,
                "settings",
                one_line(error),
                "correct it or unset it: hpcoll refuses to make a communicator",
            )
        ]
    findings = []
    for name in sorted(unknown):
        findings.append(
            Finding(
                WARN,
                "settings",
                f"{printable(name)} means nothing to hpcoll",
                f"unset it{meant_variable(name)}",
            )
        )
    known = [f"{name}={printable(value)}" for name, value in ours.items() if name not in unknown]
    return [Finding(OK, "settings", ", ".join(known) or "no HPCOLL_* variable is set"), *findings]


def tuning_file(environment: Mapping[str, str]) -> list[Finding]:
    """Report a file that ``HPCOLL_TUNING`` names and that cannot be read."""
    name = environment.get("HPCOLL_TUNING", "")
    if not name or (os.path.isfile(name) and os.access(name, os.R_OK)):
        return []
    what = "name a file that 'hpcoll tune' wrote, by its absolute path, or unset HPCOLL_TUNING"
    return [
        Finding(FAIL, "settings", f"HPCOLL_TUNING={printable(name)} is not a file that can be read", what)
    ]
