"""Runs jobs/gpu_check.sh on a machine whose CUDA driver is the double, and reads what it has left."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

from slowness import slowed

ROOT = Path(__file__).parents[2]
MACHINE = ROOT / "tests" / "cuda_double" / "machine"
CHECK = ROOT / "jobs" / "gpu_check"
NOTHING_TO_DO = dict.fromkeys(
    ("PACKAGES", "PROBES", "SMALL", "NRANKS", "FILES", "WAYS", "BENCH_NRANKS", "COLLECTIVES"), ""
)
# variables of whoever runs this test
_MINE = (
    "TEST_",
    "MPI_LIMIT",
    "PYTEST",
    "OMPI_",
    "PMIX",
    "PRTE",
    "HPCOLL_",
    "COV_",
)


class Left(NamedTuple):
    """The results of a run.

    Attributes:
        table: Markdown.
        document: JSON.
        steps: By number, from the JSON document.
        logs: Text by name in the archive.
        processes: Command lines of processes that still run.
    """

    status: int
    output: str
    table: str
    document: str
    steps: dict[int, dict[str, Any]]
    logs: dict[str, str]
    processes: list[str]

    def part(self, step: int, name: str) -> dict[str, Any]:
        """A part of a step."""
        return next(one for one in self.steps[step]["parts"] if one["name"] == name)

    def found(self, probe: str) -> dict[str, Any]:
        """Return what a probe found."""
        return {one["what"]: one["value"] for one in self.part(3, probe)["findings"]}


def variables(folder: Path, **knobs: object) -> dict[str, str]:
    """The environment of a run that leaves everything in a folder."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith(_MINE)}
    places = {name.upper(): folder / name for name in ("out", "venv", "work", "wheels")}
    given: dict[str, object] = {"PYTHONPATH": MACHINE, "PYTHON": sys.executable, **places, **knobs}
    return outer | {
        name: json.dumps(value) if isinstance(value, dict) else str(value) for name, value in given.items()
    }


def check(folder: Path, *steps: int, limit_s: float = 110, reads: bool = True, **knobs: object) -> Left:
    """Run steps, or all; read the results where there are some."""
    (folder / "wheels").mkdir(exist_ok=True)
    command = [str(ROOT / "jobs" / "gpu_check.sh"), *map(str, steps)]
    run = subprocess.run(
        command,
        env=variables(folder, **knobs),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=slowed(limit_s),
        check=False,
    )
    return (
        left(folder, run.returncode, run.stdout)
        if reads
        else Left(run.returncode, run.stdout, "", "", {}, {}, running(str(folder)))
    )


def left(folder: Path, status: int, output: str) -> Left:
    """Return what there is in a folder."""
    (table,) = (folder / "out").glob("*.md")
    document = table.with_suffix(".json").read_text()
    with tarfile.open(table.with_suffix(".tar.gz")) as tar:
        logs = {
            one.name: file.read().decode(errors="replace")
            for one in tar.getmembers()
            for file in [tar.extractfile(one)]
            if file
        }
    steps = {one["number"]: one for one in json.loads(document)["steps"]}
    return Left(status, output, table.read_text(), document, steps, logs, running(str(folder)))


def running(text: str) -> list[str]:
    """Command lines of processes that have a text in theirs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line and int(path.parent.name) != os.getpid():
            found.append(line)
    return found
