"""What the system says of the machine's memory, and how much of it the control groups around this process allow.

Folders and files are parameters where a test has some of its own.
"""

import math
import re
from contextlib import suppress
from pathlib import Path

CGROUP, MEMBERSHIP, MEMINFO = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/meminfo")


def cgroups(controller: str, root: Path = CGROUP, membership: Path = MEMBERSHIP) -> list[Path]:
    """Folders of the control groups around this process, versions 1 and 2; some may be absent where a container hides them."""
    found: list[Path] = []
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            base = root / controller if controllers else root
            folder = base / path.lstrip("/")
            found += [folder, *(above for above in folder.parents if above.is_relative_to(base))]
    return found


def limits(root: Path = CGROUP, membership: Path = MEMBERSHIP) -> dict[Path, int]:
    """Most bytes of memory by control group, for those that have a limit."""
    names = "memory.max", "memory.limit_in_bytes"
    texts = {folder: _read(folder / names[0]) or _read(folder / names[1]) for folder in cgroups("memory", root, membership)}
    return {folder: int(text) for folder, text in texts.items() if text.isdecimal()}


def machine_nbytes(line: str, meminfo: Path = MEMINFO) -> int:
    """A line of meminfo, such as ``MemTotal``; 0 where the system does not say."""
    found = re.search(rf"^{line}: *(\d+) kB", _read(meminfo), re.M)
    return int(found[1]) << 10 if found else 0


def left_nbytes(root: Path = CGROUP, membership: Path = MEMBERSHIP, meminfo: Path = MEMINFO) -> int:
    """Bytes that may still be asked for: what the machine has available, or less by a control group."""
    left = machine_nbytes("MemAvailable", meminfo) or math.inf
    for folder, limit in limits(root, membership).items():
        used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
        left = min(left, limit - int(used) if used.isdecimal() else limit)
    return int(max(0, left)) if left < math.inf else 0


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""
