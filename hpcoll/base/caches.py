"""What the system says of this processor's caches, and which cores share them."""

import contextlib
from functools import cache
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
_USUAL_NBYTES = 32 << 20  # of the last level, where the system does not say


@cache
def last_level_nbytes(folder: Path = CPUS / "cpu0/cache") -> int:
    """Bytes of the largest cache that the first core uses, with others or alone."""
    with contextlib.suppress(OSError, ValueError):  # another system, or one that hides it
        return max(_nbytes((one / "size").read_text()) for one in folder.glob("index*"))
    return _USUAL_NBYTES


@cache
def ncaches(cpus: Path = CPUS) -> int:
    """How many last-level caches this machine has, if all are shared by as many cores as the first core's; 1 where the system hides it."""
    cores, sharing = sum(1 for _ in cpus.glob("cpu[0-9]*")), len(domain_of(0, cpus))
    return max(1, cores // sharing) if sharing else 1


def _nbytes(text: str) -> int:
    """``"32768K\\n"`` and its like."""
    number, unit = text.strip()[:-1], text.strip()[-1:]
    return int(number) << {"K": 10, "M": 20, "G": 30}[unit] if unit in "KMG" else int(text)


def domain_of(core: int, cpus: Path = CPUS) -> frozenset[int]:
    """Cores of one core's cache domain: those that share its last-level cache; of its socket, where the system shows no cache that
    several cores share. Empty where it does not even show that.

    Args:
        core: Its number.
        cpus: Folder of all cores.
    """
    folder = cpus / f"cpu{core}"
    levels = {_read(one / "level"): _read(one / "shared_cpu_list") for one in folder.glob("cache/index*")}
    shared = _cores(levels[max(levels, key=int)] if levels and all(map(str.isdecimal, levels)) else "")
    if shared <= _cores(_read(folder / "topology/thread_siblings_list")) | {core}:
        return _cores(_read(folder / "topology/core_siblings_list"))
    return shared


def _cores(text: str) -> frozenset[int]:
    """``"0-3,8"`` and its like; empty where that is not what the text is."""
    with contextlib.suppress(ValueError):
        runs = [[int(end) for end in run.split("-")] for run in text.split(",")]
        return frozenset(core for run in runs for core in range(run[0], run[-1] + 1))
    return frozenset()


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""
