"""Unmodified programs with algorithms of files: named in the environment, measured by `bench`, and told where ranks have other files.

Each test starts a job of its own, so they run once: where this one has a single rank.
"""

from pathlib import Path

import pytest
from launching import STARTS_JOBS, command, finished, launch, spoken

pytestmark = [*STARTS_JOBS, pytest.mark.once]

NRANKS = 2
RING = """
import hpcoll
from hpcoll import inputs, outputs

@hpcoll.algorithm("allreduce", chunks="p", pipelined=True)
def my_ring(w):
    p, r = w.nranks, w.rank
    for t in range(p - 1):
        sent, combined = (r - t - 1) % p, (r - t - 2) % p
        w.send((r + 1) % p, outputs(sent) if t else inputs(sent))
        w.recv_reduce((r - 1) % p, inputs(combined), outputs(combined))
    for t in range(p - 1):
        w.send((r + 1) % p, outputs((r - t) % p))
        w.recv((r - 1) % p, outputs((r - t - 1) % p))
"""
XML = """<algo name="swap" nchannels="1" nchunksperloop="2" ngpus="2" coll="allreduce" inplace="0" outofplace="1" minBytes="0" maxBytes="0">
{}</algo>"""
GPU = """<gpu id="{0}" i_chunks="2" o_chunks="2" s_chunks="0"><tb id="0" send="{1}" recv="{1}" chan="0">
<step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="2" depid="-1" deps="-1" hasdep="0"/>
<step s="1" type="rrc" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="2" depid="-1" deps="-1" hasdep="0"/>
</tb></gpu>
"""
# Ranks swap inputs and reduce into outputs: in place each would overwrite what it is still sending.
EXCHANGE = XML.replace("swap", "exchange").replace('inplace="0"', 'inplace="1"')
EXCHANGE_IN_PYTHON = """
import hpcoll
from hpcoll import inputs, outputs

@hpcoll.algorithm("allreduce", chunks="1")
def exchange_in_python(w):
    d = 1
    while d < w.nranks:
        mine = inputs(0) if d == 1 else outputs(0)
        w.send(w.rank ^ d, mine)
        w.recv_reduce(w.rank ^ d, mine, outputs(0))
        d *= 2
"""
PROGRAM = """
import sys
import numpy as np
from mpi4py import MPI
import hpcoll
comm = hpcoll.Communicator(MPI.COMM_WORLD)
x, y = np.arange(1000.0) + comm.rank, np.zeros(1000)
comm.Allreduce(x, y)
assert np.array_equal(y, comm.size * np.arange(1000.0) + comm.size * (comm.size - 1) / 2)
comm.Allreduce(MPI.IN_PLACE, x)
assert np.array_equal(x, y)
sys.stdout.write(f"rank {comm.rank} {' '.join({row.algorithm for row in comm.ledger.rows()})}\\n")  # in one piece
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with an algorithm as a builder, and one as MSCCL XML."""
    (tmp_path / "mine.py").write_text(RING)
    for name, text in (("swap", XML), ("exchange", EXCHANGE)):
        (tmp_path / f"{name}.xml").write_text(text.format(GPU.format(0, 1) + GPU.format(1, 0)))
    return tmp_path


@pytest.mark.parametrize("name", ["my_ring", "swap", "exchange"])
def test_an_unmodified_program_runs_an_algorithm_of_a_file(files: Path, name: str) -> None:
    named = ":".join(str(files / one) for one in ("mine.py", "swap.xml", "exchange.xml"))
    variables = {"HPCOLL_ALGORITHMS": named, "HPCOLL_ALLREDUCE": name}
    done = finished(command(NRANKS, PROGRAM, head=""), variables)
    assert spoken(NRANKS, done.stdout) == {rank: [name] for rank in range(NRANKS)}


def test_an_algorithm_that_overwrites_what_it_sends_is_refused_with_the_cause(files: Path) -> None:
    """All ranks name the fewest ranks on which it fails, one step, and what to write."""
    (files / "exchange.py").write_text(EXCHANGE_IN_PYTHON)
    variables = {"HPCOLL_ALGORITHMS": str(files / "exchange.py"), "HPCOLL_ALLREDUCE": "exchange_in_python"}
    done = finished(command(4, PROGRAM, head=""), variables)
    assert done.returncode != 0
    cause = "in place, what is received overwrites what is still being sent to rank 1: receive into scratch"
    step = f"rank 0, step 1 (recv_reduce(peer 1, input[0] -> output[0])): deadlock: {cause}"
    fewest = "is refused on 4 ranks before any message leaves; 2 ranks are the fewest on which it is wrong"
    assert f"allreduce/exchange_in_python {fewest}: {step}" in done.stderr


def test_ranks_whose_files_differ_are_told(files: Path) -> None:
    """One line says which rank has another content, before the first message of the program."""
    (files / "1").mkdir()
    (files / "1" / "mine.py").write_text(RING + "# another\n")
    head = f"import os\nrank = os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['PMI_RANK']\nfolder = {str(files)!r}\n"
    head += "os.environ['HPCOLL_ALGORITHMS'] = folder + ('/1' if rank == '1' else '') + '/mine.py'\n"
    done = finished(command(NRANKS, PROGRAM, head=head), {})
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if "must be equal on all ranks" in line]
    assert len(said) == 1
    assert said[0].startswith(
        "hpcoll: error: rank 1: algorithm allreduce/my_ring must be equal on all ranks, expected 'mine.py with"
    )
    assert "Traceback" not in done.stderr


def test_a_wrong_file_is_refused_at_its_first_use(files: Path) -> None:
    """The program of the file leaves out a step: all ranks say where."""
    text = (files / "swap.xml").read_text().replace('type="rrc"', 'type="r"', 1)
    (files / "swap.xml").write_text(text)
    script = (
        PROGRAM.split("comm.Allreduce")[0]
        + """
try:
    comm.Allreduce(x, y)
except hpcoll.ScheduleError as error:
    print("rank", comm.rank, error, flush=True)
comm.Bcast(x)
"""
    )
    done = finished(
        command(NRANKS, script, head=""),
        {"HPCOLL_ALGORITHMS": str(files / "swap.xml"), "HPCOLL_ALLREDUCE": "swap"},
    )
    said = spoken(NRANKS, done.stdout)
    assert all(
        len(lines) == 1 and "is refused on 2 ranks before any message leaves" in lines[0]
        for lines in said.values()
    )
    assert all("swap.xml" in lines[0] for lines in said.values())


@pytest.mark.parametrize(
    ("name", "algorithm"), [pytest.param("mine.py", "my_ring", marks=pytest.mark.full), ("swap.xml", "swap")]
)
def test_bench_measures_what_a_file_has(files: Path, name: str, algorithm: str) -> None:
    done = finished(
        launch(NRANKS, ["-m", "hpcoll", "bench", str(files / name), "-b", "1K", "-e", "1K", "-n", "5"]), {}
    )
    assert done.returncode == 0
    assert f"allreduce/{algorithm}" in done.stdout
