"""The thread that looks after calls in flight: a signal's handler that leaves its first waking does not put it to sleep for good."""

import threading

import pytest
from handlers import Alarm, raising
from slowness import slowed

from hpcoll.comm.requests.watchdog_thread import WatchdogThread

LIMIT_S = slowed(60)


class Waiting:
    """A call in flight that has been so for long."""

    begun = 0.0

    def __init__(self) -> None:
        self.looked = threading.Event()

    def look(self, waited_for: object) -> None:
        self.looked.set()


@pytest.mark.parametrize("function", ["start", "set"], ids=["before it runs", "when it runs"])
def test_a_waking_that_is_left(function: str) -> None:
    """The next call in flight wakes it."""
    one = Waiting()
    calls = [one]
    thread = WatchdogThread(lambda: calls)
    with raising(function, "threading"), pytest.raises(Alarm):
        thread.wake()
    assert not thread.awake
    thread.wake()
    assert one.looked.wait(LIMIT_S)
    calls.clear()
