"""Probes of whether processes can read each other's memory, with real ones."""

import os
import subprocess
import sys

import pytest

from hpcoll.analysis.cost import NEVER
from hpcoll.runtime.transports.cross_memory import (
    CMA,
    LEAST_NBYTES,
    SLOW_NBYTES,
    ProbeWord,
    own_memory,
    refusal,
    word,
)

OTHER = """
import sys
from hpcoll.runtime.transports.cross_memory import word
print(*word(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def other() -> ProbeWord:
    """The word of another process, which lives as long as this fixture."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield ProbeWord(*map(int, process.stdout.readline().split()))
        process.kill()


def test_another_process(other: ProbeWord) -> None:
    if refusal(other):
        pytest.skip(f"this system lets no process read another one's memory: {refusal(other)}")
    assert refusal(word()) == ""
    assert "is another one here" in refusal(other._replace(value=other.value + 1))
    assert refusal(other._replace(address=8)) == "process_vm_readv: Bad address"


def test_a_process_that_has_ended() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", OTHER], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    assert refusal(ProbeWord(*map(int, ended.stdout.split()))) == "process_vm_readv: No such process"


def test_each_process_has_a_word_of_its_own() -> None:
    mine = word()
    assert mine == word()
    assert mine.pid == os.getpid()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, str(word().pid == os.getpid()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"True"


@pytest.mark.parametrize(
    ("copy", "measured", "usually", "slow"),
    [
        (None, None, NEVER, SLOW_NBYTES),
        (None, NEVER, NEVER, NEVER),
        (None, 1 << 20, 1 << 20, 1 << 20),
        (None, 1, LEAST_NBYTES, LEAST_NBYTES),
        (CMA, None, LEAST_NBYTES, LEAST_NBYTES),
        (CMA, NEVER, LEAST_NBYTES, LEAST_NBYTES),
    ],
)
def test_from_which_length_on(copy: str | None, measured: int | None, usually: int, slow: int) -> None:
    """What was asked for counts, then what was measured, then what is seen while the program runs."""
    found = own_memory([ProbeWord(7, 0, 0), ProbeWord(9, 0, 0)], copy, measured)
    assert (found.usually, found.slow, found.pids.tolist()) == (usually, slow, [7, 9])


def test_in_words() -> None:
    texts = [
        str(own_memory([], copy, measured)) for copy, measured in ((CMA, None), (None, NEVER), (None, None))
    ]
    assert texts == [
        "read where they lie from 4 KiB on",
        "staged",
        "staged; from 64 KiB on read where they lie if that is faster",
    ]
