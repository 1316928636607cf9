"""Shared memory between ranks: a model of its steps holds in all interleavings, what breaks it is found, and the code is as modelled."""

import re

import llvmlite.binding as llvm
import pytest
from numba import njit, types
from ring_model import NUMBERS, Broken, Model, explore
from ring_rows import SLOTS, Row, from_one, in_a_ring

from hpcoll.runtime.engine.compiled import ffi, shm_ops
from hpcoll.schedules.ir import RING_SLOTS

ALL_KINDS = ("staged", "inline", "staged", "own", "staged", "own")
ROWS = {
    "2 ranks exchange": in_a_ring(2, ALL_KINDS),
    "2 ranks, one sends": from_one(2, ("staged", *ALL_KINDS)),
    "2 ranks, only staged": in_a_ring(2, ("staged",) * 4),
    "3 ranks, one sends all kinds": from_one(3, ALL_KINDS),
    "3 ranks, one sends": from_one(3, ("staged",) * 3),
    "3 ranks in a ring, two messages": in_a_ring(3, ("staged", "inline")),
    "3 ranks in a ring": in_a_ring(3, ("staged",)),
}
# where stores may overtake
LARGE = (
    "3 ranks, one sends all kinds",
    "3 ranks in a ring, two messages",
    "2 ranks, only staged",
)
OTHERS, SLOT = (
    "a receiver reads what is not its message",
    "a ring slot is written before its message was read",
)
NOT_ACKED = "memory is written before all readers have acknowledged"


@pytest.mark.parametrize(
    ("name", "memory", "near"),
    [
        pytest.param(
            name,
            memory,
            near,
            marks=[pytest.mark.full] * (near == 2 or (memory == "arm" and name in LARGE)),
        )
        for name in ROWS
        for memory in ("arm", "x86", "x86 past the caches")
        for near in (1, 2)
    ],
)
def test_every_interleaving_is_right(name: str, memory: str, near: int) -> None:
    nstates = explore(Model(ROWS[name], arm=memory == "arm", near=near, uncached="caches" in memory))
    assert 100 < nstates < 200_000


def early(rows: list[list[Row]]) -> list[list[Row]]:
    """The same with each acknowledgement before what it says has been used."""
    swapped = {"USE": "ACK", "ACK": "USE"}
    return [[(swapped.get(row[0], row[0]), *row[1:]) for row in part] for part in rows]


def ahead(n: int) -> list[list[Row]]:
    """Two ranks that each send several messages before they take one."""
    return [sorted(part, key=lambda row: row[0] != "POST") for part in in_a_ring(2, ("inline",) * n)]


@pytest.mark.parametrize(
    ("breaks", "rows", "arm", "found"),
    [
        ("plain announcement", in_a_ring(2, ("staged",)), True, OTHERS),
        ("plain announcement", in_a_ring(2, ("inline",)), True, OTHERS),
        ("plain load", in_a_ring(2, ("inline",)), True, OTHERS),
        ("plain load", from_one(3, ("staged",)), True, OTHERS),
        ("", early(from_one(2, ("inline",) * 3)), False, SLOT),
        ("", early(from_one(2, ("staged",) * 2)), False, OTHERS),
        ("reserve looks at one reader", from_one(3, ("staged",) * 3), False, f"staging {NOT_ACKED}"),
        ("no credit check", from_one(2, ("inline",) * 3), False, SLOT),
        ("numbers do not grow", from_one(2, ("inline",) * 3), False, OTHERS),
        ("no drain", from_one(2, ("own",) * 2), False, f"own {NOT_ACKED}"),
        ("", ahead(SLOTS + 1), False, "deadlock"),
        (
            "",
            [part[: len(part) - r] for r, part in enumerate(from_one(2, ("inline",)))],
            False,
            "counters disagree in the end",
        ),
    ],
)
def test_what_is_wrong_is_found(breaks: str, rows: list[list[Row]], arm: bool, found: str) -> None:
    with pytest.raises(Broken, match=f"^{found}$"):
        explore(Model(rows, arm=arm, breaks=breaks))


def test_numbers_are_as_in_the_model() -> None:
    """They start anew in the ring slot where they began, later than the ring is full, and leave the word positive."""
    for numbers, slots in ((NUMBERS, SLOTS), (shm_ops._NUMBERS + 1, RING_SLOTS)):
        assert numbers % slots == 0
        assert numbers > slots
    fields = (
        shm_ops._NUMBERS << shm_ops._NUMBER_AT,
        shm_ops._CHECKS << shm_ops._LENGTH_BITS,
        (1 << shm_ops._LENGTH_BITS) - 1,
    )
    assert sum(fields) == fields[0] | fields[1] | fields[2] < 1 << 63


@njit
def _accesses(address, destination):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    value = ffi.load_acquire(address)
    ffi.store_uncached(destination, address)
    ffi.fence()
    ffi.store_release(destination + 64, value)
    return value


def test_what_compiled_code_makes_of_accesses() -> None:
    """In LLVM's language, and in that of ARM processors where LLVM was built with it."""
    _accesses.compile((types.int64, types.int64))
    text = _accesses.inspect_llvm(_accesses.signatures[0])
    kinds = re.findall(
        r"load atomic i64.* acquire|store .*nontemporal|fence seq_cst|store atomic i64.* release", text
    )
    assert [kind.split()[0] + " " + kind.split()[1] for kind in kinds] == [
        "load atomic",
        "store <8",
        "fence seq_cst",
        "store atomic",
    ]
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        machine = llvm.Target.from_triple("aarch64-linux-gnu").create_target_machine()
    except RuntimeError:
        pytest.skip("this LLVM makes no code for ARM")
    module = llvm.parse_assembly(re.sub(r"^target .*$", "", text, flags=re.MULTILINE))
    module.triple = "aarch64-linux-gnu"
    first = machine.emit_assembly(module).split(".cfi_endproc")[0]
    assert re.findall(r"\t(ldar|stnp|dmb|stlr)\t", first) == "ldar stnp stnp dmb stlr".split()
