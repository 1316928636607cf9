"""The machine as Linux describes it: last-level caches, cores that share them, memory that control groups leave, and processes.

Files and folders are parameters, so that tests can bring their own. The words for how a process ended stand here, too.
"""

import contextlib
import math
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hpcoll.base.text import error_text, printable, text_of

CPUS = Path("/sys/devices/system/cpu")
CGROUP, MEMBERSHIP, MEMINFO = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/meminfo")
_USUAL_NBYTES = 32 << 20  # of a last-level cache, where Linux does not say
PROC = Path("/proc")
RUNNING, STOPPED, TRACED, GONE = "running", "stopped", "stopped by a debugger", "gone"
HOW_GONE = (
    "has ended: it was killed, or left without MPI_Finalize"  # of a rank whose process is gone without a word
)
ENDED_BY = "was ended by "  # an exception
_STATES = {"T": STOPPED, "t": TRACED, "Z": GONE, "X": GONE, "x": GONE}


@cache
def last_level_nbytes(folder: Path = CPUS / "cpu0/cache") -> int:
    """Return the bytes of the largest cache of core 0, shared or private."""
    with contextlib.suppress(OSError, ValueError):  # another system, or one that hides it
        return max(_nbytes((index / "size").read_text()) for index in folder.glob("index*"))
    return _USUAL_NBYTES


@cache
def ncaches(cpus: Path = CPUS) -> int:
    """Return the number of last-level caches, taking core 0's as the model for all; 1 where Linux hides them."""
    cores, sharing = sum(1 for _ in cpus.glob("cpu[0-9]*")), len(domain_of(0, cpus))
    return max(1, cores // sharing) if sharing else 1


def _nbytes(text: str) -> int:
    """Return the number in ``"32768K\\n"``."""
    number, unit = text.strip()[:-1], text.strip()[-1:]
    return int(number) << {"K": 10, "M": 20, "G": 30}[unit] if unit in "KMG" else int(text)


def domain_of(core: int, cpus: Path = CPUS) -> frozenset[int]:
    """Return the cores of one core's cache domain: those that share its last-level cache.

    Where no cache is shared, the domain is the socket. It is empty where Linux shows neither.
    """
    folder = cpus / f"cpu{core}"
    levels = {read(index / "level"): read(index / "shared_cpu_list") for index in folder.glob("cache/index*")}
    shared = _cores(levels[max(levels, key=int)] if levels and all(map(str.isdecimal, levels)) else "")
    if shared <= _cores(read(folder / "topology/thread_siblings_list")) | {core}:
        return _cores(read(folder / "topology/core_siblings_list"))
    return shared


def _cores(text: str) -> frozenset[int]:
    """Return the cores in ``"0-3,8"``; none where the text has another form."""
    with contextlib.suppress(ValueError):
        runs = [[int(end) for end in run.split("-")] for run in text.split(",")]
        return frozenset(core for run in runs for core in range(run[0], run[-1] + 1))
    return frozenset()


def cgroups(controller: str, root: Path = CGROUP, membership: Path = MEMBERSHIP) -> list[Path]:
    """Return the folders of the control groups around this process, versions 1 and 2; a container may hide some."""
    folders: list[Path] = []
    for line in read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            base = root / controller if controllers else root
            folder = base / path.lstrip("/")
            folders += [folder, *(above for above in folder.parents if above.is_relative_to(base))]
    return folders


def limits(root: Path = CGROUP, membership: Path = MEMBERSHIP) -> dict[Path, int]:
    """Return the memory limits in bytes of the control groups that have one."""
    names = "memory.max", "memory.limit_in_bytes"
    texts = {
        folder: read(folder / names[0]) or read(folder / names[1])
        for folder in cgroups("memory", root, membership)
    }
    return {folder: int(text) for folder, text in texts.items() if text.isdecimal()}


def machine_nbytes(line: str, meminfo: Path = MEMINFO) -> int:
    """Return the bytes that a line of meminfo has, such as ``MemTotal``; 0 where there is no such line."""
    match = re.search(rf"^{line}: *(\d+) kB", read(meminfo), re.M)
    return int(match[1]) << 10 if match else 0


def left_nbytes(root: Path = CGROUP, membership: Path = MEMBERSHIP, meminfo: Path = MEMINFO) -> int:
    """Return the bytes that this process may still allocate: the machine's available ones, or fewer by a control group."""
    left = machine_nbytes("MemAvailable", meminfo) or math.inf
    for folder, limit in limits(root, membership).items():
        used = read(folder / "memory.current") or read(folder / "memory.usage_in_bytes")
        left = min(left, limit - int(used) if used.isdecimal() else limit)
    return int(max(0, left)) if left < math.inf else 0


def read(path: Path) -> str:
    """Return a small file's text without surrounding blanks; the empty string where it cannot be read."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""


class ProcessLocation(NamedTuple):
    """The place of a process, as far as CUDA IPC cares; the empty string where the system does not say."""

    machine: str  # equal in all containers of a machine
    processes: str  # its PID namespace
    objects: str  # its IPC namespace


def location(root: Path = PROC) -> ProcessLocation:
    """Return the place of this process."""
    names = []
    for kind in ("pid", "ipc"):
        try:
            names.append(os.readlink(root / "self/ns" / kind))
        except OSError:
            names.append("")
    return ProcessLocation(read(root / "sys/kernel/random/boot_id"), *names)


def node_identity() -> str:
    """Return a text that is equal for processes that share memory, as far as the system tells."""
    try:
        memory = os.stat("/dev/shm").st_dev
    except OSError:
        memory = 0
    return " ".join([os.uname().nodename, *location(), str(memory)])


def state_of(pid: int, proc: Path = PROC) -> str:
    """Return the state of a process; a zombie is gone."""
    try:
        return _STATES.get(stat_fields(pid, proc)[0], RUNNING)
    except (FileNotFoundError, ProcessLookupError):
        return GONE
    except OSError:
        return RUNNING


def ends_by_exception() -> BaseException | None:
    """Return the exception that ends this process's program; None where there is none."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def program_words() -> list[str]:
    """Return the command line of this process's program as texts, whatever the program has left in ``sys.argv``."""
    words = getattr(sys, "argv", None)
    return [text_of(word) for word in words] if isinstance(words, list | tuple) and words else [""]


def how_it_ends() -> str:
    """Return the words for how this process's program ends, for texts on other ranks."""
    error = ends_by_exception()
    return "has ended its program" if error is None else printable(ENDED_BY + error_text(error), 1000)


def cpu_s(pid: int, proc: Path = PROC) -> float | None:
    """Return the CPU seconds that a process has used, all threads together; None where Linux does not say."""
    try:
        user, system = map(int, stat_fields(pid, proc)[11:13])
        return (user + system) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


def stat_fields(pid: int, proc: Path = PROC) -> list[str]:
    """Return the fields of a process's file ``stat`` that stand behind its name."""
    with open(proc / str(pid) / "stat") as file:
        return file.read().rpartition(")")[2].split()
