"""The ranks of a program on this host: processes that are started, watched and ended together, whatever MPI library there is.

Ranks of MPICH and its relatives find each other through a process that speaks PMI-1 with each over a socket of its own. It outlives this
one where this one is killed. Open MPI's ranks are started by its mpirun.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from ast import literal_eval
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

from hpcoll.base import children
from hpcoll.base.errors import HpcollError
from hpcoll.base.launchers import JOB, MPICH, OPEN_MPI, PREFIXES, family_of
from hpcoll.launch import pmi
from hpcoll.launch.meeting import program
from hpcoll.launch.variables import NAMES

_PATIENCE_S = 5.0  # with ranks that are asked to end
_PROBE_S = 60.0
_NAP_S = 0.02
_PROBE = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.get_vendor())"
# The process becomes the program, and ends when the one that has started it does.
_BOUND = """
import ctypes, os, signal
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"hpcoll: {sys.argv[2]}: {error.strerror}")
"""
_TAG = re.compile(r"^\[\d+,(\d+)\]<\w+>: ?")
_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


class Ended(HpcollError):
    """A rank ended otherwise than well.

    Attributes:
        code: The exit code of a shell: the process's own, or 128 and the number of its signal.
        rank: The rank; -1 where mpirun alone knows.
    """

    def __init__(self, text: str, code: int, rank: int) -> None:
        super().__init__(text)
        self.code, self.rank = code, rank


class Ranks:
    """The processes of a command, ``nranks`` of them; ended at the latest when this is left.

    Args:
        command: The program and its arguments, the same for all ranks.
        nranks: Number of ranks, at least 1.
        environment: Variables of theirs besides those of this process.
        prefix: Each line that a rank prints begins with its rank, as ``[2]``.
        stdin: What rank 0 reads; the others read nothing.

    Raises:
        HpcollError: The MPI library is none that can be started here.
    """

    def __init__(
        self,
        command: Sequence[str],
        nranks: int,
        environment: Mapping[str, str],
        *,
        prefix: bool = False,
        stdin: int | None = None,
    ) -> None:
        family, name = library()
        theirs = {*NAMES, JOB}  # of the launcher of this process
        clean = {
            key: value
            for key, value in os.environ.items()
            if key not in theirs and not key.startswith(PREFIXES)
        } | dict(environment)
        self._each = family == MPICH  # this process starts each rank
        piped = subprocess.PIPE if prefix else None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._readers: list[threading.Thread] = []
        self._server: subprocess.Popen[bytes] | None = None
        self._aborted: Ended | None = None
        try:
            if self._each:
                self._start(command, nranks, clean, prefix, stdin)
            elif family == OPEN_MPI:
                by = [*_mpirun(nranks), *(["--output", "tag"] if prefix else []), *command]
                asked = dict.fromkeys(_AS_ROOT, "1") if os.geteuid() == 0 else {}
                self._processes.append(
                    subprocess.Popen(_bound(by), env=clean | asked, stdin=stdin, stdout=piped, stderr=piped)
                )
                if prefix:
                    self._pass_on("", self._processes[0])
            else:
                raise HpcollError(
                    f"mpi4py has loaded {name}, whose programs its own launcher starts: use mpirun or mpiexec"
                )
        except BaseException:
            self.end()
            raise

    def _start(
        self,
        command: Sequence[str],
        nranks: int,
        environment: Mapping[str, str],
        prefix: bool,
        stdin: int | None,
    ) -> None:
        piped = subprocess.PIPE if prefix else None
        pairs = [socket.socketpair() for _ in range(nranks)]
        ours = [str(mine.fileno()) for mine, _ in pairs]
        try:
            self._server = subprocess.Popen(
                children.python(program("serve"), *ours),
                pass_fds=[mine.fileno() for mine, _ in pairs],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                cwd="/",
            )
            assert self._server.stdout
            os.set_blocking(self._server.stdout.fileno(), False)
            for rank, (_, its) in enumerate(pairs):
                variables = pmi.environment(its.fileno(), rank, nranks, rank, nranks)
                process = subprocess.Popen(
                    _bound(command),
                    env={**environment, **variables},
                    pass_fds=[its.fileno()],
                    stdin=subprocess.DEVNULL if rank else stdin,
                    stdout=piped,
                    stderr=piped,
                )
                self._processes.append(process)
                if prefix:
                    self._pass_on(f"[{rank}] ", process)
        finally:
            for pair in pairs:
                for sock in pair:
                    sock.close()

    def _pass_on(self, prefix: str, process: subprocess.Popen[bytes]) -> None:
        """Have threads print what a process prints."""
        for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            reader = threading.Thread(target=_pass_on, args=(prefix, source, target), daemon=True)
            reader.start()
            self._readers.append(reader)

    def _hear(self) -> None:
        """Note the first code of MPI_Abort, where the server has told one."""
        assert self._server
        assert self._server.stdout
        for code in (self._server.stdout.read() or b"").split()[:1]:
            self._aborted = self._aborted or Ended(
                f"a rank called MPI_Abort({int(code)})", int(code) or 1, -1
            )

    def failed(self) -> Ended | None:
        """Return how the first rank that has not ended well ended; None where none has."""
        codes = [process.poll() for process in self._processes]
        if self._server:
            self._hear()  # after that: a rank that has called MPI_Abort may end with another code
        if self._aborted:
            return self._aborted
        for rank, (process, code) in enumerate(zip(self._processes, codes, strict=True)):
            if code:
                who = f"rank {rank} (process {process.pid})" if self._each else "a rank"
                how = (
                    f"was killed by {signal.Signals(-code).name}"
                    if code < 0
                    else f"ended with exit code {code}"
                )
                return Ended(f"{who} {how}", code if code > 0 else 128 - code, rank if self._each else -1)
        return None

    def ended(self) -> bool:
        """Say whether all processes have ended."""
        return all(process.poll() is not None for process in self._processes)

    def wait(self) -> None:
        """Wait until all ranks have ended; raise `Ended` as soon as one has not ended well."""
        while not self.ended():
            if failed := self.failed():
                raise failed
            time.sleep(_NAP_S)
        for reader in self._readers:
            reader.join()
        if failed := self.failed():
            raise failed

    def end(self) -> None:
        """End all processes: they are asked to, and killed after a while."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        end = time.monotonic() + _PATIENCE_S
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
            if process.poll() is None:
                process.kill()
                process.wait()
        for reader in self._readers:
            reader.join(_PATIENCE_S)
        if self._server:
            with suppress(subprocess.TimeoutExpired):  # a child of a rank lives on
                self._server.wait(_PATIENCE_S)
            assert self._server.stdout
            self._server.stdout.close()


def _bound(command: Sequence[str]) -> list[str]:
    """Return the command of a process that ends with this one."""
    return children.python(_BOUND, str(os.getpid()), *command)


def _pass_on(prefix: str, source: IO[bytes] | None, target: IO[str]) -> None:
    """Print lines as they come, each whole; mpirun has marked them as ``[1,2]<stdout>: `` where it prints those of rank 2."""
    assert source
    for line in source:
        text = _TAG.sub(r"[\1] ", line.decode(errors="replace").rstrip("\n"))
        with suppress(OSError, ValueError):  # nobody reads them any more
            target.write(f"{prefix}{text}\n")
            target.flush()


@cache
def library() -> tuple[str, str]:
    """Return family of the MPI library that mpi4py loads, and its name and release, which another process finds out."""
    asked = subprocess.run(
        children.python(_PROBE),
        capture_output=True,
        text=True,
        timeout=_PROBE_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if asked.returncode:
        lines = asked.stderr.strip().splitlines() or [f"exit code {asked.returncode}"]
        raise HpcollError(
            f"mpi4py cannot load an MPI library: {lines[-1]}: pip install 'hpcoll[mpich]' brings one"
        )
    name, release = literal_eval(asked.stdout)
    return family_of(name), f"{name} {'.'.join(map(str, release))}"


def _mpirun(nranks: int) -> list[str]:
    """Return Open MPI's command for as many ranks on this host."""
    beside = str(Path(sys.executable).parent)
    path = shutil.which("mpirun", path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))
    if not path:
        raise HpcollError(
            "mpi4py has loaded Open MPI, and there is no mpirun on PATH: install hpcoll[mpich], or put it there"
        )
    crowded = nranks > len(os.sched_getaffinity(0))
    return [
        path,
        "--host",
        f"localhost:{nranks}",
        "-n",
        str(nranks),
        # without ssh on PATH, Open MPI 5 heeds no number of slots
        *(["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"] if crowded else []),
    ]
