"""Reports on waiting ranks: what each does, in what calls differ; and reports on very many ranks fit the memory for them."""

import json
import os
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcoll.base.machine import RUNNING
from hpcoll.base.ops import reduce_op
from hpcoll.base.text import ranks_in_words
from hpcoll.comm.arguments.call import Call
from hpcoll.comm.diagnosis import peer_state
from hpcoll.comm.diagnosis.peer_state import PeerState
from hpcoll.comm.diagnosis.report import (
    activity_text,
    difference_text,
    first_difference,
    ranks_behind,
    wait_chain,
)
from hpcoll.comm.plans.signature import _COLLECTIVES, Signature
from hpcoll.comm.status.blocked_call import BlockedCall, Status
from hpcoll.comm.status.rank_status import RankStatus
from hpcoll.comm.team.channel import Channel
from hpcoll.comm.team.resources import Resources
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.telemetry.call_log import CallLog
from hpcoll.runtime.telemetry.status_page import NOTICE_NBYTES, PAGE_NBYTES, StatusSlots, fitting, room

NRANKS = 4
BCAST = Signature(_COLLECTIVES.index("bcast"), 0, 4, 0, 0, 0, 0)


class Communicator:
    """Of ranks that share memory, with message contexts for blocking calls, two in flight, and a persistent request."""

    def __init__(self, pages: StatusSlots, title: str = "rows", nlanes: int = 4) -> None:
        self.pages, room = pages, (NRANKS, 1 + f.REMEMBERED, 8)
        self.logs = [CallLog(np.zeros(room, np.int64)) for _ in range(nlanes)]
        contexts = [SimpleNamespace(log=log, index=index) for index, log in enumerate(self.logs)]
        for one in contexts:
            one.log.index = one.index
        self.on = Resources.__new__(Resources)
        team = SimpleNamespace(
            world_ranks=tuple(range(NRANKS)), logs=dict(enumerate(self.logs)), channel=Channel()
        )
        self.on.__dict__.update(
            key=title,
            rank=0,
            nranks=NRANKS,
            near={rank: rank for rank in range(NRANKS)},
            team=team,
            node=SimpleNamespace(status_slots=pages),
            pids=[os.getpid()] * NRANKS,
            message_contexts=contexts[:3],
            _persistent=contexts[3:],
            _title=title,
            _has_name=False,
            has_gpus=False,
            counts_in_flight=True,
        )

    def known(self, lane: int = 0) -> PeerState:
        return PeerState(self.on, self.logs[lane])

    def begin(
        self,
        rank: int,
        signature: Signature,
        *,
        lane: int = 0,
        ended: bool = False,
        count: int = 64,
        counted: int = 64,
    ) -> None:
        """A rank's next call."""
        history = self.logs[lane].histories[rank]
        number = int(history[0, f.BEGUN]) + 1
        history[1 + number % f.REMEMBERED, : f.ITS_COUNTED + 1] = number, signature.word, count, 0, counted
        history[0, f.BEGUN] = number
        if ended:
            history[0, f.CALLS_ENDED], history[0, f.ENDED_AT] = number, 1_000_000_000 * number

    def call(self, what: str, awaits: list[int], lane: int = 0, holds: str = "process") -> BlockedCall:
        """A rank's first call on a message context, in which it waits."""
        return BlockedCall(self.on.key, lane, 1, what, self.on.title, tuple(awaits), since=1.0, holds=holds)

    def wait(self, rank: int, what: str, awaits: list[int], lane: int = 0) -> None:
        """Have another rank of the node say that it waits."""
        say(self.pages, rank, self.call(what, awaits, lane))


def say(pages: StatusSlots, rank: int, *waits: BlockedCall) -> None:
    StatusSlots(pages._all, rank).write(fitting(Status(waits).as_json()))


@pytest.fixture(autouse=True)
def no_mpi() -> None:
    """A process that has said nothing."""
    peer_state.RANK_STATUS.forget()


@pytest.fixture
def rows() -> Communicator:
    return Communicator(StatusSlots(np.zeros(PAGE_NBYTES * NRANKS, np.uint8), 0))


def test_calls_on_another_message_context(rows: Communicator) -> None:
    """Are calls: how many have ended on the communicator, and when the latest has."""
    assert activity_text(rows.known(), 1, 1) == "has called no collective yet"
    for lane in (1, 2, 1, 3):
        rows.begin(1, BCAST, lane=lane, ended=True)
    texts = {activity_text(rows.known(lane), 1, 5) for lane in range(4)}
    assert len(texts) == 1
    assert re.fullmatch(r"is in no collective since \d\d:\d\d:\d\d, after call 3 in flight", texts.pop())
    rows.begin(1, BCAST)
    assert {activity_text(rows.known(lane), 1, 2) for lane in range(4)} == {"is in blocking call 1"}


def test_calls_on_another_communicator(rows: Communicator) -> None:
    """Are told with its name; those of the same communicator go without."""
    other = Communicator(rows.pages, "columns")
    other.wait(1, "Barrier() at x.py:12", [2])
    rows.wait(2, "Barrier() at x.py:12", [3])
    assert activity_text(rows.known(), 1, 1).startswith("waits in Barrier() at x.py:12 on columns since ")
    assert activity_text(rows.known(1), 2, 1).startswith("waits in Barrier() at x.py:12 since ")


def test_a_chain_of_waits_goes_on_in_another_call(
    rows: Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another message context, and another communicator: to the rank on which all others wait."""
    other = Communicator(rows.pages, "columns")
    monkeypatch.setattr(
        peer_state, "live_contexts", [SimpleNamespace(resources=one.on) for one in (rows, other)]
    )
    peer_state.RANK_STATUS.wait(rows, rows.call("Barrier()", [1]))
    rows.wait(1, "Iscatterv(x) at x.py:3", [2], lane=1)
    other.wait(2, "Barrier() at x.py:4", [3])
    text = re.sub(r" since \d\d:\d\d:\d\d", "", "; ".join(wait_chain(rows.known(), 0, 1)))
    assert text == (
        "rank 0 waits for rank 1; rank 1 waits in Iscatterv(x) at x.py:3 for rank 2;"
        " rank 2 waits in Barrier() at x.py:4 on columns for rank 3; rank 3 has called no collective yet"
    )
    other.on.team.world_ranks = (3, 2, 1, 0)
    text = re.sub(r" since \d\d:\d\d:\d\d", "", "; ".join(wait_chain(rows.known(), 0, 1)))
    assert text.endswith("on columns for rank 3 of columns; rank 3 of columns has called no collective yet")


def test_of_several_calls_the_one_that_the_program_waits_for(rows: Communicator) -> None:
    """Not one in flight for which it does not, nor one on a communicator whose calls are given up."""
    other = Communicator(rows.pages, "columns")
    held, flies = rows.call("Barrier()", [3], 1), rows.call("Ibcast()", [3], 2, "")
    say(rows.pages, 1, held, flies)
    assert activity_text(rows.known(), 1, 1).startswith("waits in Barrier() since ")
    say(rows.pages, 1, flies)
    assert activity_text(rows.known(), 1, 1).startswith("waits in Ibcast() since ")
    rank_status, page = RankStatus(), StatusSlots(rows.pages._all, 1)
    rank_status.add_slots(page)
    rank_status.wait(rows, other.call("Ibarrier()", [0], 1, ""))
    rank_status.fail("PeerFailed", "rank 3 has ended", other.call("Barrier()", [0]))
    assert activity_text(rows.known(), 1, 1) == "has called no collective yet"


def test_a_chain_of_waits_that_comes_back(rows: Communicator) -> None:
    """Ends where it began."""
    peer_state.RANK_STATUS.wait(rows, rows.call("Barrier()", [1]))
    rows.wait(1, "Barrier()", [2])
    rows.wait(2, "Barrier()", [0])
    chain = ["rank 0 waits for rank 1", "rank 1 waits for rank 2", "rank 2 waits for rank 0"]
    assert wait_chain(rows.known(), 0, 1) == chain


@pytest.mark.parametrize(
    ("lane", "quoted"), [(0, "Bcast("), (1, "Ibcast("), (2, "Ibcast("), (3, "Bcast_init(")]
)
def test_calls_that_have_ended_are_quoted_as_they_were_called(
    rows: Communicator, lane: int, quoted: str
) -> None:
    for rank in range(NRANKS):
        rows.begin(rank, BCAST._replace(root=rank // 3), lane=lane, ended=True)
    which = {0: ", in blocking call 1", 1: ", in call 1 in flight", 2: ", in call 2 in flight", 3: ""}[lane]
    text = difference_text(rows.known(lane), 1)
    assert text == (
        f"ranks do not call the same{which} on rows:\n  ranks 0-2: {quoted}float64[8], root=0)\n  rank 3: {quoted}float64[8], root=1)"
    )


def test_segments_that_differ(rows: Communicator) -> None:
    """Are told where nothing else does."""
    for rank in range(NRANKS):
        rows.begin(rank, BCAST._replace(segment=(4096 << 2 * (rank == 3)).bit_length()), ended=True)
    text = difference_text(rows.known(), 1)
    assert "ranks 0-2: Bcast(float64[8], root=0), segments of 4 KiB or more (00)\n  rank 3: " in text
    assert text.endswith(", segments of 16 KiB or more (00)")


def test_sizes_of_blocks_that_differ(rows: Communicator) -> None:
    """Where their sum does not."""
    for rank in range(NRANKS):
        rows.begin(rank, BCAST, ended=True, counted=(17, 18)[rank == 3])
    assert first_difference(rows.known(), 2) == 1
    text = difference_text(rows.known(), 1)
    assert text.endswith(": Bcast(float64[8], root=0), blocks of other sizes (0012)")


def test_functions_that_differ(rows: Communicator) -> None:
    """As operators: two of them are told apart."""
    ops = [
        reduce_op(function, name=name)
        for name, function in {"a": lambda x, y: x, "b": lambda x, y: y}.items()
    ]
    for rank in range(NRANKS):
        call = Call("allreduce", 0, 0, 8, np.dtype("f8"), ops[rank == 3])
        rows.begin(rank, Signature.of(call, "ring", 1), ended=True, count=8)
    text = difference_text(rows.known(), 1)
    found = re.search(
        r"ranks 0-2: Allreduce\(.*, op=a function \((\w{4})\)\).*\n  rank 3: .*op=a function \((\w{4})\)\)",
        text,
    )
    assert found, text
    assert found[1] != found[2]


MANY = 5000
WAITS = BlockedCall("1.2.3", 0, 7, "Barrier() at train.py:5", "rows", (1,), since=1.0)
FAILURE = replace(WAITS, kind="PeerFailed")


@pytest.mark.parametrize(
    "status",
    [
        Status((replace(WAITS, awaits=tuple(range(MANY))),)),
        Status(failed=(replace(FAILURE, text="rank 0 waits for rank 1; " * MANY),)),
        Status(
            (replace(WAITS, awaits=tuple(range(MANY))),), (replace(FAILURE, text="it did not end; " * MANY),)
        ),
        Status((WAITS,) * 100, (FAILURE,)),
    ],
    ids=["waits for many", "a long text", "both", "many waits"],
)
def test_a_status_is_shortened(status: Status) -> None:
    """Others would hear nothing of a call that is left out."""
    text = fitting(status.as_json())
    found = Status.from_json(json.loads(text))
    assert len(text) <= room(NOTICE_NBYTES)
    for kept, calls in ((found.waits, status.waits), (found.failed, status.failed)):
        assert bool(kept) == bool(calls)
        assert [(one.key, one.number) for one in kept[-1:]] == [(one.key, one.number) for one in calls[-1:]]


def test_a_ring_of_many() -> None:
    """The text names the first and the last of those that wait for each other."""
    known: Any = SimpleNamespace(
        blocked_call=lambda rank, number: replace(WAITS, awaits=(rank + 1,)) if rank < MANY else None,
        key="",
        lane=0,
        process_state=lambda rank: RUNNING,
        is_silent=lambda rank: False,
        is_known=lambda rank, anywhere: True,
        status=lambda rank: Status(left="has left"),
        resources=SimpleNamespace(team=SimpleNamespace(world_ranks=range(MANY + 1))),
    )
    text = "; ".join(wait_chain(known, 0, 7))
    assert text.startswith("rank 0 waits for rank 1; rank 1 waits for rank 2; ")
    assert text.endswith(f"; rank {MANY - 1} waits for rank {MANY}; rank {MANY} has left")
    assert f"; {MANY - 7} more in between; " in text


def test_who_waits_for_very_many() -> None:
    """Follows no others, and none of those for whom it waits is left out."""
    waiting = replace(WAITS, awaits=tuple(range(1000, 1100)))
    known: Any = SimpleNamespace(
        key="",
        lane=0,
        blocked_call=lambda rank, number: waiting,
        process_state=lambda rank: "",
        is_silent=lambda rank: False,
        status=lambda rank: Status(),
    )
    assert ranks_behind(known, list(range(100)), 1) == list(range(100))
    assert ranks_behind(known, [1], 1) == [1, *range(1000, 1063)]


def test_ranks_in_words() -> None:
    assert ranks_in_words(range(0, 40, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"
    assert ranks_in_words([]) == "ranks none"
    assert ranks_in_words([7, 3, 2]) == "ranks 2-3, 7"
