"""The status page of a process: what others find there, and who may open it."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hpcoll.cli.inspect.ranks_here import look
from hpcoll.comm.status.blocked_call import BlockedCall
from hpcoll.comm.status.rank_status import RankStatus
from hpcoll.runtime.telemetry.status_page import LINK, Identity, StatusPage, contents
from hpcoll.runtime.transports import window

CALL = BlockedCall("0.0.7", 0, 41, "Barrier() at train.py:12", "rows", (0,))


@pytest.fixture
def own_page() -> Iterator[StatusPage]:
    one = StatusPage()
    yield one
    one.close()


def test_a_real_process(own_page: StatusPage) -> None:
    """Found by its file among all that run here, and not found in a fork, which closes it, nor when it is closed."""
    own_page.introduce(Identity(os.getpid(), 0, 1, "test", "h", time.time(), {}, ["this test"]))
    rank_status = RankStatus()
    rank_status.show(own_page)
    rank_status.wait(rank_status, replace(CALL, what="first"), {"sees": {0: (7.5, "x")}})
    mine = [rank for job in look().jobs for rank in job.ranks.values() if rank.pid == os.getpid()]
    assert [wait.sees for wait in mine[0].waits] == [{0: (7.5, "x")}]
    assert [wait.what for wait in mine[0].waits] == ["first"]
    child = os.fork()
    if not child:
        status = 2
        try:
            rank_status.forget()
            rank_status.wait(rank_status, replace(CALL, what="the child's"))
            names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
            status = int(LINK in [os.readlink(name) for name in names if os.path.lexists(name)])
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert contents(own_page._memory.tobytes())[1]["waits"][0]["what"] == "first"
    own_page.close()
    assert [rank for job in look().jobs for rank in job.ranks.values() if rank.pid == os.getpid()] == []


def test_other_users_may_not_open_it(own_page: StatusPage) -> None:
    """The system gives files of memory alone to everybody; so it would rings where /dev/shm makes none without a name."""
    with pytest.raises(OSError, match=r"^/none such: No such file"):
        window.new_file("/none such")
    file, of_memory = window.new_file("/proc")
    names = ("hpcoll-live", "hpcoll")
    modes = {
        name: os.stat(f"/proc/self/fd/{one}").st_mode & 0o777
        for one in os.listdir("/proc/self/fd")
        for name in names
        if os.path.lexists(f"/proc/self/fd/{one}")
        and os.readlink(f"/proc/self/fd/{one}") == f"/memfd:{name} (deleted)"
    }
    os.close(file)
    assert (of_memory, modes) == (True, {"hpcoll-live": 0o600, "hpcoll": 0o600})
