"""The process in which ranks of a job meet: rank 0 starts it, all ranks connect to it, and then it serves their MPI libraries.

It is no thread of rank 0, since MPI_Init holds Python's lock while it waits for answers. It listens until all ranks are there, and ends
when the last one has gone. Imports nothing but Python's own modules and such of hpcoll that do the same.

What is said on a connection, in lines of JSON, once both sides have shown the key: the rank says who it is (`Hello`). When all are there,
it hears its place on its node, and answers with one byte. From then on the connection is its MPI library's, which speaks PMI-1.
"""

import errno
import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hpcoll.base.authenticated import LOOPBACK, Acceptor, Address, listen
from hpcoll.base.machine import node_identity
from hpcoll.launch.pmi import Job

_LINE_NBYTES = 4096
_TAKEN_S = 10.0  # patience with an address that the processes of an earlier generation may still have
_AGAIN_S = 0.05
_ANY = "0.0.0.0"  # all addresses of this host
_PROGRAM = """
import types
package = sys.modules["hpcoll"] = types.ModuleType("hpcoll")
package.__path__ = [{folder!r}]
from hpcoll.launch import meeting
meeting.{function}()
"""


class Hello(NamedTuple):
    """The words of a rank that has come."""

    rank: int
    nranks: int
    node: str  # equal for ranks that share memory
    who: str  # its process, for texts
    pid: int


class Meeting:
    """The ranks that have come, for a thread per connection."""

    def __init__(self, nranks: int) -> None:
        self.nranks = nranks
        self.over = threading.Event()  # all have come, or the meeting has failed
        self._changed = threading.Condition()
        self._here: dict[int, tuple[socket.socket, Hello]] = {}
        self._job: Job | None = None
        self._left = 0

    def serve(self, sock: socket.socket, acceptor: Acceptor) -> None:
        """Take part for one rank, and then for its MPI library."""
        hello, refusal = self._enter(sock)
        if hello is None:
            _say(sock, {"error": refusal})
            return
        with suppress(OSError):
            sock.recv(1)  # nothing comes before the meeting is over, unless the rank has gone
        with self._changed:
            if self._job is None:
                self._here.pop(hello.rank, None)
                return
        self._job.serve(sock)
        with self._changed:
            self._left += 1
            self._changed.notify_all()

    def _enter(self, sock: socket.socket) -> tuple[Hello | None, str]:
        """Enter a rank, or say why not; the last one ends the meeting."""
        with suppress(OSError, ValueError, TypeError), sock.makefile("rb") as lines:
            hello = Hello(*json.loads(lines.readline(_LINE_NBYTES)))
            with self._changed:
                if hello.rank not in range(self.nranks):
                    return None, f"it says rank {hello.rank} of {self.nranks}"
                if hello.nranks != self.nranks:
                    return None, f"it says {hello.nranks} ranks, and rank 0 says {self.nranks}"
                if hello.rank in self._here:
                    return None, f"there is a rank {hello.rank} already: {self._here[hello.rank][1].who}"
                if self.over.is_set():
                    return None, "the ranks have met without it"
                self._here[hello.rank] = sock, hello
                if len(self._here) == self.nranks:
                    self._begin()
                return hello, ""
        return None, "it does not say who it is"

    def _begin(self) -> None:
        """Tell all ranks their places."""
        hellos = [self._here[rank][1] for rank in range(self.nranks)]
        names = list(dict.fromkeys(hello.node for hello in hellos))
        nodes = [names.index(hello.node) for hello in hellos]
        self._job = job = Job(nodes, self._abort)
        for rank, (sock, _) in self._here.items():
            node = nodes[rank]
            place = {"local_rank": nodes[:rank].count(node), "local_nranks": nodes.count(node)}
            _say(sock, {**place, "job": job.name})
        self.over.set()

    def _abort(self, code: int) -> None:
        """End the ranks of this node, as MPI_Abort does; the launchers of others notice it by that."""
        del code
        for _, hello in self._here.values():
            if hello.node == node_identity():
                with suppress(OSError):
                    os.kill(hello.pid, signal.SIGKILL)

    def fail(self, reason: str = "") -> None:
        """End the meeting for those that are there, unless all are; they are told why, or else who is missing."""
        with self._changed:
            if self.over.is_set():
                return
            missing = [rank for rank in range(self.nranks) if rank not in self._here]
            for sock, _ in self._here.values():
                _say(sock, {"error": reason} if reason else {"missing": missing})
            self.over.set()

    def serve_all(self) -> None:
        """Return when all ranks have gone, or when not all had come."""
        with self._changed:
            self._changed.wait_for(lambda: self._job is None or self._left == self.nranks)
        if self._job:
            self._job.clean()


def _say(sock: socket.socket, answer: dict[str, Any]) -> None:
    with suppress(OSError):  # it has gone, which its thread notices
        sock.sendall(json.dumps(answer).encode() + b"\n")


def main() -> None:
    """Run a meeting: what rank 0 says comes from standard input, the port at which this listens goes to standard output."""
    asked = json.loads(sys.stdin.readline())
    meeting = Meeting(asked["nranks"])
    try:
        listener = _listener(asked["address"])
    except OSError as error:
        print(json.dumps({"error": error.strerror or str(error)}), flush=True)
        return
    name = listener.getsockname()
    host, port = name if isinstance(name, tuple) else ("", 0)
    print(json.dumps({"host": host if host != _ANY else LOOPBACK, "port": port}), flush=True)
    os.dup2(
        os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
    )  # whoever reads it need not wait for the end
    ours, its = socket.socketpair()
    acceptor = Acceptor(listener, its, bytes.fromhex(asked["key"]), meeting.serve)
    accepting = threading.Thread(target=acceptor.accept, daemon=True)
    accepting.start()
    threading.Thread(target=_watch_rank_0, args=(meeting,), daemon=True).start()
    if not meeting.over.wait(asked["limit_s"]):
        meeting.fail()
    ours.send(b"\0")
    accepting.join()
    meeting.serve_all()


def serve() -> None:
    """Serve ranks of this host, of which each has a socket; the other ends are descriptors in ``sys.argv``, in rank order."""
    descriptors = [int(word) for word in sys.argv[1:]]
    job = Job(
        [0] * len(descriptors), lambda code: print(code, flush=True)
    )  # whoever has started the ranks ends them
    threads = [
        threading.Thread(target=job.serve, args=(socket.socket(fileno=descriptor),))
        for descriptor in descriptors
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    job.clean()


def program(function: str) -> str:
    """Return the text of a program that calls a function of this module, without hpcoll's `__init__`, which imports NumPy."""
    return _PROGRAM.format(folder=str(Path(__file__).parents[1]), function=function)


def _watch_rank_0(meeting: Meeting) -> None:
    """End the meeting when rank 0 goes, which holds the other end of standard input."""
    sys.stdin.read()
    meeting.fail("rank 0 has gone")


def _listener(address: list[Any] | str) -> socket.socket:
    """Return a socket that listens at host and port, or at a name; at all addresses where the host is empty or none of this machine.

    The latter is so where another machine translates addresses. An address that is taken is tried for a while.
    """
    places: list[Address] = [address] if isinstance(address, str) else []
    if isinstance(address, list):
        host, port = address
        found = socket.getaddrinfo(
            host or None, port, socket.AF_INET, socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        places = [found[0][4], ("", port)]  # type: ignore[list-item]
    end = time.monotonic() + _TAKEN_S
    while True:
        try:
            return listen(places[0])
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL and len(places) > 1:
                del places[0]
            elif error.errno != errno.EADDRINUSE or time.monotonic() > end:
                raise
            else:
                time.sleep(_AGAIN_S)
