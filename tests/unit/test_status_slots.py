"""Status slots: written while a signal comes and in a fork, and read by peers meanwhile; a failure that is passed on stays."""

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcoll.comm.diagnosis.peer_state import PeerState
from hpcoll.comm.plans.signature import Signature
from hpcoll.comm.status.blocked_call import BlockedCall, Status
from hpcoll.comm.status.rank_status import RankStatus
from hpcoll.comm.team.channel import Channel
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.telemetry.status_page import PAGE_NBYTES, StatusSlots

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
    """While the status is written: it waits for nobody, and all that waits is said, whoever wrote last."""
    rank_status = RankStatus()
    page = Interrupted(lambda: rank_status.wait("the handler's", replace(CALL, what="second")))
    rank_status.add_slots(page)
    assert finished(lambda: rank_status.wait("the program's", replace(CALL, what="first")))
    assert [one["what"] for one in page.read(0)["waits"]] == ["first", "second"]


def test_a_signal_whose_handler_ends_what_waits() -> None:
    rank_status = RankStatus()
    page = Interrupted(lambda: rank_status.end("the program's"))
    rank_status.add_slots(page)
    assert finished(lambda: rank_status.wait("the program's", CALL))
    assert page.read(0)["waits"] == []


def test_what_was_said_holds_while_more_is_written() -> None:
    """A failure that a rank has told is never unknown to those who look just then, or find it stopped or killed there."""
    seen: list[dict[str, Any]] = []
    rank_status, page = RankStatus(), Interrupted(lambda: seen.append(page.read(0)))
    StatusSlots.write(page, b'{"failed": ["first"]}')
    rank_status.add_slots(page)
    rank_status.fail("PeerFailed", "rank 3 has left", CALL)
    assert seen == [{"failed": ["first"]}]
    assert [one["text"] for one in page.read(0)["failed"]] == ["rank 3 has left"]


def test_a_fork_while_another_thread_writes() -> None:
    """The thread that had the lock is not there: its notices are its own."""
    rank_status, being_written, may_go_on = RankStatus(), threading.Event(), threading.Event()
    page = Interrupted(lambda: (being_written.set(), may_go_on.wait(60)))  # type: ignore[arg-type, return-value]
    rank_status.add_slots(page)
    thread = threading.Thread(target=rank_status.wait, args=("the program's", CALL), daemon=True)
    thread.start()
    assert being_written.wait(60)
    rank_status.forget()  # as a fork does
    assert finished(lambda: rank_status.wait("the child's", CALL))
    may_go_on.set()
    thread.join(60)
    assert rank_status.status().waits == (CALL,)


def test_clocks_that_differ() -> None:
    """Who passes a failure on tells it as it was told, whatever time it is there, and what itself called."""
    first = RankStatus().fail("MismatchError", "", replace(CALL, lane=2, number=9))
    later = RankStatus().fail("PeerFailed", "rank 3 has left", CALL)
    assert first is not None
    assert later is not None
    assert 0 < later.at - first.at < 60
    first = replace(first, at=later.at - 0.5)
    behind = RankStatus().fail("MismatchError", "", replace(CALL, number=0, what="its own"), first)
    assert behind is not None
    assert behind.order == (first.at, "", (2, 9), "MismatchError")
    assert (behind.number, behind.what) == (0, "its own")
    assert max([later, behind, first], key=lambda one: one.order) == later
    assert all(min([later, one], key=lambda one: one.order).of == (2, 9) for one in (first, behind))


def test_a_long_text_is_the_same_everywhere() -> None:
    """For ranks that read it beside much else, for those that are sent it, and for the one that tells it."""
    rank_status, page = RankStatus(), StatusSlots(np.zeros(PAGE_NBYTES, np.uint8), 0)
    rank_status.add_slots(page)
    rank_status.wait(rank_status, replace(CALL, awaits=tuple(range(5000))))
    told = rank_status.fail("PeerFailed", "no memory " * 1000, CALL)
    assert told is not None
    assert told.text.startswith("no memory no memory")
    assert Status.from_json(page.read(0)).failed == rank_status.status().failed == (told,)


BCAST, BARRIER = Signature(1, 0, 4, 0, 0, 0, 0).word, Signature(0, 0, 1, 0, 0, 0, 0).word


class History:
    """Of a rank that begins its next call once its lines have been read so often."""

    def __init__(self, begun: int, reads: int) -> None:
        self._lines, self._reads = np.zeros((1 + f.REMEMBERED, 8), np.int64), reads
        for number in range(1, begun + 1):
            self.begin(number)

    def begin(self, number: int, *, half: bool = False) -> None:
        line = self._lines[1 + number % f.REMEMBERED]
        line[f.ITS_SIGNATURE] = BARRIER if half else BCAST
        if not half:
            line[f.NUMBER] = self._lines[0, f.BEGUN] = number

    def __getitem__(self, at: Any) -> Any:
        found = self._lines[at].copy()
        if not isinstance(at, tuple):
            self._reads -= 1
            if self._reads == 0:
                self.begin(int(self._lines[0, f.BEGUN]) + 1)
        return found


def known(history: History) -> PeerState:
    on: Any = SimpleNamespace(
        key="1.2.3", near={0: 0}, rank=0, nranks=1, team=SimpleNamespace(channel=Channel())
    )
    log: Any = SimpleNamespace(histories=[history], index=0)
    return PeerState(on, log)


@pytest.mark.parametrize("begun", [3, 20, 31])
def test_the_last_calls_are_remembered(begun: int) -> None:
    one = known(History(begun, 0))
    found = [number for number in range(begun + 3) if one.past_call(0, number) is not None]
    assert found == list(range(max(1, begun + 2 - f.REMEMBERED), begun + 1))


def test_there_is_no_call_of_number_0() -> None:
    """Which is that of failures in no call: texts would quote what memory of zeros stands for."""
    assert known(History(0, 0)).past_call(0, 0) is None
    assert known(History(5, 0)).past_call(0, 0) is None


def test_a_line_that_is_being_overwritten() -> None:
    """By the next call, of which nothing else can be seen yet."""
    history = History(20, 0)
    history.begin(21, half=True)
    assert known(history).past_call(0, 21 - f.REMEMBERED) is None
    assert known(history).past_call(0, 22 - f.REMEMBERED) is not None


def test_a_line_that_was_overwritten_while_it_was_read() -> None:
    """The call after it had begun by then: half of the line may be another's."""
    history = History(20, 1)
    assert known(history).past_call(0, 22 - f.REMEMBERED) is None


TEAM = SimpleNamespace(channel=Channel())
SEEN = {"key": "1.2.3", "lane": 0, "number": 4, "what": "", "on": ""}
SAID = [  # what a rank that has begun 4 calls and ended 3 says, and of which of calls 3, 4 and 5 it then has no more to say
    ({}, [3]),
    ({"waits": [SEEN]}, [3, 4, 5]),
    ({"waits": [SEEN | {"lane": 1, "number": 1}]}, [3, 5]),
    ({"failed": [SEEN | {"key": "4.5.6"}]}, [3, 5]),
]


@pytest.mark.parametrize(("rank_status", "expected"), SAID)
def test_a_rank_has_said_what_it_can_of_a_call(rank_status: dict[str, Any], expected: list[int]) -> None:
    """Once it waits elsewhere, too: those that quote it would else wait for what never comes."""
    histories = np.zeros((1, 1 + f.REMEMBERED, 8), np.int64)
    histories[0, 0, [f.BEGUN, f.CALLS_ENDED]] = 4, 3
    pages: Any = SimpleNamespace(read=lambda rank: rank_status)
    node = SimpleNamespace(status_slots=pages)
    on: Any = SimpleNamespace(
        key="1.2.3", near={0: 0}, rank=1, node=node, team=TEAM, form=lambda index: "blocking"
    )
    log: Any = SimpleNamespace(histories=histories, index=0)
    assert [number for number in (3, 4, 5) if PeerState(on, log).has_answered(0, number, 0.0)] == expected
