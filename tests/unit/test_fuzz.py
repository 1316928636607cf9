"""No input hurts: what hpcoll reads that others may have written, mutated, is read or refused in one line, in little time and memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz_formats import FORMATS

CHILD = Path(__file__).with_name("fuzz_child.py")
SHORT, LONG = 100, 2000  # inputs of each format
PROGRAM = """
import sys, time
sys.path.insert(0, sys.argv[1])
import fuzz_child
from fuzz_formats import FORMATS, Format
fuzz_child.LIMIT_S = 1
FORMATS["odd"] = Format(lambda: [[b"{}"]], lambda files, turn: 0 if files[0].read_bytes() == b"{}" else (%s))
sys.exit(fuzz_child.main("odd", 0, 20))
"""


def ended(*arguments: str) -> tuple[int, str]:
    """Status of a Python process, and what it said."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HPCOLL_")}
    result = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    return result.returncode, f"{result.stdout}\n...{result.stderr[-4000:]}"


@pytest.mark.parametrize("name", FORMATS)
def test_no_input_hurts(name: str) -> None:
    status, said = ended(str(CHILD), name, "0", str(SHORT))
    assert status == 0, said


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FORMATS)
def test_no_input_of_very_many_hurts(name: str) -> None:
    status, said = ended(str(CHILD), name, str(SHORT), str(LONG))
    assert status == 0, said


@pytest.mark.parametrize(
    ("reads", "told"),
    [
        ("[][0]", "IndexError"),
        ("7", "exit code 7"),
        ("2", "an error is one line, got ''"),
        ("print('\\x1b[2J') or 0", "'\\x1b' would reach the terminal"),
        ("len(bytes(2 << 30))", "MemoryError"),
        ("time.sleep(60)", "Timeout (0:00:01)!"),
    ],
)
def test_what_hurts_is_told_with_its_seed(reads: str, told: str) -> None:
    """Else the others could not fail: an exception, a code, texts, memory and time."""
    status, said = ended("-c", PROGRAM % reads, str(CHILD.parent))
    assert status == 1
    assert told in said
    assert "odd, seed 0" in said
