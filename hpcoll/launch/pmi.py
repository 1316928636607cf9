"""A server of PMI-1, by which ranks of MPICH and its relatives find each other when MPI begins: lines of ``cmd=... key=value``.

Each rank's MPI library has one end of a socket, and this server the other. Imports nothing but Python's own modules.
Source: Balaji et al., "PMI: A Scalable Parallel Process-Management Interface for Extreme-Scale Systems", EuroMPI 2010.
"""

import itertools
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

FD, RANK, NRANKS = "PMI_FD", "PMI_RANK", "PMI_SIZE"  # variables that the library reads
LOCAL_RANK, LOCAL_NRANKS = "MPI_LOCALRANKID", "MPI_LOCALNRANKS"  # as MPICH's mpiexec sets them
_MAPPING = "PMI_process_mapping"  # a key: the node of each rank
_VALUE_NBYTES = 1024  # longest value, zero byte included
_FNV_BASIS, _FNV_PRIME = 2166136261, 16777619  # of the hash FNV-1a, 32 bits
# answers that do not depend on anything
_ANSWERS = {
    "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
    "get_maxes": f"cmd=maxes kvsname_max=64 keylen_max=64 vallen_max={_VALUE_NBYTES} rc=0",
    "get_appnum": "cmd=appnum appnum=0 rc=0",
    "finalize": "cmd=finalize_ack rc=0",
}


class Job:
    """The keys and values of a job's ranks, and their barrier, for a thread per rank.

    ``nodes`` numbers the node of each rank. ``abort`` is called with the code that a rank has given to MPI_Abort, which returns after that.
    """

    def __init__(self, nodes: Sequence[int], abort: Callable[[int], None]) -> None:
        self._abort = abort
        self.name = f"hpcoll-{secrets.token_hex(8)}"  # the library gives shared memory names that begin so
        self._nranks = len(nodes)
        text = mapping(nodes)
        self._values = (
            {_MAPPING: text} if len(text) < _VALUE_NBYTES else {}
        )  # without it the library asks for host names
        self._changed = threading.Condition()
        self._arrived, self._barriers = 0, 0
        self._lost = False  # a rank has gone, for which nobody need wait

    def serve(self, sock: socket.socket) -> None:
        """Answer one rank's library until it says that it ends, or its process is gone."""
        finalized = False
        try:
            with (
                suppress(OSError),
                sock.makefile("r", encoding="utf-8", errors="replace", newline="\n") as lines,
            ):
                for line in lines:
                    answer = self._answer(line)
                    sock.sendall(f"{answer}\n".encode())
                    finalized = finalized or answer == _ANSWERS["finalize"]
        finally:
            if not finalized:
                with self._changed:
                    self._lost = True
                    self._changed.notify_all()

    def clean(self, folder: Path = Path("/dev/shm")) -> None:
        """Remove shared memory of this host that the library has left, where ranks were killed; all have gone by now.

        MPICH 4 and 5 have a hash of the job's name in the names of these files.
        """
        value = _FNV_BASIS
        for byte in self.name.encode():
            value = (value ^ byte) * _FNV_PRIME % 2**32
        for path in folder.glob(f"mpich_*_{value:x}_*"):
            with suppress(OSError):
                path.unlink()

    def _answer(self, line: str) -> str:
        """Return the answer to a line; OSError: there will be none."""
        command, words = parsed(line)
        match command:
            case "get_universe_size":
                return f"cmd=universe_size size={self._nranks} rc=0"
            case "get_my_kvsname":
                return f"cmd=my_kvsname kvsname={self.name} rc=0"
            case "put":
                with self._changed:
                    self._values[words.get("key", "")] = words.get("value", "")
                return "cmd=put_result rc=0 msg=success"
            case "get":
                with self._changed:
                    value = self._values.get(words.get("key", ""))
                if value is None:
                    return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
                return f"cmd=get_result rc=0 msg=success value={value}"
            case "barrier_in":
                self._barrier()
                return "cmd=barrier_out rc=0"
            case "abort":
                code = words.get("exitcode", "")
                self._abort(int(code) if code.isdecimal() else 1)
                raise ConnectionAbortedError
        return _ANSWERS.get(command, f"cmd={command}_result rc=-1 msg=not_supported")

    def _barrier(self) -> None:
        """Return once all ranks are in it; ConnectionAbortedError where one is lost."""
        with self._changed:
            mine = self._barriers
            self._arrived += 1
            if self._arrived == self._nranks:
                self._arrived = 0
                self._barriers += 1
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._barriers > mine or self._lost)
            if self._barriers == mine:
                raise ConnectionAbortedError


def parsed(line: str) -> tuple[str, dict[str, str]]:
    """Return the command of a line, and its other words; a value has no blank, but for the last one's.

    >>> parsed("cmd=put kvsname=a key=k value=x=1 y\\n")
    ('put', {'kvsname': 'a', 'key': 'k', 'value': 'x=1 y'})
    """
    head, mark, value = line.rstrip("\n").partition(" value=")
    words = dict(word.partition("=")[::2] for word in head.split())
    command = words.pop("cmd", "")
    return command, {**words, "value": value} if mark else words


def mapping(nodes: Iterable[int]) -> str:
    """Return the node of each rank as PMI writes it: blocks of (first node, nodes, ranks on each), one after the other.

    >>> mapping([0, 0, 1, 1, 2]), mapping([0, 1, 0, 1])
    ('(vector,(0,2,2),(2,1,1))', '(vector,(0,2,1),(0,2,1))')
    """
    blocks: list[list[int]] = []
    for node, ranks in itertools.groupby(nodes):
        count = len(list(ranks))
        if blocks and blocks[-1][2] == count and sum(blocks[-1][:2]) == node:
            blocks[-1][1] += 1
        else:
            blocks.append([node, 1, count])
    return f"(vector,{','.join('({},{},{})'.format(*block) for block in blocks)})"


def environment(fd: int, rank: int, nranks: int, local_rank: int, local_nranks: int) -> dict[str, str]:
    """Return the variables by which a library finds its end of the socket, the descriptor ``fd``."""
    values = {FD: fd, RANK: rank, NRANKS: nranks, LOCAL_RANK: local_rank, LOCAL_NRANKS: local_nranks}
    return {name: str(value) for name, value in values.items()}
