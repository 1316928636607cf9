"""Metrics of a job as Prometheus text: the numbers of the ledgers, each rank in a file of its own, whatever happens to the folder."""

import re
from pathlib import Path

import pytest
from launching import HEAD, STARTS_JOBS, command, finished, job, spoken

pytestmark = STARTS_JOBS

SAMPLE = re.compile(
    r'(hpcoll_[a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (\d+(?:\.\d+)?(?:e-?\d+)?)'
)
CALLS = """
from pathlib import Path
from hpcoll.comm.requests.call_hooks import HOOKS
from hpcoll.comm.telemetry import metrics
ncalls, x, y = 5000, np.ones(8), np.zeros(8)
for i in range(ncalls):
    if comm.rank == 1 and i % 500 == 0:
        time.sleep(2e-3)
    comm.Allreduce(x, y)
for _ in range(3):
    made = hpcoll.Communicator(world.Dup())
    made.Bcast(x)
    made.Free()
file = next(Path(os.environ["HPCOLL_METRICS"]).glob(f"*_rank{comm.rank}.prom")).resolve()
while not (text := file.read_text()) or '"direct"} 5000' not in text or '"binomial"} 3' not in text:
    time.sleep(0.01)  # until the thread has written
os.chdir("/")  # the last numbers do not follow
metrics.EVERY_S = 60
time.sleep(0.2)
before = file.stat().st_mtime_ns, file.stat().st_ino
child = os.fork()
if not child:
    HOOKS.program_ends(False)
    os._exit(0)
os.waitpid(child, 0)
say("same", before == (file.stat().st_mtime_ns, file.stat().st_ino))
comm.Barrier()
say("ledger", *[f"{row.operation} {row.calls} {row.nbytes}" for row in comm.ledger.rows() if row.operation == "allreduce"])
"""
OFTEN = "import hpcoll.comm.telemetry.metrics\nhpcoll.comm.telemetry.metrics.EVERY_S = 0.05\n"


def samples(text: str) -> dict[tuple[str, str], float]:
    """The samples of a file, by name and labels but those of the process; every line of it must be one, or tell of those that follow."""
    found, told = dict[tuple[str, str], float](), ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            told = line.split()[2]
        elif line.startswith("# TYPE "):
            assert line.split()[2:] == [told, "counter" if told.endswith("_total") else "gauge"]
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample is not None, line
            assert sample[1] == told
            own = [label for label in sample[2].split(",") if not label.startswith(("jobid=", "rank="))]
            assert (sample[1], ",".join(own)) not in found
            found[sample[1], ",".join(own)] = float(sample[3])
    return found


def test_each_rank_writes_its_sums_while_it_runs_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With those of communicators that are gone, who waited for whom, and nothing written by a fork; other files stay."""
    (tmp_path / "another.prom").write_text("theirs 1\n")
    monkeypatch.chdir(tmp_path)
    done = finished(command(2, CALLS, head=OFTEN + HEAD), {"HPCOLL_METRICS": ".", "SLURM_JOB_ID": '1"7'})
    said = spoken(2, done.stdout)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "another.prom",
        "hpcoll_1_7_rank0.prom",
        "hpcoll_1_7_rank1.prom",
    ]
    for rank in range(2):
        found = samples((tmp_path / f"hpcoll_1_7_rank{rank}.prom").read_text())
        assert said[rank] == ["same True", "ledger allreduce 5000 320000"]
        assert found["hpcoll_bytes_total", 'operation="allreduce",algorithm="direct"'] == 320000
        assert found["hpcoll_calls_total", 'operation="bcast",algorithm="binomial"'] == 3
        assert found["hpcoll_timed_calls_total", 'operation="bcast",algorithm="binomial"'] == 3
        assert found["hpcoll_failures_total", 'error="PeerFailed"'] == 0
        assert any('operation="barrier"' in labels for _, labels in found), (
            "the last calls, after the program went to another folder"
        )
        assert found["hpcoll_compared_calls_total", ""] > 4000
    waited = samples((tmp_path / "hpcoll_1_7_rank0.prom").read_text())
    assert waited["hpcoll_waited_for_seconds_total", 'late_rank="1"'] > 0.01
    assert (
        waited["hpcoll_waited_seconds_total", ""]
        == waited["hpcoll_waited_for_seconds_total", 'late_rank="1"']
    )


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    """The program goes on."""
    (tmp_path / "file").touch()
    said, errors = job(
        2, OFTEN + "time.sleep(0.3)\nsay(comm.allreduce(1))", HPCOLL_METRICS=str(tmp_path / "file")
    )
    assert said == {0: "2\n", 1: "2\n"}
    assert errors.count("no metrics are written") == 2
