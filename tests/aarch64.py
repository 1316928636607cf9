"""hpcoll on an emulated ARM processor of 64 bits: ``tests/run.sh platforms aarch64``.

It needs root, and Debian's debootstrap and qemu-user-static. A root of Debian for arm64 has Python and MPICH; packages are the wheels for
aarch64 of the lock files. Every collective runs on 2 and 3 ranks there, and ``hpcoll doctor``. The emulator shows stores in the order of
x86: what ARM may reorder is for tests/unit/ring_model.py.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import outcomes
import platforms
from environments import ROOT
from outcomes import FAILED, PASSED, SKIPPED, Case

NAME = "aarch64"
WHERE = platforms.FOLDER / NAME
LIMIT_S = 1800  # of a job: the emulator takes ten times as long, and the first one compiles
SUITE = "bookworm"
DEBIAN = ("python3", "mpich")
PYTHON = ("3.11", "cp311")
TAGS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
BINFMT = Path("/proc/sys/fs/binfmt_misc")
EMULATOR = "qemu-aarch64-static"
# programs of ARM processors are for the emulator, which also a new root finds (F)
ELF = r"\x7fELF\x02\x01\x01" + r"\x00" * 9 + r"\x02\x00\xb7\x00"
MASK = r"\xff" * 7 + r"\x00" + r"\xff" * 8 + r"\xfe" + r"\xff" * 3
VARIABLES = {
    "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
    "HOME": "/root",
    "PYTHONPATH": "/opt/site",
    "LD_LIBRARY_PATH": "/opt/names",
    "MPI4PY_LIBMPI": "/opt/names/libmpi.so.12",
}


def lacks() -> str:
    """Return why there is no such platform here; the empty string where there is."""
    missing = [name for name in ("debootstrap", EMULATOR, "unshare") if not shutil.which(name)]
    if os.geteuid() or missing:
        return f"{missing[0]} is not installed" if missing else "it needs root"
    if not (BINFMT / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "none", BINFMT], check=False)
    return "" if (BINFMT / "register").exists() else "this kernel starts no programs of other processors"


def make(wheel: Path) -> None:
    """Make the root, once, and install hpcoll anew."""
    if not (BINFMT / "qemu-aarch64").exists():
        text = f":qemu-aarch64:M::{ELF}:{MASK}:{shutil.which(EMULATOR)}:FC"
        (BINFMT / "register").write_text(text)
    stamp, site = WHERE / "stamp", WHERE / "opt/site"
    if not stamp.exists():
        shutil.rmtree(WHERE, ignore_errors=True)
        chosen = ["--arch=arm64", "--variant=minbase", f"--include={','.join(DEBIAN)}"]
        platforms.command("debootstrap", *chosen, SUITE, WHERE)
        names = WHERE / "opt/names"
        names.mkdir()
        (names / "libmpi.so.12").symlink_to("/usr/lib/aarch64-linux-gnu/libmpich.so.12")
        stamp.touch()
    shutil.rmtree(site, ignore_errors=True)
    shutil.rmtree(WHERE / "opt/tests", ignore_errors=True)
    of = [f"--platform={tag}_aarch64" for tag in TAGS] + ["--only-binary=:all:", "--implementation=cp"]
    of += [f"--python-version={PYTHON[0]}", f"--abi={PYTHON[1]}", "--abi=abi3", "--abi=none"]
    platforms.fetch(sys.executable, [*platforms.NEEDED, *platforms.PYTEST], *of, f"--target={site}")
    platforms.pip(sys.executable, wheel, f"--target={site}")
    tests = WHERE / "opt/tests"
    shutil.copytree(ROOT / "tests/mpi", tests / "mpi")
    for file in (ROOT / "tests").glob("*.py"):
        shutil.copy(file, tests)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the root, whose mounts end with it."""
    mounts = "".join(f"mount --rbind {one} {WHERE}{one} && " for one in ("/proc", "/sys", "/dev"))
    inside = ["timeout", "-k", "5", str(LIMIT_S), "chroot", str(WHERE), *words]
    command = ["unshare", "--mount", "bash", "-c", f'{mounts} exec "$@"', "bash", *inside]
    return subprocess.run(
        command, env=VARIABLES, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def smoke(nranks: int) -> tuple[str, dict[str, str]]:
    """Run every collective; return what was wrong, and the releases of what took part."""
    results = WHERE / "opt/results"
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir()
    done = run("mpiexec.mpich", "-n", str(nranks), "python3", "/opt/tests/platform_smoke.py", "/opt/results")
    problems, ran = [f"status {done.returncode}"] if done.returncode else [], dict[str, str]()
    for rank in range(nranks):
        file = outcomes.token(results, rank)
        found = json.loads(file.read_text()) if file.exists() else {"wrong": ["left no result"]}
        problems += [f"rank {rank}: {one}" for one in found["wrong"]]
        ran = found
    if problems:
        print("\n".join((done.stdout + done.stderr).splitlines()[-platforms.TAIL :]), flush=True)
    return "; ".join(problems), ran


def doctor() -> str:
    """Return what ``hpcoll doctor`` finds wrong."""
    done = run("mpiexec.mpich", "-n", "2", "python3", "-m", "hpcoll", "doctor", "--format", "json")
    try:
        found = json.loads(done.stdout)["findings"]
    except ValueError:
        return (done.stdout + done.stderr)[-2000:]
    return "; ".join(f"{one['subject']}: {one['found']}" for one in found if one["level"] == "FAIL")


def examine(wheel: Path) -> tuple[dict[str, Case], str]:
    """Return what became of the cases, and the row of the table."""
    label, cases = f"Debian's MPICH; Python {PYTHON[0]}, {NAME}", dict[str, Case]()
    if reason := lacks():
        return {
            label: Case(SKIPPED, 0.0, reason)
        }, f"{PYTHON[0]} | | | | MPICH, {NAME} | wheel | | skipped: {reason}"
    make(wheel)
    ran: dict[str, str] = {}
    for what in ("2 ranks", "3 ranks", "doctor"):
        since = time.monotonic()
        problem, told = (doctor(), {}) if what == "doctor" else smoke(int(what[0]))
        ran = told or ran
        cases[f"{label}: {what}"] = Case(FAILED if problem else PASSED, time.monotonic() - since, problem)
        print(f"{label}: {what}: {'failed' if problem else 'passed'} {problem}", flush=True)
    bad = [case.note for case in cases.values() if case.outcome == FAILED]
    releases = [str(ran.get(name, "")) for name in ("python", "numpy", "numba", "mpi4py", "library")]
    row = " | ".join(
        [
            *releases[:4],
            f"{releases[4]}, Debian, {NAME}, emulated",
            "wheel",
            "2 to 3",
            "failed" if bad else "passed",
        ]
    )
    return cases, row
