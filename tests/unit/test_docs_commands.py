"""Every command in README and docs ends well, prints what a page says it prints, and draws the pictures that pages show.

They run in a folder with the files that pages give a name, with the README's first example as ``my_program.py``, and with ``jobs`` and
``examples`` of the checkout.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mpi_run import OPEN_MPI, OPEN_MPI_ROOT
from pages import BLOCKS, ROOT, Block
from slowness import slowed

from hpcoll.cli import _parser

LIMIT_S = slowed(300)  # of a block's commands; most take a tenth of that
pytestmark = pytest.mark.timeout(300 + 30)
ENVIRONMENT = (OPEN_MPI | OPEN_MPI_ROOT | os.environ) | {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "COLUMNS": "80",
}
SHELL = [block for block in BLOCKS if block.language == "sh" and not block.reason]
# what stands in several blocks is run in the first
FIRST = {command: block for block in reversed(SHELL) for command in block.commands}
CONSOLE = [block for block in BLOCKS if block.language == "console" and not block.reason]
DRAWN = [
    shlex.split(command)[1:]
    for command in FIRST
    if command.startswith("hpcoll show ") and " --svg " in command
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("jobs", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    programs = {block.title: block.text for block in BLOCKS if block.title}
    programs["my_program.py"] = next(block.text for block in BLOCKS if block.language == "python")
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def output_of(command: str, folder: Path, limit_s: float = LIMIT_S) -> str:
    """Return what a command prints; fails when it does not end with status 0 in time. What it measures takes longer, or is disturbed."""
    command = re.sub(r"(?<=--seconds )\d+", lambda seconds: f"{slowed(int(seconds[0])):.0f}", command)
    command = command.replace("hpcoll tune ", "hpcoll tune --busy ")
    limited = ["timeout", "-k", "5", str(limit_s), "bash", "-c", command]
    done = subprocess.run(
        limited,
        cwd=folder,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (
        f"{command!r} ended with status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    )
    return done.stdout


def transcript(block: Block, folder: Path) -> str:
    """A console block as the commands in it would print it today."""
    commands = [line for line in block.text.splitlines() if line.startswith("$ ")]
    return "".join(f"{command}\n{output_of(command[2:], folder)}" for command in commands)


def agree(printed: str, shown: str) -> bool:
    """Say whether a page shows what was printed; three dots stand for anything, and for the blanks around it."""
    return (
        re.fullmatch(".*".join(re.escape(part.strip(" ")) for part in shown.split("...")), printed, re.S)
        is not None
    )


# The short run has the first block with each program that no transcript and no test of jobs/ runs; of the others it reads the options.
PROGRAM = re.compile(r"hpcoll \w+|(?<!\S)(?!jobs/)\S+\.py")
SHOWN = {word for block in CONSOLE for word in PROGRAM.findall(block.text)}
PROGRAMS = {
    word: block
    for block in reversed(SHELL)
    for command in block.commands
    for word in PROGRAM.findall(command)
}
PIPELINE = "mpirun -n 4 python -m mpi4py examples/pipeline_parallel.py --plot pipeline.svg"
SHORT = [block for word, block in PROGRAMS.items() if word not in SHOWN and block.commands != [PIPELINE]]


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=str(block), marks=() if block in SHORT else pytest.mark.full)
        for block in SHELL
        if block in FIRST.values()
    ],
)
def test_commands(block: Block, folder: Path) -> None:
    end = time.monotonic() + LIMIT_S
    for command in (command for command in block.commands if FIRST[command] is block):
        output_of(command, folder, max(1.0, end - time.monotonic()))


def test_options() -> None:
    """Every subcommand knows the options that it is given."""
    found = [command.split("hpcoll ", 1)[1] for command in FIRST if "hpcoll " in command]
    assert len(found) > 15
    for words in map(shlex.split, found):
        assert _parser(words[:1]).parse_args(words).run, words


def test_options_of_programs() -> None:
    """Programs of the checkout know the options that they are given."""
    found = [words for command in FIRST for words in re.findall(r"((?:jobs|examples)/\w+\.py)(.*)", command)]
    assert len(found) > 5
    for program, words in found:
        known = "".join(path.read_text() for path in (ROOT / program, ROOT / "examples" / "common.py"))
        assert all(f'"{option}"' in known for option in re.findall(r" (--\w[\w-]*)", words)), (program, words)


@pytest.mark.parametrize("block", CONSOLE, ids=str)
def test_transcript(block: Block, folder: Path) -> None:
    printed = transcript(block, folder)
    assert agree(printed, block.text), f"it should be:\n{printed}"


@pytest.mark.parametrize("words", DRAWN, ids=lambda words: words[-1])
def test_drawings(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What hpcoll draws now is the picture on the page."""
    monkeypatch.chdir(folder)
    arguments = _parser(words[:1]).parse_args(words)
    assert arguments.run(arguments) == 0
    assert Path(words[-1]).read_text() == (ROOT / "docs" / "pictures" / words[-1]).read_text()
