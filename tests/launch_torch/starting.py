"""Jobs that tests here start as users do, and what these leave behind: processes, shared memory, temporary files."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from slowness import slowed

LIMIT_S = slowed(60)  # most seconds of one job
GONE_S = slowed(10)  # after its end, until nothing of it is left
TORCHRUN = ("-m", "torch.distributed.run")
_MARK = "LAUNCH_TORCH_TEST"  # variable that all processes of a job inherit
# what makes a process a rank already, or tells it where others meet
_LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "MPI", "HPCOLL_", "MASTER_", "TORCH")
_SHARED = ("hpcoll*", "mpich*", "sem.mp*", "torch_*", "psm*")  # names in /dev/shm
_TEMPORARY = ("hpcoll*", "mpich*", "ompi*", "pymp-*")


class Job:
    """The processes that a test starts, with a folder for temporary files of their own."""

    def __init__(self, folder: Path) -> None:
        self._mark = f"{_MARK}={uuid.uuid4().hex}"
        self._folder = folder
        self.temporary = Path(tempfile.mkdtemp(prefix="launch-"))  # short: names of sockets are to lie in it
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            kept.pop(name, None)
        mark = dict([self._mark.split("=")])
        self.environment = {**kept, **mark, "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}
        self._before = set(_shared())

    def start(
        self, *words: str | Path, before: Sequence[str] = (), **variables: str
    ) -> subprocess.Popen[str]:
        """Start Python in a process group of its own, by a launcher ``before`` it; what it says on both streams is one text."""
        return subprocess.Popen(
            [*before, sys.executable, *map(str, words)],
            env=self.environment | variables,
            cwd=self._folder,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, *words: str | Path, status: int = 0, **variables: str) -> str:
        """Run Python to its end, and return what it says."""
        return self.ended([self.start(*words, **variables)], status)

    def run_ranks(self, nranks: int, *words: str | Path, status: int = 0, **variables: str) -> str:
        """Run a program as so many ranks, which know each other by variables only."""
        port = str(free_port())
        world = {"WORLD_SIZE": str(nranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks = [self.start(*words, **world, RANK=str(rank), **variables) for rank in range(nranks)]
        return self.ended(ranks, status)

    def ended(self, processes: Sequence[subprocess.Popen[str]], status: int = 0) -> str:
        """Wait for processes, which end with a status, and return what they have said."""
        end, said = time.monotonic() + LIMIT_S, ""
        for one in processes:
            try:
                said += one.communicate(timeout=max(1.0, end - time.monotonic()))[0]
            except subprocess.TimeoutExpired:
                self.kill()
                said += one.communicate()[0]
                raise AssertionError(f"did not end within {LIMIT_S:.0f} s:\n{said}") from None
        assert {one.returncode for one in processes} == {status}, said
        return said

    def processes(self) -> dict[int, str]:
        """Return the processes of this job that live, with their commands."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self._mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(folder.name)] = words.decode(errors="replace")
        return found

    def kill(self) -> None:
        """Kill all processes."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def left(self) -> list[str]:
        """Return processes, shared memory that is new and of no living process, and temporary files."""
        held = _held()
        memory = [name for name in _shared() if name not in self._before and name not in held]
        files = [path.name for pattern in _TEMPORARY for path in self.temporary.glob(pattern)]
        return [*self.processes().values(), *memory, *files]

    def leaves_nothing(self) -> None:
        """Fail when something of the job is left some seconds after its end; it is ended then."""
        end = time.monotonic() + GONE_S
        while (left := self.left()) and time.monotonic() < end:
            time.sleep(0.1)
        self.kill()
        assert not left, left


def _shared() -> Iterator[str]:
    return (path.name for pattern in _SHARED for path in Path("/dev/shm").glob(pattern))


def _held() -> set[str]:
    """Return names in /dev/shm that processes have mapped, whoever's they are."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            lines = path.read_text(errors="replace").splitlines()
            found.update(line.rpartition("/")[2] for line in lines if "/dev/shm/" in line)
    return found


@contextmanager
def watched(folder: Path) -> Iterator[Job]:
    """Give a job that must leave nothing behind."""
    job = Job(folder)
    try:
        yield job
        job.leaves_nothing()
    finally:
        job.kill()
        shutil.rmtree(job.temporary, ignore_errors=True)


def free_port() -> int:
    """Return a port that nobody has just now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def tokens(said: str, nranks: int, token: str = "sum") -> None:
    """Check the line of every rank: its token, the rank, the number of ranks and the sum of 1 to that number."""
    expected = nranks * (nranks + 1) // 2
    for rank in range(nranks):
        assert said.count(f"{token} {rank} of {nranks}: {expected}\n") == 1, said


def script(folder: Path, *parts: str, name: str = "program.py") -> Path:
    """Write a program, and return its path."""
    path = folder / name
    path.write_text("".join(parts))
    return path
