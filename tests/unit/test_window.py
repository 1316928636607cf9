"""Memory without a name: it goes when nobody holds it, and not before; numbers are held once; half-read ranges match nothing wrong."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slowness import slowed

from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES
from hpcoll.runtime.transports import window
from hpcoll.runtime.transports.window import (
    MAX_WINDOWS,
    PAGE,
    AddressRanges,
    Mapping,
    Symmetric,
    Window,
    WindowNumber,
)

FOLDER = "/dev/shm"
NRANKS = 3


class Shared:
    """A symmetric window of some ranks, all of them this process."""

    def __init__(self, nbytes: int = 5000) -> None:
        self.file = os.open(FOLDER, os.O_TMPFILE | os.O_RDWR)
        part = window.whole_pages(Symmetric.room(nbytes))
        os.ftruncate(self.file, PAGE + NRANKS * part)
        window.reserve(self.file, 0, PAGE + NRANKS * part)
        one = Window(WindowNumber(0), Mapping(self.file, PAGE + NRANKS * part), PAGE, part)
        self.part_nbytes, self.address, self.number = part, one.address, one.number
        self.ranks = [Symmetric(one, frozenset(range(NRANKS)), rank, nbytes) for rank in range(NRANKS)]

    @property
    def nbytes(self) -> int:
        return os.fstat(self.file).st_blocks * 512


def is_mapped(address: int) -> bool:
    return f"{address:x}-" in Path("/proc/self/maps").read_text()


def test_memory_is_mapped_as_long_as_somebody_holds_it() -> None:
    before = window.mapped_nbytes()
    file = os.open(FOLDER, os.O_TMPFILE | os.O_RDWR)
    os.ftruncate(file, 2 * PAGE)
    mapping = Mapping(file, 2 * PAGE)
    os.close(file)
    address, piece = mapping.address, mapping.array(PAGE, 80).view(np.float64)[3:]
    piece[:] = 7
    del mapping
    assert is_mapped(address)
    assert window.mapped_nbytes() == before + 2 * PAGE
    assert piece.tolist() == [7] * 7
    del piece
    assert not is_mapped(address)
    assert window.mapped_nbytes() == before


def test_what_the_system_refuses() -> None:
    file = os.open(FOLDER, os.O_TMPFILE | os.O_RDWR)
    os.ftruncate(file, PAGE)
    before = window.mapped_nbytes()
    with pytest.raises(OSError, match="Cannot allocate memory"):
        Mapping(file, 1 << 60)
    os.close(file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        Mapping(file, PAGE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        window.reserve(file, 0, PAGE)
    assert window.mapped_nbytes() == before


def test_numbers() -> None:
    first = WindowNumber(0)
    second = WindowNumber(first.value)
    assert second.value > first.value
    value = first.value
    del first
    assert WindowNumber(value).value == value
    assert WindowNumber(MAX_WINDOWS - 1).value == MAX_WINDOWS - 1
    assert WindowNumber(MAX_WINDOWS).value == MAX_WINDOWS
    last = WindowNumber(MAX_WINDOWS - 1)
    assert (last.value, WindowNumber(MAX_WINDOWS - 1).value) == (MAX_WINDOWS - 1, MAX_WINDOWS)


def test_threads_hold_different_numbers() -> None:
    held: list[WindowNumber] = []
    threads = [
        threading.Thread(target=lambda: held.extend(WindowNumber(100) for _ in range(200))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.value for one in held) == list(range(100, 900))


def test_memory_of_an_array_that_is_gone_is_given_back_at_once() -> None:
    shared = Shared(1 << 20)
    arrays = [one.array() for one in shared.ranks]
    for rank, array in enumerate(arrays):
        array[:] = rank + 1
    whole = shared.nbytes
    assert whole == PAGE + NRANKS * shared.part_nbytes
    del array
    view = arrays[1].view(np.float64)[5:6]
    arrays[1] = view[:0]
    assert shared.nbytes == whole  # a view keeps it
    del view
    arrays[1] = np.empty(0)
    assert shared.nbytes == whole - shared.part_nbytes
    assert (arrays[0] == 1).all()
    assert (arrays[2] == 3).all()
    os.close(shared.file)


def test_a_window_is_used_until_all_arrays_are_gone() -> None:
    shared = Shared()
    arrays = [one.array() for one in shared.ranks]
    for rank in (2, 0, 1):
        assert not any(one.unused() for one in shared.ranks)
        arrays[rank] = np.empty(0)
    assert all(one.unused() for one in shared.ranks)
    assert is_mapped(shared.address)
    shared.ranks.clear()
    gc.collect()
    assert not is_mapped(shared.address)
    os.close(shared.file)


def test_arrays_start_lines_in_different_places_of_a_page() -> None:
    kept = [Shared() for _ in range(4)]
    for shared in kept:
        for rank, one in enumerate(shared.ranks):
            assert one.offset % CACHE_LINE_NBYTES == 0
            assert (
                PAGE + rank * shared.part_nbytes
                <= one.offset
                <= PAGE + (rank + 1) * shared.part_nbytes - one.nbytes
            )
        assert len({one.offset % 4096 for one in shared.ranks}) == NRANKS
        os.close(shared.file)
    assert len({shared.ranks[0].offset for shared in kept}) == len(kept)


def test_a_fork_does_not_free_its_parents_memory() -> None:
    shared = Shared()
    arrays = [one.array() for one in shared.ranks]
    arrays[0][:] = 5
    before = shared.nbytes
    child = os.fork()
    if child == 0:
        arrays.clear()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert shared.nbytes == before
    assert (arrays[0] == 5).all()
    os.close(shared.file)


SCRIPT = """
import atexit, os, sys
from hpcoll.runtime.transports.window import Symmetric
from hpcoll.runtime.transports.window import PAGE, Mapping, Window, WindowNumber, whole_pages
file = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR)
part = whole_pages(Symmetric.room(100))
os.ftruncate(file, PAGE + part)
mapping = Mapping(file, PAGE + part)
array = Symmetric(Window(WindowNumber(0), mapping, PAGE, part), frozenset([1]), 0, 100).array()
array[:] = 7

class Last:
    def __del__(self, array=array, write=os.write):
        write(1, b"still %d" % array.sum())

atexit.register(lambda: os.write(1, b"%d and " % array.sum()))
last = Last()
if "freeze" in sys.argv:
    mapping.freeze()
    array[0] = 1
"""


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=slowed(60),
    )


def test_arrays_can_be_read_until_the_interpreters_end() -> None:
    done = script()
    assert (done.returncode, done.stdout, done.stderr) == (0, "700 and still 700", "")


def test_who_writes_to_frozen_memory_is_killed() -> None:
    assert script("freeze").returncode == -11


Span = tuple[int, int]  # first address, last + 1


@given(st.lists(st.none() | st.tuples(st.integers(1, 30), st.integers(1, 9)), max_size=30))
def test_half_changed_rows_match_nothing_wrong(changes: list[tuple[int, int] | None]) -> None:
    """None removes the oldest memory, first address and size add one. A reader sees a row's start before some changes, its end after."""
    ranges, alive = AddressRanges(), dict[int, Span]()
    seen: list[list[tuple[int, int, int]]] = []
    for number, change in enumerate(changes):
        if change is None and alive:
            oldest = min(alive)
            del alive[oldest]
            ranges.remove(oldest)
        elif change is not None and not any(
            change[0] < end and first < sum(change) for first, end in alive.values()
        ):
            alive[number] = change[0], sum(change)
            ranges.add(number, *alive[number], 1000 * number)
        used = ranges.table[: ranges.nrows[0]].tolist()
        assert sorted(row for row in used if row[1]) == sorted(
            [*span, 1000 * number] for number, span in alive.items()
        )
        for earlier in seen:
            for (start, _, _), (first, end, _) in zip(earlier, used):
                assert all(first <= address for address in range(start, end))
        seen.append(used)
