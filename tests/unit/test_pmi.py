"""The server of PMI-1: what it answers, and that nobody waits for a rank that has gone."""

import socket
import threading
from pathlib import Path

import pytest
from slowness import slowed

from hpcoll.launch.pmi import Job


class Library:
    """A rank's side of the socket."""

    def __init__(self, job: Job) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(slowed(10))
        self._thread = threading.Thread(target=self._served, args=(job, theirs))
        self._thread.start()
        self._lines = self.sock.makefile("r")

    @staticmethod
    def _served(job: Job, theirs: socket.socket) -> None:
        with theirs:
            job.serve(theirs)

    def say(self, line: str) -> None:
        self.sock.sendall(f"{line}\n".encode())

    def hear(self) -> str:
        """Return the answer; the empty string where there is none any more."""
        return self._lines.readline().rstrip("\n")

    def ask(self, line: str) -> str:
        self.say(line)
        return self.hear()

    def leave(self) -> None:
        self.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()


@pytest.fixture
def libraries() -> list[Library]:
    job = Job([0, 1, 1], [].append)
    return [Library(job) for _ in range(3)]


def test_values_and_barriers(libraries: list[Library]) -> None:
    """What one rank puts, the others get; all leave a barrier when the last one is in it, twice."""
    first, second, third = libraries
    assert first.ask("cmd=put kvsname=a key=k value=x=1 y").startswith("cmd=put_result rc=0")
    assert third.ask("cmd=get kvsname=a key=k") == "cmd=get_result rc=0 msg=success value=x=1 y"
    assert third.ask("cmd=get kvsname=a key=l").startswith("cmd=get_result rc=-1")
    assert second.ask("cmd=get kvsname=a key=PMI_process_mapping").endswith("value=(vector,(0,1,1),(1,1,2))")
    assert second.ask("cmd=get_universe_size") == "cmd=universe_size size=3 rc=0"
    assert second.ask("cmd=spawn") == "cmd=spawn_result rc=-1 msg=not_supported"
    for _ in range(2):
        for library in libraries:
            library.say("cmd=barrier_in")
        assert [library.hear() for library in libraries] == ["cmd=barrier_out rc=0"] * 3
    for library in libraries:
        library.leave()


def test_nobody_waits_for_a_rank_that_has_gone(libraries: list[Library]) -> None:
    """Those in a barrier are told, by the end of the connection, and those that come later."""
    first, second, third = libraries
    first.say("cmd=barrier_in")
    third.leave()
    assert first.hear() == ""
    assert second.ask("cmd=barrier_in") == ""


def test_rank_that_ends_well_is_no_loss(libraries: list[Library]) -> None:
    first, second, third = libraries
    assert third.ask("cmd=finalize") == "cmd=finalize_ack rc=0"
    third.leave()
    first.say("cmd=barrier_in")
    assert second.ask("cmd=get_appnum") == "cmd=appnum appnum=0 rc=0"
    for library in (first, second):
        library.sock.close()


def test_shared_memory_of_this_job_alone_is_removed(tmp_path: Path) -> None:
    """The names are those of MPICH: a hash of the job's."""
    job = Job([0, 0], [].append)
    job.name = "a"
    (tmp_path / "mpich_shm_e40c292c_0").touch()
    (tmp_path / "mpich_shm_e40c292d_0").touch()
    job.clean(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mpich_shm_e40c292d_0"]
