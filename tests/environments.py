"""The virtual environments that tests run in: one for each MPI library, since their files collide, and one with PyTorch, which is large.

The first has everything else. Others have their MPI library, mpi4py and hpcoll, and take all else from the first: but for PyTorch, which
takes minutes and five gigabytes, they are made in seconds.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("mpi4py",)  # it looks for the MPI library beside itself
TORCH = "torch"  # instead of an MPI library: the first one's, and PyTorch
TORCH_TESTS = ("expecttest",)  # what PyTorch's own suite imports
LINKED = "nvidia"  # CUDA's compiler, which is looked for in folders of packages only


def folder(library: str) -> Path:
    """Where an MPI library's environment is."""
    return ROOT / f".venv-{library}"


def make(libraries: tuple[str, ...]) -> str:
    """Make what is missing or depends on what has changed since; an empty text, or what went wrong."""
    base = libraries[0]
    try:
        for library in libraries:
            needed, stamp = _stamp(library, base), folder(library) / "stamp"
            if not stamp.exists() or stamp.read_text() not in (needed, _stamp(library, library)):
                stamp.unlink(missing_ok=True)
                (_whole if library == base else _on_top)(library, base)
                stamp.write_text(needed)
    except (OSError, subprocess.CalledProcessError) as error:
        return str(error)
    return ""


def _stamp(library: str, base: str) -> str:
    """What an environment depends on."""
    return "\n".join([sys.version, str(ROOT), library, base, *((ROOT / name).read_text() for name in ("setup.cfg", "pyproject.toml"))])


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, cwd=ROOT, stdin=subprocess.DEVNULL)


def _whole(library: str, base: str) -> None:
    """Python compiles what it imports, which is a small part."""
    where = folder(library)
    _run(sys.executable, "-m", "venv", "--clear", where)
    _run(where / "bin/pip", "install", "-qq", "--no-compile", "--editable", f".[dev,{library}]")


def _on_top(library: str, base: str) -> None:
    where = folder(library)
    _run(sys.executable, "-m", "venv", "--clear", "--without-pip", where)
    (packages,), (theirs,) = (list((one / "lib").glob("python3*/site-packages")) for one in (where, folder(base)))
    (packages / "base.pth").write_text(f"import site; site.addsitedir({str(theirs)!r})\n")
    pip = (where / "bin/python", "-m", "pip", "install", "-qq", "--no-compile")  # the other environment's
    _run(*pip, "--no-deps", "--ignore-installed", *COPIED, base if library == TORCH else library, "--editable", ".")
    if library == TORCH:
        _run(*pip, "--editable", ".[torch]", *TORCH_TESTS)
    else:
        (packages / LINKED).symlink_to(theirs / LINKED)
