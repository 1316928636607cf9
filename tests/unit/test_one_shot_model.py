"""One-shot kernels: a model of their steps holds in all interleavings, what breaks it is found, and the compiled text is as modelled."""

import re
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from one_shot_model import BARRIER, Call, Model
from ptx_machine import Machine
from ring_model import Broken, explore

from hpcoll.base import ops
from hpcoll.kernels import MAX_SOURCES
from hpcoll.kernels import one_shot_layout as layout

MEET = BARRIER.code, ""


def among_all(n: int) -> Call:
    """All send, and all receive."""
    return Call(range(n), range(n))


def from_one(n: int, root: int = 0) -> Call:
    return Call([root], [rank for rank in range(n) if rank != root])


def to_one(n: int, root: int = 0) -> Call:
    return Call(range(n), [root])


def test_every_interleaving_of_two_ranks_is_right() -> None:
    """Of any four calls, some of which may have no such block."""
    kinds = (among_all(2), from_one(2), from_one(2, 1), to_one(2), None)
    counts = [explore(Model(2, calls)) for calls in product(kinds, repeat=4)]
    assert len(counts) == 625
    assert max(counts) > 400


THREE = {
    "all": [among_all(3)] * 3,
    "from one": [from_one(3)] * 4,
    "to one": [to_one(3)] * 4,
    "from and to several": [from_one(3), from_one(3, 1), to_one(3, 2), among_all(3)],
}


@pytest.mark.parametrize(
    ("name", "checked"),
    [(name, ()) for name in THREE]
    + [pytest.param(name, (0,), marks=pytest.mark.full) for name in ("from one", "from and to several")],
)
def test_every_interleaving_of_three_ranks_is_right(name: str, checked: Sequence[int]) -> None:
    assert 10_000 < explore(Model(3, THREE[name], checked=checked)) < 500_000


READ, OVERWRITTEN = "a {} is read that is not of this call", "a {} is overwritten that somebody needs"
TWO = [among_all(2)] * 3


@pytest.mark.parametrize(
    ("breaks", "calls", "found"),
    [
        ("a plain store of the flag", TWO, READ.format("check")),
        ("a plain load of the flag", TWO, READ.format("check")),
        ("the check behind the flag", TWO, READ.format("check")),
        ("no barrier before the flags", TWO, READ.format("slot")),
        ("no barrier behind the flags", TWO, READ.format("slot")),
        ("one side of slots", TWO, OVERWRITTEN.format("slot")),
        ("one side of flags", TWO, OVERWRITTEN.format("check")),
        ("who receives nothing does not wait", [from_one(2)] * 3, OVERWRITTEN.format("slot")),
        ("who receives nothing does not wait", [to_one(2)] * 3, OVERWRITTEN.format("slot")),
        ("generations of all calls", [among_all(2), None, among_all(2)], OVERWRITTEN.format("slot")),
        ("a rank makes one call less", TWO, "deadlock"),
    ],
)
def test_what_is_wrong_is_found(breaks: str, calls: list[Call | None], found: str) -> None:
    with pytest.raises(Broken, match=f"^{found}$"):
        explore(Model(2, calls, breaks=breaks))


@pytest.mark.parametrize(
    ("breaks", "found"),
    [
        ("a plain store of the flag", READ.format("slot")),
        ("a plain load of the flag", READ.format("slot")),
        ("one side of flags", OVERWRITTEN.format("flag")),
    ],
)
@pytest.mark.parametrize("nranks", [2, 3])
def test_what_is_wrong_is_found_without_checks(nranks: int, breaks: str, found: str) -> None:
    with pytest.raises(Broken, match=f"^{found}$"):
        explore(Model(nranks, [from_one(nranks)] * 3, checked=(), breaks=breaks))


class Traced(Machine):
    """A machine that notes what threads do with the words of a model.

    Args:
        text: Of the kernel.
        words: Their kinds, by address.
    Attributes:
        steps: Of each thread.
    """

    def __init__(self, text: str, words: dict[int, str]) -> None:
        super().__init__(text)
        self.words = words
        self.steps: dict[int, list[tuple[str, str]]] = {}

    def _note(self, registers: dict[str, Any], code: str, what: str) -> None:
        self.steps.setdefault(registers["%tid.x"], []).append((code, what))

    def _memory(
        self, words: list[str], operands: list[str], registers: dict[str, Any], parameters: list[int]
    ) -> None:
        if words[1] != "param":
            place = next(one for one in operands if one.startswith("["))
            what = self.words.get(self.address(place, registers) & -8)
            if what:
                strong = f".{words[1]}" if words[1] in ("acquire", "release") else ""
                self._note(registers, words[0] + strong, what)
        super()._memory(words, operands, registers, parameters)

    def _run(self, thread: Any, parameters: list[int]) -> None:
        super()._run(thread, parameters)
        if self.code[thread.at][0] == BARRIER.code:
            self._note(thread.registers, *MEET)


@pytest.mark.parametrize("op", [ops.SUM, None], ids=["fold", "copy"])
def test_the_compiled_text_is_as_modelled(op: ops.ReduceOp | None) -> None:
    """Rank 0 of two runs a block of four threads, of which two tell; the other rank has been there."""
    pytest.importorskip("numba.cuda.cudadrv.nvrtc", reason="needs numba-cuda", exc_type=ImportError)
    from hpcoll.kernels import device

    f4 = np.dtype("f4")
    text = device.one_shot(op, f4 if op else None, (9, 0)).ptx.decode()
    barriers = re.findall(
        r"^\s*(?:@!?%p\d+ )?((?:bar|barrier|membar|fence|atom|red)\b\S*)", text, re.MULTILINE
    )
    assert barriers == ["bar.sync"] * 2
    assert not re.search(r"\.nc\b|\.volatile|\.relaxed|\.cta\b|\.gpu\b", text)
    strong = re.findall(r"\b(?:ld\.acquire|st\.release)\S*", text)
    assert sorted(strong) == ["ld.acquire.sys.global.u64"] * 3 + ["st.release.sys.global.u64"] * 2

    areas = np.zeros((2, layout.AREA_NBYTES // 8), np.int64)
    side, check = 1, 77
    flags = [
        (layout.FLAGS_AT + layout.FLAG_NBYTES * (side * layout.MOST_BLOCKS * MAX_SOURCES + rank)) // 8
        for rank in range(2)
    ]
    areas[0, flags[1]], areas[0, flags[1] + 1] = 1, check
    slot = layout.SLOTS_AT + side * layout.MOST_BLOCKS * layout.SLOT_NBYTES
    words = {}
    for area in areas:
        for at in flags:
            words |= {area[at:].ctypes.data: "flag", area[at + 1 :].ctypes.data: "check"}
        words |= {area.ctypes.data + slot + at: "slot" for at in range(0, layout.SLOT_NBYTES, 8)}
    stop, sent, received = np.zeros(1, np.int64), np.ones(16, f4), np.zeros(32, f4)
    channel = np.array([0, 2, stop.ctypes.data, *(area.ctypes.data for area in areas)])
    machine = Traced(text, words)
    given = [array.ctypes.data for array in (channel, sent, received)]
    machine.launch(1, 4, [*given, sent.nbytes, 64, 1, 0, 2, layout.READS | layout.WRITES, check])

    assert stop[0] == 0
    parts = [_sections(ops) for ops in Model(2, [among_all(2)]).threads[0]]
    all_do, others_do = (
        [_steps(sections) for sections in zip(*some, strict=True)] for some in (parts, parts[1:])
    )
    for thread in range(4):
        expected = all_do if thread < 2 else others_do
        steps = machine.steps[thread]
        found = [step for before, step in pairwise([None, *steps]) if step == MEET or step != before]
        assert found == [*expected[0], MEET, *expected[1], MEET, *expected[2]]


def _sections(ops: Sequence[Any]) -> list[list[Any]]:
    """The parts of a thread's instructions from barrier to barrier."""
    found: list[list[Any]] = [[]]
    for op in ops:
        if op is BARRIER:
            found.append([])
        else:
            found[-1].append(op)
    return found


def _steps(sections: Sequence[Sequence[Any]]) -> list[tuple[str, str]]:
    return [(op.code, op.what) for section in sections for op in section]
