"""The state of peers, read from memory that they write meanwhile."""

from types import SimpleNamespace
from typing import Any

import mpi4py
import numpy as np
import pytest

mpi4py.rc.initialize = False  # importing hpcoll.comm must not start MPI

from hpcoll.comm.diagnosis.peer_state import PeerState  # noqa: E402
from hpcoll.comm.plans.signature import Signature  # noqa: E402
from hpcoll.comm.team.channel import Channel  # noqa: E402
from hpcoll.runtime.program import fields as f  # noqa: E402

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
    on: Any = SimpleNamespace(key="1.2.3", near={0: 0}, rank=0, nranks=1, team=SimpleNamespace(channel=Channel()))
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
CALL = {"key": "1.2.3", "lane": 0, "number": 4, "what": "", "on": ""}
SAID = [  # what a rank that has begun 4 calls and ended 3 says, and of which of calls 3, 4 and 5 it then has no more to say
    ({}, [3]),
    ({"waits": [CALL]}, [3, 4, 5]),
    ({"waits": [CALL | {"lane": 1, "number": 1}]}, [3, 5]),
    ({"failed": [CALL | {"key": "4.5.6"}]}, [3, 5]),
]


@pytest.mark.parametrize(("notice", "expected"), SAID)
def test_a_rank_has_said_what_it_can_of_a_call(notice: dict[str, Any], expected: list[int]) -> None:
    """Once it waits elsewhere, too: those that quote it would else wait for what never comes."""
    histories = np.zeros((1, 1 + f.REMEMBERED, 8), np.int64)
    histories[0, 0, [f.BEGUN, f.CALLS_ENDED]] = 4, 3
    pages: Any = SimpleNamespace(read=lambda rank: notice)
    on: Any = SimpleNamespace(key="1.2.3", near={0: 0}, rank=1, node=SimpleNamespace(status_slots=pages), team=TEAM)
    log: Any = SimpleNamespace(histories=histories, index=0)
    assert [number for number in (3, 4, 5) if PeerState(on, log).has_answered(0, number, 0.0)] == expected
