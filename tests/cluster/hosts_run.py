"""Jobs on emulated hosts (`hosts.sh`), what their ranks said, and what a job left behind."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from slowness import slowed

HOSTS = Path(__file__).with_name("hosts.sh")
TOOLS = ("ip", "tc", "unshare", "nsenter", "setpriv")
NEEDED = """set -e
ip link add a type veth peer name b && ip link add c type bridge && tc qdisc add dev a root tbf rate 1gbit burst 16384 limit 1000000
mount -n -t tmpfs tmpfs /dev/shm && hostname a"""
# what another job hands to its ranks
LAUNCHER = (
    "OMPI_",
    "PMIX_",
    "PMI_",
    "PRTE_",
    "HYDI_",
    "MPI_",
    "MPIR_",
    "HPCOLL_",
    "SLURM_",
)
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])  # as hosts.sh has it
LIMIT_S = slowed(100)  # most seconds of one job

HEAD = f"""
import os, sys, time
import numpy as np
from mpi4py import MPI
sys.path[:0] = [{str(HOSTS.parents[1] / "mpi")!r}, {str(HOSTS.parents[1])!r}]
world = MPI.COMM_WORLD
def say(*words):
    words = " ".join(map(str, ("rank", world.rank, *words)))
    sys.stdout.write(words.replace(":\\n  ", ": ").replace("\\n  ", "; ") + "\\n")  # errors may have tables
    sys.stdout.flush()
"""


@cache
def missing() -> str:
    """Why this machine cannot emulate hosts; empty where it can."""
    absent = [tool for tool in TOOLS if not shutil.which(tool, path=PATH)]
    if absent:
        return f"the tools {', '.join(absent)} (of iproute2 and util-linux)"
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", *user, "sh", "-c", NEEDED]
    environment = os.environ | {"PATH": PATH}
    tried = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return "" if tried.returncode == 0 else f"namespaces and links of its own: {tried.stderr.strip()}"


def command(options: str, script: str, *, aborts: bool = True) -> list[str]:
    """Of a job; ``aborts``: an exception on one rank ends it, as ``-m mpi4py`` does."""
    return [
        str(HOSTS),
        *options.split(),
        "--",
        sys.executable,
        *("-m", "mpi4py") * aborts,
        "-c",
        HEAD + script,
    ]


def environment(variables: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER)} | variables


def run(
    options: str, script: str, limit_s: float = LIMIT_S, *, aborts: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a script on every rank, to its end; ``aborts`` as for `command`."""
    return subprocess.run(
        command(options, script, aborts=aborts),
        env=environment(variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def said(nranks: int, done: subprocess.CompletedProcess[str], word: str) -> list[str]:
    """Return what each rank said after a word, in one line; fails unless every rank did and the job went well."""
    everything = done.stdout[-2000:] + done.stderr[-3000:]
    assert done.returncode == 0, everything
    found = dict(re.findall(rf"^rank (\d+) {word} (.*)$", done.stdout, re.MULTILINE))
    assert sorted(map(int, found)) == list(range(nranks)), everything
    return [found[str(rank)] for rank in range(nranks)]


def processes(token: str) -> list[str]:
    """Command lines of all processes that have a token in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and token.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it is gone, or somebody else's
            continue
    return found


def traces() -> set[str]:
    """Files, mounts and links of emulated hosts that this machine sees."""
    folders = {"/tmp", "/dev/shm", "/var/tmp", tempfile.gettempdir()}
    files = {
        str(path)
        for folder in folders
        for path in Path(folder).glob("*")
        if re.search(r"\b(host\d|login)\b", path.name)
    }
    mounts = set(re.findall(r"/dev/shm/\w+|/etc/hosts|nsfs.*", Path("/proc/self/mountinfo").read_text()))
    links = {
        path.name for path in Path("/sys/class/net").iterdir() if re.fullmatch(r"port\d+|switch", path.name)
    }
    return files | mounts | links
