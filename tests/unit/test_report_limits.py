"""Reports on many ranks fit into the memory that a rank has for them, so that all hear them."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hpcoll.base.machine import RUNNING
from hpcoll.base.text import ranks_in_words
from hpcoll.comm.diagnosis.report import ranks_behind, wait_chain_text
from hpcoll.comm.status.blocked_call import BlockedCall, Status
from hpcoll.runtime.telemetry.status_page import NOTICE_NBYTES, fitting, room

NRANKS = 5000
CALL = BlockedCall("1.2.3", 0, 7, "Barrier() at train.py:5", "rows", (1,), since=1.0)
FAILED = replace(CALL, kind="PeerFailed")


@pytest.mark.parametrize(
    "status",
    [
        Status((replace(CALL, awaits=tuple(range(NRANKS))),)),
        Status(failed=(replace(FAILED, text="rank 0 waits for rank 1; " * NRANKS),)),
        Status((replace(CALL, awaits=tuple(range(NRANKS))),), (replace(FAILED, text="it did not end; " * NRANKS),)),
        Status((CALL,) * 100, (FAILED,)),
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
        blocked_call=lambda rank, number: replace(CALL, awaits=(rank + 1,)) if rank < NRANKS else None, key="", lane=0,
        process_state=lambda rank: RUNNING, is_silent=lambda rank: False, is_known=lambda rank, anywhere: True,
        status=lambda rank: Status(left="has left"), world_ranks=range(NRANKS + 1),
    )  # fmt: skip
    text = wait_chain_text(known, 0, 7)
    assert text.startswith("rank 0 waits for rank 1; rank 1 waits for rank 2; ")
    assert text.endswith(f"; rank {NRANKS - 1} waits for rank {NRANKS}; rank {NRANKS} has left")
    assert f"; {NRANKS - 7} more in between; " in text


def test_who_waits_for_very_many() -> None:
    """Follows no others, and none of those for whom it waits is left out."""
    waiting = replace(CALL, awaits=tuple(range(1000, 1100)))
    known: Any = SimpleNamespace(
        key="", lane=0, blocked_call=lambda rank, number: waiting, process_state=lambda rank: "", is_silent=lambda rank: False,
        status=lambda rank: Status(),
    )  # fmt: skip
    assert ranks_behind(known, list(range(100)), 1) == list(range(100))
    assert ranks_behind(known, [1], 1) == [1, *range(1000, 1063)]


def test_ranks_in_words() -> None:
    assert ranks_in_words(range(0, 40, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"
    assert ranks_in_words([]) == "ranks none"
    assert ranks_in_words([7, 3, 2]) == "ranks 2-3, 7"
