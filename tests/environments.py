"""The virtual environments that tests run in: one for each MPI library, since their files collide, and one with PyTorch, which is large.

The first has everything else. Others have their MPI library, mpi4py and hpcoll, and take all else from the first: but for PyTorch, which
takes minutes and five gigabytes, they are made in seconds. What is fetched is what the lock files say (`lock.py`), by hash.
"""

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "requirements"
TORCH = "torch"  # instead of an MPI library: the first one's, and PyTorch
TORCH_MPICH = "torch-mpich"  # MPICH on top of that
LINKED = "nvidia"  # CUDA's compiler, which is looked for in folders of packages only


def folder(library: str) -> Path:
    """Return where an MPI library's environment is."""
    return ROOT / f".venv-{library}"


def make(libraries: tuple[str, ...]) -> str:
    """Make what is missing or depends on what has changed since. Return an empty text, or what went wrong."""
    base = libraries[0]
    try:
        for library in libraries:
            needed, stamp = _stamp(library, base), folder(library) / "stamp"
            if not stamp.exists() or stamp.read_text() not in (needed, _stamp(library, library)):
                stamp.unlink(missing_ok=True)
                (_whole if library == base else _on_top)(library, TORCH if library == TORCH_MPICH else base)
                stamp.write_text(needed)
    except (OSError, subprocess.CalledProcessError) as error:
        return str(error)
    return ""


def _stamp(library: str, base: str) -> str:
    """Return what an environment depends on."""
    files = (ROOT / "setup.cfg", ROOT / "pyproject.toml", *_locks(library, base))
    return "\n".join([sys.version, str(ROOT), library, base, *(file.read_text() for file in files)])


def _locks(library: str, base: str) -> list[Path]:
    """The lock files of what is in an environment itself; an MPI library's has mpi4py, too, which looks for the library beside itself."""
    names = (
        ("run", "dev", "docs", library)
        if library == base
        else (base, TORCH)
        if library == TORCH
        else (library.removeprefix(f"{TORCH}-"),)
    )
    return [LOCKS / f"{name}.txt" for name in names]


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, cwd=ROOT, stdin=subprocess.DEVNULL)


def _install(library: str, base: str, *options: str) -> None:
    """Install what is locked, and then this checkout, for which pip takes no hash. Python compiles what it imports, a small part."""
    pip = (
        folder(library) / "bin/python",
        "-m",
        "pip",
        "install",
        "-qq",
        "--no-compile",
        "--no-deps",
        *options,
    )
    _run(
        *pip,
        "--require-hashes",
        "--only-binary",
        ":all:",
        *(f"--requirement={file}" for file in _locks(library, base)),
    )
    _run(*pip, "--no-build-isolation", "--editable", ".")


def _whole(library: str, base: str) -> None:
    _run(sys.executable, "-m", "venv", "--clear", folder(library))
    _install(library, base)


def _on_top(library: str, base: str) -> None:
    where = folder(library)
    _run(sys.executable, "-m", "venv", "--clear", "--without-pip", where)
    (packages,), (theirs,) = (
        list((one / "lib").glob("python3*/site-packages")) for one in (where, folder(base))
    )
    (packages / "base.pth").write_text(f"import site; site.addsitedir({str(theirs)!r})\n")
    _install(library, base, "--ignore-installed")  # by the other environment's pip
    if library not in (TORCH, TORCH_MPICH):
        (packages / LINKED).symlink_to(theirs / LINKED)


if __name__ == "__main__":  # environments.py LIBRARY ...
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that pip ends, too
    sys.exit(make(tuple(sys.argv[1:])) or 0)
