"""The notice of a process: written while a signal comes, in a fork, and what stays of a failure that it passes on."""

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import mpi4py
import numpy as np
import pytest

mpi4py.rc.initialize = False  # importing hpcoll.comm must not start MPI

from hpcoll.comm.status import rank_status as module  # noqa: E402
from hpcoll.comm.status.blocked_call import BlockedCall, Status  # noqa: E402
from hpcoll.comm.status.rank_status import RankStatus  # noqa: E402
from hpcoll.runtime.telemetry.status_page import PAGE_NBYTES, StatusSlots  # noqa: E402

CALL = BlockedCall("1.2.3", 0, 7, "Barrier() at train.py:5", "rows", (1,), since=1.0)


class Interrupted(StatusSlots):
    """A page of which one write is interrupted, when part of it is written."""

    def __init__(self, handler: Callable[[], None]) -> None:
        super().__init__(np.zeros(PAGE_NBYTES, np.uint8), 0)
        self._handler: Callable[[], None] | None = handler

    def write(self, text: bytes) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            place = self._place(0, int(self._turns[0]) + 1)
            place[:40] = 1
            handler()
            place[40:100] = 1
        super().write(text)


def finished(run: Callable[[], None]) -> bool:
    """Say whether it ends, in a thread that may wait for ever."""
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


def test_a_signal_whose_handler_calls() -> None:
    """While the notice is written: it waits for nobody, and all that waits is said, whoever wrote last."""
    notice = RankStatus()
    page = Interrupted(lambda: notice.wait("the handler's", replace(CALL, what="second")))
    notice.add_slots(page)
    assert finished(lambda: notice.wait("the program's", replace(CALL, what="first")))
    assert [one["what"] for one in page.read(0)["waits"]] == ["first", "second"]


def test_a_signal_whose_handler_ends_what_waits() -> None:
    notice = RankStatus()
    page = Interrupted(lambda: notice.end("the program's"))
    notice.add_slots(page)
    assert finished(lambda: notice.wait("the program's", CALL))
    assert page.read(0)["waits"] == []


def test_what_was_said_holds_while_more_is_written() -> None:
    """A failure that a rank has told is never unknown to those who look just then, or find it stopped or killed there."""
    seen: list[dict[str, Any]] = []
    notice, page = RankStatus(), Interrupted(lambda: seen.append(page.read(0)))
    StatusSlots.write(page, b'{"failed": ["first"]}')
    notice.add_slots(page)
    notice.fail("PeerFailed", "rank 3 has left", CALL)
    assert seen == [{"failed": ["first"]}]
    assert [one["text"] for one in page.read(0)["failed"]] == ["rank 3 has left"]


def test_a_fork_while_another_thread_writes() -> None:
    """The thread that had the lock is not there: its notices are its own."""
    notice, being_written, may_go_on = RankStatus(), threading.Event(), threading.Event()
    page = Interrupted(lambda: (being_written.set(), may_go_on.wait(60)))  # type: ignore[arg-type, return-value]
    notice.add_slots(page)
    thread = threading.Thread(target=notice.wait, args=("the program's", CALL), daemon=True)
    thread.start()
    assert being_written.wait(60)
    notice.forget()  # as a fork does
    assert finished(lambda: notice.wait("the child's", CALL))
    may_go_on.set()
    thread.join(60)
    assert notice.status().waits == (CALL,)


def at(when: float, monkeypatch: pytest.MonkeyPatch) -> RankStatus:
    """A rank whose clock shows some time."""
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: when))
    return RankStatus()


def test_clocks_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who passes a failure on tells it as it was told, whatever time it is there, and what itself called."""
    first = at(1000.0, monkeypatch).fail("MismatchError", "", replace(CALL, lane=2, number=9))
    later = at(1000.5, monkeypatch).fail("PeerFailed", "rank 3 has left", CALL)
    assert first is not None
    assert later is not None
    behind = at(400.0, monkeypatch).fail("MismatchError", "", replace(CALL, number=0, what="its own"), first)
    assert behind is not None
    assert behind.order == (1000.0, "", (2, 9), "MismatchError")
    assert (behind.number, behind.what) == (0, "its own")
    assert max([later, behind, first], key=lambda one: one.order) == later
    assert all(min([later, one], key=lambda one: one.order).of == (2, 9) for one in (first, behind))


def test_a_long_text_is_the_same_everywhere() -> None:
    """For ranks that read it beside much else, for those that are sent it, and for the one that tells it."""
    notice, page = RankStatus(), StatusSlots(np.zeros(PAGE_NBYTES, np.uint8), 0)
    notice.add_slots(page)
    notice.wait(notice, replace(CALL, awaits=tuple(range(5000))))
    told = notice.fail("PeerFailed", "no memory " * 1000, CALL)
    assert told is not None
    assert told.text.startswith("no memory no memory")
    assert Status.from_json(page.read(0)).failed == notice.status().failed == (told,)
