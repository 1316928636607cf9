"""The result files of the jobs here: JSON lines, each with a ``kind``.

``results.py begin FILE JOB NRANKS KNOB=VALUE...`` runs on all ranks. It ends the job unless NRANKS ranks found each other, which a
launcher that does not fit the MPI library prevents: it starts NRANKS programs of one rank. Else rank 0 writes the line ``run``: versions,
hosts with their ranks, how many cores each rank may use, Slurm's variables, knobs.

``results.py add FILE JOB DOCUMENT`` appends what a command of the job has written: a line ``row`` per measurement, before them a line
``about`` with what holds for all of them. The job itself writes the last line, ``end``, with its status and how long it took.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

Line = dict[str, Any]
SLURM = (
    "JOB_ID",
    "JOB_NAME",
    "JOB_PARTITION",
    "JOB_NODELIST",
    "CLUSTER_NAME",
    "CPUS_PER_TASK",
    "GPUS_PER_NODE",
    "GPU_BIND",
)
EPOCH = re.compile(r"epoch +(\d+) +loss +(\S+) +test accuracy +(\S+)% +(\S+) s")


def begin(file: Path, job: str, nranks: int, knobs: list[str]) -> int:
    """Check the world, say who is in it, and write the first line; returns the exit status."""
    import mpi4py
    from mpi4py import MPI

    from hpcoll.cli.doctor.command import loaded_library
    from hpcoll.cli.doctor.launchers import check_launch, find_launcher

    world, launcher = MPI.COMM_WORLD, find_launcher(os.environ)
    if world.size != nranks:
        found = check_launch(launcher, world.size, loaded_library(MPI), os.environ)
        if (launcher.rank if launcher else world.rank) == 0:
            print(
                f"{job}: expected {nranks} ranks, MPI.COMM_WORLD has {world.size}: {found.found}; {found.remedy}",
                file=sys.stderr,
            )
            return 1
        return 0  # the first one speaks for all
    host, cores = MPI.Get_processor_name(), len(os.sched_getaffinity(0))
    # one write: lines of ranks stay whole
    print(f"rank {world.rank} of {world.size} on {host}\n", end="", flush=True)
    places = world.gather((host, cores))
    if places is not None:
        versions = {
            "mpi4py": mpi4py.__version__,
            "mpi": " ".join(MPI.Get_library_version().splitlines()[0].strip("\0").split()),
        }
        hosts: dict[str, list[int]] = {}
        for rank, (name, _) in enumerate(places):
            hosts.setdefault(name, []).append(rank)
        where = {"nranks": nranks, "hosts": hosts, "cores": [count for _, count in places]}
        append(file, [first_line(job, versions, where, dict(knob.split("=", 1) for knob in knobs))])
    return 0


def first_line(job: str, versions: Line, where: Line, knobs: Line) -> Line:
    """Return the line about the whole run."""
    import numpy

    import hpcoll

    versions = {
        "hpcoll": hpcoll.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        **versions,
        "slurm": slurm(),
    }
    return {
        "kind": "run",
        "job": job,
        "start": datetime.now(timezone.utc).isoformat(),
        "versions": versions,
        **where,
        "knobs": knobs,
        "slurm": {name: os.environ[f"SLURM_{name}"] for name in SLURM if f"SLURM_{name}" in os.environ},
    }


def slurm() -> str | None:
    """Return Slurm's version, or None where there is none."""
    if shutil.which("sinfo") is None:
        return None
    return subprocess.run(
        ["sinfo", "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    ).stdout.strip()


def bench(text: str) -> list[Line]:
    """Return lines from ``hpcoll bench --format json``."""
    document = json.loads(text)
    rows = [
        {"kind": "row", "collective": document["collective"], "nranks": document["nranks"], **row}
        for row in document.pop("results")
    ]
    return [{"kind": "about", **document}, *rows]


def tune(text: str) -> list[Line]:
    """Return lines from the table of ``hpcoll tune``."""
    lines: list[Line] = []
    for section in json.loads(text)["sections"]:
        collectives = section.pop("collectives")
        lines.append({"kind": "about", **section})
        lines += [
            {"kind": "row", "collective": name, "type": section["type"], "nranks": section["nranks"], **entry}
            for name, entries in collectives.items()
            for entry in entries
        ]
    return lines


def train(text: str) -> list[Line]:
    """Return lines from what jobs/train_digits.py prints."""
    epochs = [match.groups() for match in EPOCH.finditer(text)]
    rows = [
        {"kind": "row", "epoch": int(n), "loss": float(x), "accuracy": float(p) / 100, "seconds": float(s)}
        for n, x, p, s in epochs
    ]
    return [{"kind": "about", "output": text.splitlines()}, *rows]


READERS: dict[str, Callable[[str], list[Line]]] = {
    "bench": bench,
    "tune": tune,
    "train": train,
}


def append(file: Path, lines: list[Line]) -> None:
    """Append lines to a file."""
    with file.open("a", encoding="utf-8") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)


def table(lines: list[Line]) -> list[str]:
    """Return rows of a benchmark, for people: microseconds, out of place where there is such a form."""
    texts = []
    for line in lines:
        side = line.get("out_of_place") or line.get("in_place")
        if side:
            ratio = "" if side["ratio"] is None else f"  native / this {side['ratio']:6.2f}"
            mark = "  * other programs used the cores" if line.get("disturbed") else ""
            texts.append(
                f"{line['collective']:>15} {line['size']:>12,} B {line['algorithm']:>16} {side['time']:>12.2f} us{ratio}{mark}"
            )
    return texts


def add(file: Path, job: str, document: Path) -> int:
    """Append what was measured, and print the rows of a benchmark."""
    lines = READERS[job](document.read_text(encoding="utf-8"))
    if not any(line["kind"] == "row" for line in lines):
        sys.exit(f"{job}: nothing was measured: no rows in {document}")
    append(file, lines)
    print(*table(lines), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    command, target, name, *more = sys.argv[1:]
    sys.exit(
        begin(Path(target), name, int(more[0]), more[1:])
        if command == "begin"
        else add(Path(target), name, Path(more[0]))
    )
