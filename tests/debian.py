"""Roots of Debian, for interpreters and processors that this machine lacks: `platforms` runs hpcoll in them.

They need root and debootstrap, and those of another processor its emulator, of qemu-user-static. The emulator shows stores in the order of
x86: what ARM may reorder is for tests/unit/ring_model.py.
"""

import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

BINFMT = Path("/proc/sys/fs/binfmt_misc")
EMULATOR = "qemu-aarch64-static"
# programs, and Debian's packages that have them
NEEDED = {"debootstrap": "debootstrap", "unshare": "util-linux"}
# programs of ARM processors are for the emulator, which also a new root finds (F)
ELF = r"\x7fELF\x02\x01\x01" + r"\x00" * 9 + r"\x02\x00\xb7\x00"
MASK = r"\xff" * 7 + r"\x00" + r"\xff" * 8 + r"\xfe" + r"\xff" * 3
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
HERE = next((name for name, machine in MACHINES.items() if machine == platform.machine()), "")
TAGS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
MOUNTED = ("/proc", "/sys", "/dev")
PATH = "/usr/bin:/bin:/usr/sbin:/sbin"


class Root(NamedTuple):
    """A release of Debian with some of its packages, for an architecture that Debian names."""

    suite: str
    packages: tuple[str, ...]
    architecture: str = HERE

    @property
    def machine(self) -> str:
        return MACHINES[self.architecture]

    @property
    def is_emulated(self) -> bool:
        return self.architecture != HERE

    def wheels(self, python: str) -> list[str]:
        """Return pip's options for packages that another interpreter installs for this one."""
        found = [f"--platform={tag}_{self.machine}" for tag in TAGS]
        found += [
            "--only-binary=:all:",
            "--ignore-requires-python",
            "--implementation=cp",
            f"--python-version={python}",
        ]
        return found + [f"--abi={abi}" for abi in (f"cp{python.replace('.', '')}", "abi3", "none")]

    def fitting(self, python: str, entries: str) -> str:
        """Return those entries of lock files that an interpreter of the root needs, whatever the one is that installs them."""
        from pip._vendor.packaging.markers import Marker

        where = {
            "python_version": python,
            "python_full_version": f"{python}.0",
            "platform_machine": self.machine,
        }
        found = ""
        for entry in re.split(r"(?<=\n)(?=\S)", entries):
            marker = entry.partition("\n")[0].removesuffix(" \\").partition(" ; ")[2]
            if not marker or Marker(marker).evaluate(where):
                found += entry.replace(f" ; {marker}", "", 1)
        return found


def lacks(root: Root) -> str:
    """Return why there can be no such root here; the empty string where there can."""
    needed = NEEDED | ({EMULATOR: "qemu-user-static"} if root.is_emulated else {})
    missing = [package for program, package in needed.items() if not shutil.which(program, path=PATH)]
    if os.geteuid() or missing:
        return f"install Debian's {' and '.join(missing)}" if missing else "it needs root"
    if not root.is_emulated:
        return ""
    if root.machine != "aarch64":
        return f"no emulator of {root.machine}"
    if not (BINFMT / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "none", BINFMT], check=False)
    return "" if (BINFMT / "register").exists() else "this kernel starts no programs of other processors"


def make(root: Root, where: Path) -> None:
    """Make a root, once."""
    if root.is_emulated and not (BINFMT / "qemu-aarch64").exists():
        text = f":qemu-aarch64:M::{ELF}:{MASK}:{shutil.which(EMULATOR, path=PATH)}:FC"
        (BINFMT / "register").write_text(text)
    stamp = where / "stamp"
    if not stamp.exists() or stamp.read_text() != str(root):
        shutil.rmtree(where, ignore_errors=True)
        chosen = [f"--arch={root.architecture}", "--variant=minbase", f"--include={','.join(root.packages)}"]
        subprocess.run(
            ["debootstrap", *chosen, root.suite, where],
            env=os.environ | {"PATH": PATH},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        stamp.write_text(str(root))


def inside(where: Path, folders: Iterable[Path]) -> list[str]:
    """Return the words before a command that runs it in a root, with folders of this machine. The mounts end with it."""
    steps = []
    for one in (*folders, *MOUNTED):
        target = shlex.quote(f"{where}{one}")
        steps += [f"mkdir -p {target}", f"mount --rbind {shlex.quote(str(one))} {target}"]
    steps.append(f'exec chroot {shlex.quote(str(where))} "$@"')
    return ["unshare", "--mount", "bash", "-c", " && ".join(steps), "bash"]
