"""Jobs that tests start: how ranks are launched, with what environment, and what they said."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI
from mpi_run import OPEN_MPI, OPEN_MPI_ROOT, SEGMENTS
from slowness import slowed

LIMIT_S = slowed(90)  # most seconds of one job
MESSAGES = {"HPCOLL_SHM": "0"}  # variables of a job whose ranks exchange messages, as between nodes
# what a job hands to its ranks
_LAUNCHER = (
    "OMPI_",
    "PMIX_",
    "PMI_",
    "PRTE_",
    "HYDI_",
    "MPI_",
    "MPIR_",
    "HPCOLL_",
)

STARTS_JOBS = [  # marks of a file whose tests do: they run once, where this job has a single rank
    pytest.mark.mpi,
    pytest.mark.smoke,
    pytest.mark.skipif(
        MPI.COMM_WORLD.size > 1, reason="starts jobs of its own: enough in the run on one rank"
    ),
]

HEAD = """
import os, sys, threading, time
import numpy as np
from mpi4py import MPI
import hpcoll
world = MPI.COMM_WORLD
comm = hpcoll.Communicator(world)
node, nrings = comm._context.resources.node, sum(one.rings is not None for one in comm._context.resources.message_contexts)
def say(*words):
    with open(os.environ.get("SAID", 1), "a", closefd="SAID" in os.environ) as file:
        words = " ".join(map(str, ("rank", comm.rank, *words)))
        file.write(words.replace(":\\n  ", ": ").replace("\\n  ", "; ") + "\\n")  # errors may have tables
"""


def launch(nranks: int, arguments: Sequence[str], options: Sequence[str] = ()) -> list[str]:
    """The command that starts Python with some arguments on so many ranks; ``options`` are the launcher's."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    return [
        str(mpiexec) if mpiexec.exists() else "mpiexec",
        *options,
        "-n",
        str(nranks),
        sys.executable,
        *arguments,
    ]


def command(nranks: int, script: str, *, head: str = HEAD, options: Sequence[str] = ()) -> list[str]:
    """The command that starts a script, after its ``head``, on so many ranks."""
    return launch(nranks, ["-c", head + script], options)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """That of a job, with some variables of its own."""
    outside = {
        name: value
        for name, value in os.environ.items()
        if name == SEGMENTS or not name.startswith(_LAUNCHER)
    }
    return OPEN_MPI | (OPEN_MPI_ROOT if os.geteuid() == 0 else {}) | outside | dict(variables)


def finished(
    arguments: Sequence[str], variables: Mapping[str, str], limit_s: float = LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; pytest shows all that it said where the test fails.

    What ranks `say` goes through a file: a launcher that sees a rank leave by ``os._exit`` may end before it has read what others said.
    """
    with tempfile.NamedTemporaryFile("r") as said:
        try:
            kept: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
            ranks = environment({**variables, "SAID": said.name})
            done = subprocess.run(arguments, env=ranks, timeout=limit_s, check=False, **kept)
        except subprocess.TimeoutExpired as error:
            print(said.read(), error.stdout, error.stderr, sep="\n")
            raise
        done.stdout = said.read() + done.stdout
    print(done.stdout, done.stderr, f"exit status {done.returncode}", sep="\n")
    return done


def spoken(nranks: int, text: str) -> dict[int, list[str]]:
    """Of what a job has printed, what each rank said."""
    said: dict[int, list[str]] = {rank: [] for rank in range(nranks)}
    for rank, words in re.findall(r"^rank (\d+) (.*)$", text, re.MULTILINE):
        said[int(rank)].append(words)
    return said


def job(nranks: int, script: str, **variables: str) -> tuple[dict[int, str], str]:
    """Run a script to its end: what each rank said, and what all of them complained about."""
    done = finished(command(nranks, script), variables)
    assert done.returncode == 0
    return {
        rank: "".join(f"{words}\n" for words in said) for rank, said in spoken(nranks, done.stdout).items()
    }, done.stderr
