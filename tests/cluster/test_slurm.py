"""The jobs that people submit, on a real Slurm of two nodes (slurm.sh here): started as they are, small by their knobs."""

import json
import os
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts_run import processes
from slurm_run import JOB_LIMIT_S, NODES, ROOT, Job, Slurm, python, start

FAILS_WITHIN_S = 20

ALLREDUCE = """
import numpy as np
from mpi4py import MPI
import hpcoll
from hpcoll.schedules.catalogue import algorithms

comm = hpcoll.Communicator(MPI.COMM_WORLD)
for name in [None, "native", *algorithms("allreduce")]:
    for count in (1, 5000):
        x = np.arange(count, dtype=np.float64) + comm.rank
        comm.Allreduce(MPI.IN_PLACE, x, op=MPI.SUM, algorithm=name)
        assert (x == comm.size * np.arange(count) + sum(range(comm.size))).all(), (name, count)
print(f"rank {comm.rank} of {comm.size} on {MPI.Get_processor_name()}: all right\\n", end="", flush=True)
"""

ONE_FAILS = """
import os, signal, sys
from mpi4py import MPI

if MPI.COMM_WORLD.rank == 3:
    if sys.argv[1] == "killed":
        print("rank 3 is about to die", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("rank 3 is about to die")
MPI.COMM_WORLD.Barrier()
"""

# What ssh does, but through Slurm: options, a host, and words for a shell there, which gets nothing of the environment.
SSH = """#!/usr/bin/env bash
while [[ $1 == -* ]]; do shift; done
exec srun --export=PATH,HOME,TMPDIR,OMPI_ALLOW_RUN_AS_ROOT,OMPI_ALLOW_RUN_AS_ROOT_CONFIRM -N 1 -n 1 --overlap -w "$1" bash -c "${*:2}"
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Slurm for this file; it ends with the pipe to it, which also this process's death closes."""
    with start("echo ready; exec cat") as outer:
        head = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())
        yield Slurm(head, tmp_path_factory.mktemp("slurm"))
        assert outer.stdin
        outer.stdin.close()
        assert outer.wait(JOB_LIMIT_S) == 0
        assert not Path(f"/proc/{head}").exists()


def test_nothing_is_left_of_it_when_it_is_killed() -> None:
    token = uuid.uuid4().hex
    with start("echo ready; exec sleep 1000", TEST_TOKEN=token) as outer:
        names = [Path(words.split()[0]).name for words in processes(token) if words.strip()]
        assert {"munged": 3, "slurmctld": 1, "slurmd": 2}.items() <= Counter(names).items()
        outer.kill()
        outer.wait()
        end = time.monotonic() + JOB_LIMIT_S
        while processes(token) and time.monotonic() < end:
            time.sleep(0.1)
        assert processes(token) == []


def test_two_nodes_are_two_hosts(slurm: Slurm) -> None:
    """They share a name, a network, processes or memory neither with each other nor with the head node."""
    words = ["sh", "-c", "echo $(hostname) $(readlink /proc/self/ns/*) $(stat -c %d /dev/shm)"]
    texts = slurm.run(["srun", "-N", "2", *words]).stdout.splitlines() + slurm.run(words).stdout.splitlines()
    facts = [
        dict(zip(("name", *sorted(os.listdir("/proc/self/ns")), "memory"), text.split())) for text in texts
    ]
    assert sorted(fact["name"] for fact in facts) == ["head", "node1", "node2"]
    for kind in ("net", "uts", "ipc", "mnt", "pid", "memory"):
        assert len({fact[kind] for fact in facts}) == 3, kind


def test_bench_with_mpirun_of_open_mpi(slurm: Slurm) -> None:
    given = {"PYTHON": python("openmpi"), "COLLECTIVES": "allreduce bcast", "INTERFACE": "eth0"}
    job = slurm.submit("jobs/bench.sbatch", "--ntasks-per-node=2", **given)
    rows = job.check("bench", "openmpi")
    assert {(row["collective"], row["algorithm"], row["size"]) for row in rows} == {
        (collective, name, size)
        for collective in ("allreduce", "bcast")
        for name in ("native", "auto")
        for size in (8, 4096)
    }
    assert all(row["out_of_place"]["nwrong"] == 0 and row["out_of_place"]["time"] > 0 for row in rows)
    knobs = job.lines()[0]["knobs"]
    assert (knobs["LAUNCHER"], knobs["MAXBYTES"], knobs["OMPI_MCA_btl_tcp_if_include"]) == (
        "mpirun",
        "4K",
        "eth0",
    )


def test_tune_with_srun_of_mpich(slurm: Slurm) -> None:
    given = {
        "PYTHON": python("mpich"),
        "LAUNCHER": "pmi2",
        "COLLECTIVES": "allreduce",
        "TYPES": "float32",
        "TUNE_ARGS": "--busy",
    }
    job = slurm.submit("jobs/tune.sbatch", "--ntasks-per-node=2", **given)
    rows = job.check("tune", "mpich")
    assert {(row["collective"], row["type"]) for row in rows} == {("allreduce", "f4")}
    assert all(row["us"] > 0 and row["native_us"] > 0 for row in rows)
    table = json.loads(Path(job.lines()[0]["knobs"]["TABLE"]).read_text())
    assert table["sections"][0]["hosts"] == {"node1": 2, "node2": 2}


@pytest.mark.full  # the short run trains on the same hosts without Slurm, below
def test_train_with_srun_of_open_mpi(slurm: Slurm) -> None:
    rows = slurm.submit(
        "jobs/train.sbatch", "--ntasks-per-node=2", PYTHON=python("openmpi"), LAUNCHER="pmix"
    ).check("train", "openmpi")
    assert [row["epoch"] for row in rows] == [1, 2]
    assert rows[1]["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("library", "line"), [("openmpi", "{} slots=2"), pytest.param("mpich", "{}:2", marks=pytest.mark.full)]
)
def test_train_on_a_host_file_without_slurm(slurm: Slurm, tmp_path: Path, library: str, line: str) -> None:
    """The knobs reach hosts to which ssh carries none: ranks that disagree about the algorithm would end the job."""
    hosts, ssh = tmp_path / "hosts", tmp_path / "ssh"
    hosts.write_text("".join(f"{line.format(host)}\n" for host in NODES))
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    way = {"PRTE_MCA_plm_ssh_agent": str(ssh), "HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": str(ssh)}
    given = {
        "HOSTFILE": str(hosts),
        "NRANKS": "4",
        "HPCOLL_ALLREDUCE": "leaders",
        "RESULTS": str(tmp_path),
        **way,
    }
    said = slurm.run(["bash", "jobs/train.sbatch"], PYTHON=python(library), **given)
    job = Job(
        "COMPLETED" if said.returncode == 0 else "FAILED", said.stdout, 0, list(tmp_path.glob("*.jsonl"))
    )
    assert len(job.check("train", library)) == 2
    assert set(re.findall(r"^allreduce +(\w+) ", said.stdout, re.M)) == {"leaders"}


@pytest.mark.parametrize("library", [pytest.param("openmpi", marks=pytest.mark.full), "mpich"])
def test_programs_of_one_rank_are_noticed(slurm: Slurm, library: str) -> None:
    job = slurm.submit("jobs/bench.sbatch", "--ntasks-per-node=2", PYTHON=python(library), LAUNCHER="none")
    assert job.state == "FAILED"
    assert "bench: expected 4 ranks, MPI.COMM_WORLD has 1: srun started 4 ranks" in job.output
    assert f"srun --mpi={'pmix' if library == 'openmpi' else 'pmi2'}" in job.output
    assert job.files == []


@pytest.mark.parametrize("mpi", ["pmi2", "pmix"])
def test_srun_lines_of_the_readme(slurm: Slurm, mpi: str) -> None:
    (line,) = re.findall(
        rf"^((?:\w+=\w+ )?srun .*--mpi={mpi} .*)$", (ROOT / "jobs/README.md").read_text(), re.M
    )
    said = slurm.run(["bash", "-c", line], PYTHON=python("mpich" if mpi == "pmi2" else "openmpi"))
    assert said.returncode == 0, said.stdout
    assert re.search(r"# hpcoll .*: allreduce on 4 ranks: node1 \(2\), node2 \(2\)", said.stdout), said.stdout
    assert re.findall(r"Out of bounds values : (.*)", said.stdout) == ["0 OK", "0 OK"]


@pytest.mark.parametrize(
    ("mpi", "library"), [("pmi2", "mpich"), pytest.param("pmix", "openmpi", marks=pytest.mark.full)]
)
def test_every_allreduce_on_two_nodes(slurm: Slurm, tmp_path: Path, mpi: str, library: str) -> None:
    program = tmp_path / "allreduce.py"
    program.write_text(ALLREDUCE)
    said = slurm.run(
        [
            "srun",
            "-N",
            "2",
            "--ntasks-per-node=2",
            "-K1",
            f"--mpi={mpi}",
            python(library),
            "-m",
            "mpi4py",
            str(program),
        ]
    )
    expected = {f"rank {rank} of 4 on {host}: all right" for host, ranks in NODES.items() for rank in ranks}
    assert expected <= set(said.stdout.splitlines()), said.stdout
    assert said.returncode == 0, said.stdout


@pytest.mark.parametrize(
    ("launcher", "library", "how"),
    [
        ("mpirun", "openmpi", "raises"),
        pytest.param("mpirun", "mpich", "raises", marks=pytest.mark.full),
        pytest.param("pmix", "openmpi", "raises", marks=pytest.mark.full),
        ("pmi2", "mpich", "killed"),
    ],
)
def test_a_rank_that_fails_ends_the_job(
    slurm: Slurm, tmp_path: Path, launcher: str, library: str, how: str
) -> None:
    (tmp_path / "fails.py").write_text(ONE_FAILS)
    script = tmp_path / "fails.sbatch"
    script.write_text(
        f"#!/usr/bin/env bash\n. jobs/common.sh || exit\nlaunch {tmp_path}/fails.py {how}\necho survived\n"
    )
    job = slurm.submit(script, "-N2", "--ntasks-per-node=2", PYTHON=python(library), LAUNCHER=launcher)
    assert job.state == "FAILED", job.output
    assert "rank 3 is about to die" in job.output
    assert "survived" not in job.output
    assert job.seconds < FAILS_WITHIN_S
