"""What is said of many ranks fits into the memory that a rank has for it, so that all hear it."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from hpcoll.base.processes import RUNNING
from hpcoll.base.units import ranks_in_words
from hpcoll.comm.diagnosis.report import behind, wait_chain_text
from hpcoll.runtime.telemetry.status_slots import NOTICE_NBYTES, fitting, room

NRANKS = 5000
CALL: dict[str, Any] = {"key": "1.2.3", "lane": 0, "number": 7, "what": "Barrier() at train.py:5", "awaits": [1], "step": "", "since": 1.0}


@pytest.mark.parametrize(
    "notice",
    [
        {"waits": [CALL | {"awaits": list(range(NRANKS))}], "failed": []},
        {"waits": [], "failed": [CALL | {"text": "rank 0 waits for rank 1; " * NRANKS}]},
        {"waits": [CALL | {"awaits": list(range(NRANKS))}], "failed": [CALL | {"text": "it did not end; " * NRANKS}]},
        {"waits": [CALL] * 100, "failed": [CALL | {"text": ""}]},
    ],
    ids=["waits for many", "a long text", "both", "many waits"],
)
def test_a_notice_is_shortened(notice: dict[str, Any]) -> None:
    """Others would hear nothing of a call that is left out."""
    text = fitting(notice)
    found = json.loads(text)
    assert len(text) <= room(NOTICE_NBYTES)
    for name, calls in notice.items():
        assert bool(found[name]) == bool(calls)
        assert [(one["key"], one["number"]) for one in found[name][-1:]] == [(one["key"], one["number"]) for one in calls[-1:]]


def test_a_ring_of_many() -> None:
    """The text names the first and the last of those that wait for each other."""
    known: Any = SimpleNamespace(
        waiting=lambda rank, number: {"awaits": [rank + 1]} if rank < NRANKS else None, key="", lane=0,
        state=lambda rank: RUNNING, silent=lambda rank: False, answers=lambda rank, anywhere: True,
        notice=lambda rank: {"left": "has left"}, world_ranks=range(NRANKS + 1),
    )  # fmt: skip
    text = wait_chain_text(known, 0, 7)
    assert text.startswith("rank 0 waits for rank 1; rank 1 waits for rank 2; ")
    assert text.endswith(f"; rank {NRANKS - 1} waits for rank {NRANKS}; rank {NRANKS} has left")
    assert f"; {NRANKS - 7} more in between; " in text


def test_who_waits_for_very_many() -> None:
    """Follows no others, and none of those for whom it waits is left out."""
    waiting = {"awaits": list(range(1000, 1100))}
    known: Any = SimpleNamespace(
        key="", lane=0, waiting=lambda rank, number: waiting, state=lambda rank: "", silent=lambda rank: False, notice=lambda rank: {},
    )  # fmt: skip
    assert behind(known, list(range(100)), 1) == list(range(100))
    assert behind(known, [1], 1) == [1, *range(1000, 1063)]


def test_ranks_in_words() -> None:
    assert ranks_in_words(range(0, 40, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"
    assert ranks_in_words([]) == "ranks none"
    assert ranks_in_words([7, 3, 2]) == "ranks 2-3, 7"
