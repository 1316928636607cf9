"""Ranks that no launcher of MPI starts: processes of Python programs, what they say, and what they leave."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from slowness import slowed

from hpcoll.base.launchers import PREFIXES
from hpcoll.launch.ranks import library
from hpcoll.launch.variables import NAMES

MPICH = library()[0] == "MPICH"  # its ranks can be started without a launcher of its own
MARK = "LAUNCH_TEST"  # variable of all processes that tests start
os.environ[MARK] = str(os.getpid())
signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # ignored where a shell has started this in the background
LIMIT_S = slowed(60)
SOON_S = slowed(10)
# What each rank does; its token is the sum of all ranks, by hpcoll.
PROGRAM = """
import numpy as np
import hpcoll
{start}
from mpi4py import MPI
comm = hpcoll.Communicator(MPI.COMM_WORLD)
x = np.full(3, comm.rank + 1.0)
comm.Allreduce(MPI.IN_PLACE, x)
print("rank", comm.rank, "of", comm.size, "has", int(x[0]), flush=True)
"""
# A rank tells the library's files of shared memory.
SHARED = """
import re
print(*set(re.findall(r"/dev/shm/mpich\\S+", open("/proc/self/maps").read())), flush=True)
"""


class Rank:
    """A process that is a rank, or is about to be."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith((*PREFIXES, *NAMES))
        }
        self.process = subprocess.Popen(
            command,
            env=clean | {"OMP_NUM_THREADS": "1"} | dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int, str, str]:
        """Return exit code, output and errors, once it has ended."""
        out, error = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out, error


class Launch:
    """Starts ranks, and ends what a test leaves."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ranks = folder, list[Rank]()

    def program(self, text: str) -> str:
        """Return the path of a program."""
        path = self._folder / f"program_{len(list(self._folder.iterdir()))}.py"
        path.write_text(text)
        return str(path)

    def rank(self, words: Sequence[str], environment: Mapping[str, str], before: Sequence[str] = ()) -> Rank:
        """Start a Python program as a rank."""
        found = Rank([*before, sys.executable, *words], environment)
        self._ranks.append(found)
        return found

    def end(self) -> None:
        for one in self._ranks:
            if one.process.poll() is None:
                one.process.kill()
                one.process.communicate()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Ranks; after them no process is left."""
    before = left()
    ranks = Launch(tmp_path)
    try:
        yield ranks
    finally:
        ranks.end()
    end = time.monotonic() + SOON_S
    while more := left() - before:
        assert time.monotonic() < end, more
        time.sleep(0.05)


def left() -> set[str]:
    """Return processes of this test run."""
    processes = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:  # it is another user's, or gone
            continue
        if f"{MARK}={os.getpid()}\0".encode() in environment and folder.name != str(os.getpid()):
            processes.add(f"{folder.name} {(folder / 'cmdline').read_text()[-100:]}")
    return processes


def until_gone(said: str) -> None:
    """Wait until the files of shared memory that a rank has told (`SHARED`) are gone."""
    files = [Path(word) for word in said.split() if word.startswith("/dev/shm/")]
    assert files or not MPICH
    end = time.monotonic() + SOON_S
    while any(file.exists() for file in files):
        assert time.monotonic() < end, files
        time.sleep(0.05)


def variables(rank: int, nranks: int, port: int, host: str = "127.0.0.1") -> dict[str, str]:
    """Return the variables by which a launcher tells a rank its place."""
    return {"RANK": str(rank), "WORLD_SIZE": str(nranks), "MASTER_ADDR": host, "MASTER_PORT": str(port)}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def own_address() -> str:
    """Return an address of this host that is not loopback's; skip where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))
            address: str = asking.getsockname()[0]
        except OSError:
            pytest.skip("needs an address that is not loopback's")
    return address


def tokens(ranks: Sequence[Rank]) -> list[str]:
    """Return what ranks have said, once all have ended well."""
    ended = [rank.end() for rank in ranks]
    assert [code for code, _, _ in ended] == [0] * len(ranks), ended
    return [out.strip() for _, out, _ in ended]


def sums(nranks: int) -> list[str]:
    """Return the tokens of `PROGRAM`."""
    return [f"rank {rank} of {nranks} has {nranks * (nranks + 1) // 2}" for rank in range(nranks)]


def interrupt(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
