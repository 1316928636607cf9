"""The thread that looks after calls in flight: a signal's handler that leaves its first waking does not put it to sleep for good."""

import sys
import threading
from types import FrameType

import mpi4py
import pytest

mpi4py.rc.initialize = False  # importing hpcoll.comm must not start MPI

from hpcoll.comm.watch_thread import WatchThread  # noqa: E402

LIMIT_S = 60


class Alarm(Exception):
    """What a program's handler raises."""


class Waiting:
    """A call in flight that has been so for long."""

    begun = 0.0

    def __init__(self) -> None:
        self.looked = threading.Event()

    def look(self) -> None:
        self.looked.set()


@pytest.mark.parametrize("function", ["start", "set"], ids=["before it runs", "when it runs"])
def test_a_waking_that_is_left(function: str) -> None:
    """The next call in flight wakes it."""
    one = Waiting()
    calls = [one]
    thread = WatchThread(lambda: calls)  # type: ignore[arg-type, return-value]

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name == function and frame.f_globals["__name__"] == "threading":
            sys.setprofile(None)
            raise Alarm

    sys.setprofile(profile)
    try:
        with pytest.raises(Alarm):
            thread.wake()
    finally:
        sys.setprofile(None)
    assert not thread.awake
    thread.wake()
    assert one.looked.wait(LIMIT_S)
    calls.clear()
