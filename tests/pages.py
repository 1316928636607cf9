"""README and docs as tests read them: pages, and the blocks of code in them.

A block is run by a test: Python under mpirun (`tests/mpi/test_readme.py`), shell commands alone (`tests/unit/test_docs_commands.py`), what
needs PyTorch in its environment (`tests/torch_backend/test_torch_docs.py`). Python with a title, as in ``title="fit.py"``, is a file that
commands use. A block that cannot run here follows a line ``<!-- not run: REASON -->`` with a reason of `REASONS`.
"""

import re
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
# console: commands after "$ ", each followed by what it prints; text: not code; xml, json: files that commands use
LANGUAGES = ("python", "sh", "console", "text", "xml", "json")
REASONS = {  # why a block is not run: what each of its commands, or a Python block, must hold for that
    "needs a GPU": r"cupy|gpu|device",
    "needs PyTorch": r"torch",
    "needs an h5py of MPI": r"mpio",
    "kills a rank": r"--kill",
    "needs LogGOPSim": r"^(txt2bin|LogGOPSim) ",
    "needs Slurm": r"^(sbatch|srun|salloc) ",
    "needs a file": r"^hpcoll verify next.xml ",
    "needs root": r"^tests/cluster/hosts.sh |^hpcoll warmup --to /opt/|^export HPCOLL_CACHE=/opt/",
    "installs into a new environment": r"^(jobs/local.sh|tests/run.sh|\.ci/run|(\S*/)?pip install|python3 -m venv)\b",
    "takes minutes": r"^hpcoll simulate .*-n 24756|^mpirun .*hpcoll tune\b|HPCOLL_TUNING=hpcoll-tuning.json |^tests/run.sh\b"
    r"|\bpython benchmarks/same_bits/",
}

_MARK = re.compile(r"<!-- not run: (.*) -->")
_FENCE = re.compile(r'\s*```(\w*)(?: title="(\S+)")?')


class Block(NamedTuple):
    """A fenced block."""

    page: str
    line: int  # of its fence
    language: str  # the word after the fence
    text: str  # between the fences
    reason: str = ""  # why it is not run; empty where it is
    title: str = ""  # the name of the file that it is

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Commands of a shell block, without comments."""
        lines = (re.sub(r"(^|\s+)# .*|\s+#$", "", line).strip() for line in self.text.splitlines())
        return [line for line in lines if line]


def blocks_of(page: str, text: str) -> list[Block]:
    """The fenced blocks of a page."""
    found: list[Block] = []
    opened: Block | None = None
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if not fence:
            continue
        if opened is None:
            mark = _MARK.fullmatch(lines[number - 2].strip()) if number > 1 else None
            opened = Block(page, number, fence[1], "", mark[1] if mark else "", fence[2] or "")
        else:
            found.append(opened._replace(text=dedent("\n".join(lines[opened.line : number - 1]) + "\n")))
            opened = None
    return found


BLOCKS = [block for page, text in PAGES.items() for block in blocks_of(page, text)]


def misfits(block: Block) -> list[str]:
    """Lines of a block that is not run for which its reason does not hold."""
    pattern = re.compile(REASONS[block.reason])
    parts = [block.text] if block.language == "python" else block.commands
    return [part for part in parts if not pattern.search(part)]


def prose(text: str) -> list[str]:
    """Lines of a page that are neither code nor tables."""
    without_code = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)
    return [line for line in without_code.splitlines() if not line.startswith("|")]


def between(page: str, mark: str) -> str:
    """Return what a page has between two comments."""
    found = re.search(rf"<!-- {mark}: begin -->\n(.*?)\n?<!-- {mark}: end -->", PAGES[page], re.S)
    assert found is not None
    return found[1]
