"""The trace of a run: what is in its file, and that it can be read whatever ends the run."""

import json
import os
import re
import stat
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from launching import HEAD, STARTS_JOBS, command, finished, job, spoken

from hpcoll.analysis.waits import judge
from hpcoll.cli import main
from hpcoll.cli.trace.owners import find
from hpcoll.cli.trace.reading import CALL, read
from hpcoll.cli.trace.summary import rank_waits
from hpcoll.comm.telemetry.trace_file import TraceFile
from hpcoll.runtime.engine.entry import advance_noting_address

pytestmark = STARTS_JOBS

CALLS = """
x, y = np.ones(3), np.zeros(3)
for i in range(40):
    if comm.rank == 1 and i % 4 == 0:
        time.sleep(0.01)
    comm.Allreduce(x, y)
with comm.region("step"):
    for i in range(3):
        with comm.region("halo"):
            comm.Allreduce(x, y)
request = comm.Ibcast(x)
time.sleep(0.01 * comm.rank)
request.Wait()
half = comm.Dup()
half.Set_name('a "name"')
half.Barrier()
half.Free()
comm.stragglers()
"""
KILLED = """
import pathlib, signal
x, y, folder = np.ones(3), np.zeros(3), pathlib.Path(os.environ["HPCOLL_TRACE"].removesuffix(":steps"))
begun = time.monotonic()
while True:
    for _ in range(1000):
        comm.Allreduce(x, y)
    if comm.rank == 1:
        time.sleep(0.05)
        if sum(one.stat().st_size for one in folder.iterdir()) > 1 << 20 or time.monotonic() > begun + 40:
            os.kill(os.getpid(), signal.SIGKILL)
"""
MANY = """
x = np.ones(3)
for i in range(4):
    time.sleep(0.02 * comm.rank)
    for request in [comm.Iallreduce(x, np.zeros(3)) for _ in range(9)]:
        request.Wait()
    time.sleep(0.02 * comm.rank)
    comm.Barrier()
comm.stragglers()
"""
BOTH = """
import json
ring, x, y = comm.Create_dist_graph_adjacent([1 - comm.rank], [1 - comm.rank]), np.ones(3), np.zeros(3)
for i in range(20):
    time.sleep(0.002 * (comm.rank == i % 2))
    comm.Scan(x, y)
    ring.Neighbor_allgather(x, np.zeros(6 // comm.size))
    comm.Reduce(x, y, root=1)
    request = comm.Iallreduce(x, np.zeros(3))
    time.sleep(0.001 * comm.rank)
    request.Wait()
for row in comm.stragglers().rows:
    say(json.dumps([row.caused_s + row.inherited_s, row.waited_s, row.moved_s, row.hidden_s, row.last]))
"""
STEPS = """
import json
from hpcoll.comm.requests.call_hooks import HOOKS
from hpcoll.runtime.program.opcodes import Code
x, y = np.ones(100_000), np.zeros(100_000)
for segment in ("64K", 128 if nrings else "4K"):
    with HOOKS.region_left.functions[0].__self__._writing:  # nobody takes the steps meanwhile: there is no room for some 75,000
        comm.Allreduce(x, y, algorithm="ring", segment=segment)
    program = max((one.program for one in comm._context.planner.engines()), key=lambda one: len(one.lanes))
    codes = np.bincount(np.concatenate([program.rows[first:last, 0] for first, last, _ in program.lanes]))
    say(json.dumps({Code(i).name: n for i, n in enumerate(codes.tolist()) if n}))
    comm.Iallreduce(x, y).Wait()
comm.Barrier()
"""
KIND = {
    "send": ("SEND", "POST"),
    "receive": ("RECV",),
    "copy": ("COPY", "STAGE"),
    "reduce": ("REDUCE",),
    "wait": ("WAIT", "AWAIT", "RESERVE", "DRAIN", "UNREAD"),
}
FORKS = """
comm.Barrier()
if os.fork() == 0:
    time.sleep(0.8)
    os._exit(0)
os.wait()
"""


def events(folder: Path) -> list[dict[str, Any]]:
    """Return the events that Perfetto is given of the one trace in a folder."""
    (path,) = folder.iterdir()
    found = folder.with_name(f"{folder.name}.json")
    assert main(f"trace {path} --perfetto {found}".split()) == 0
    made: list[dict[str, Any]] = json.loads(found.read_text())
    return made


def rows(found: list[dict[str, Any]]) -> dict[str, int]:
    """Return the numbers of rows by their names."""
    return {one["args"]["name"]: one["tid"] for one in found if one["name"] == "thread_name"}


def of(found: list[dict[str, Any]], cat: str, tid: int) -> list[dict[str, Any]]:
    """Return the events of a kind in a row, in the order of time."""
    return sorted(
        (one for one in found if one.get("cat") == cat and one["tid"] == tid),
        key=lambda one: float(one["ts"]),
    )


def inside(one: dict[str, Any], slices: list[dict[str, Any]]) -> bool:
    """Say whether an event is inside of one of some slices."""
    end = one["ts"] + one.get("dur", 0)
    return any(outer["ts"] <= one["ts"] and end <= outer["ts"] + outer["dur"] + 1e-3 for outer in slices)


def around(at: float, slices: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the innermost slice in which a time is."""
    return max(
        (one for one in slices if one["ts"] <= at < one["ts"] + one["dur"]),
        key=lambda one: (one["ts"], -one["dur"]),
    )


def assert_nested(slices: list[dict[str, Any]]) -> None:
    """Each slice of a row ends before the one around it, as Perfetto wants, which leaves out others."""
    ends = [1 << 62]
    timed = [(round(1000 * one["ts"]), -round(1000 * one["dur"]), one) for one in slices]
    for begin, took, one in sorted(timed, key=lambda one: one[:2]):
        while ends[-1] <= begin:
            ends.pop()
        ends.append(begin - took)
        assert ends[-1] <= ends[-2], one


def test_as_perfetto_wants_it(tmp_path: Path) -> None:
    """Slices of a row nest, also of calls in flight that wait for their turn; an arrow has its own number, and leads to a later slice."""
    job(2, MANY, HPCOLL_TRACE=str(tmp_path))
    found = events(tmp_path)
    slices = {
        tid: [one for one in found if one["ph"] == "X" and one["tid"] == tid] for tid in rows(found).values()
    }
    for row in slices.values():
        assert_nested(row)
    begins, ends = ([one for one in found if one["ph"] == phase] for phase in "sf")
    pairs = {one["id"]: [one] for one in begins}
    for one in ends:
        pairs[one["id"]].append(one)
    assert len(begins) == len(ends) == len(pairs) > 0
    for begin, end in pairs.values():
        late, moving = (around(one["ts"], slices[one["tid"]]) for one in (begin, end))
        assert (late["cat"], moving["cat"]) == ("call", "moves")
        assert late["ts"] < moving["ts"]
    (path,) = tmp_path.iterdir()
    queued = sorted(
        (one["issued"], one["ts"] + one["dur"] - one["issued"]) for one in found if "issued" in one
    )
    trace = read([str(path)])  # on a busy machine no call may have waited for its turn
    assert [trace.length[trace.start == at].max() for at, _ in queued] == pytest.approx(
        [length for _, length in queued]
    )


def test_what_is_written(tmp_path: Path) -> None:
    """Every call is a slice on the row of its rank; the waits for the rank that slept are inside of them, with arrows from its calls."""
    job(2, CALLS, HPCOLL_TRACE=str(tmp_path / "new" / "folder"))
    (path,) = (tmp_path / "new" / "folder").iterdir()
    found = events(path.parent)
    tids = rows(found)
    assert set(tids) == {"rank 0", "rank 1", "rank 0 in flight 1", "rank 1 in flight 1"}
    late_row, own_row = tids["rank 1"], tids["rank 0"]
    for rank in range(2):
        tid = tids[f"rank {rank}"]
        calls = of(found, "call", tid)
        assert [one["name"] for one in calls].count("Allreduce") == 43
        first = next(one for one in calls if one["name"] == "Allreduce")
        assert first["args"] | {"algorithm": "", "at": ""} == {
            "comm": "MPI_COMM_WORLD",
            "bytes": 24,
            "count": 3,
            "type": "float64",
            "op": "SUM",
            "algorithm": "",
            "at": "",
            "call": 1,
        }
        assert [one["args"]["comm"].rpartition(" ")[0] for one in calls if one["name"] == "Barrier"] == [
            'a "name"'
        ]
        assert [one["name"] for one in of(found, "call", tids[f"rank {rank} in flight 1"])] == ["Ibcast"]
        regions = of(found, "region", tid)
        assert sorted(one["name"] for one in regions) == "step step/halo step/halo step/halo".split()
        named = [one for one in calls if one["args"].get("region") == "step/halo"]
        assert len(named) == 3
        assert all(inside(one, [outer for outer in regions if outer["name"] == "step/halo"]) for one in named)
    waits = [one for one in of(found, "wait", own_row) if one["ph"] == "X" and one["dur"] > 8000]
    slept = [one for one in waits if inside(one, of(found, "call", own_row))]
    assert len(slept) >= 5, waits  # on a busy machine the other rank may sleep, too
    assert {one["args"]["for"] for one in slept} == {1}
    begins = {one["id"]: one for one in of(found, "late", late_row) if one["ph"] == "s"}
    ends = {one["id"]: one for one in of(found, "late", own_row) if one["ph"] == "f"}
    assert len(ends) >= 5
    assert all(inside(begins[number], of(found, "call", late_row)) for number in ends)
    assert all(inside(one, of(found, "call", own_row)) for one in ends.values())
    moved = [one["args"]["bytes"] for one in found if one["name"] == "rank 1 total"]
    assert moved == sorted(moved)
    assert moved[-1] >= 40 * 24
    assert {one["args"]["calls"] for one in found if one["name"] == "rank 1 in flight"} == {0, 1}


def test_only_calls_of_the_program_are_in_it_and_all_are_compared(tmp_path: Path) -> None:
    """Also those of a communicator that was recovered, whose calls are numbered anew; not those by which hpcoll measures its own Python."""
    again = "comm.Allreduce(np.ones(3), np.zeros(3))\ncomm.stragglers()\n"
    job(2, f"{again}comm.recover()\n{again}comm.Split(comm.rank).Barrier()", HPCOLL_TRACE=str(tmp_path))
    trace = read([str(file) for file in tmp_path.iterdir()])
    calls = find(trace).compared[trace.category == CALL]
    assert calls.tolist() == [True] * 6


def test_it_says_what_stragglers_says(tmp_path: Path) -> None:
    """Who came last in calls of all kinds, and how long others waited: from the file, and as the ranks have it."""
    said, _ = job(2, BOTH, HPCOLL_TRACE=str(tmp_path))
    expected = [json.loads(line) for line in said[0].splitlines()]
    trace = read([str(file) for file in tmp_path.iterdir()])
    found = [
        [row.caused_s + row.inherited_s, row.waited_s, row.moved_s, row.hidden_s, row.last]
        for row in judge(rank_waits(trace, find(trace))).rows
    ]
    assert found == [pytest.approx(one, rel=0.02, abs=1e-4) for one in expected]


@pytest.fixture
def compiled() -> None:
    """Compile what notes steps, so that no job does."""
    advance_noting_address()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("shm", ["1G", "0"])
def test_steps(tmp_path: Path, shm: str) -> None:
    """A call has a step for each row of its program, of the row's kind, by shared memory and by messages; steps that are lost are counted.

    Steps are on a row of their own, where they lie one behind the other, inside of their calls.
    """
    said, _ = job(3, STEPS, HPCOLL_TRACE=f"{tmp_path}:steps", HPCOLL_SHM=shm)
    found = events(tmp_path)
    tids = rows(found)
    for rank, texts in said.items():
        at, calls_at = tids[f"rank {rank} steps"], tids[f"rank {rank}"]
        calls, steps = of(found, "call", calls_at), of(found, "step", at)
        lost = sum(
            int(one["name"].split()[0])
            for one in of(found, "missing", calls_at)
            if one["name"].endswith("steps before are missing")
        )
        rings = [one["args"]["call"] for one in calls if one["args"].get("algorithm") == "ring"]
        for call, text, more in zip(rings, texts.splitlines(), (0, lost), strict=True):
            codes, kinds = (
                json.loads(text),
                [one["args"]["kind"] for one in steps if one["args"]["call"] == call],
            )
            expected = {kind: sum(codes.get(name, 0) for name in names) for kind, names in KIND.items()}
            if more:  # a few steps of a call behind it, in which ranks compare their calls, may be lost, too
                assert 0 <= len(kinds) + more - sum(expected.values()) < 100
            else:
                assert {kind: kinds.count(kind) for kind in KIND} == expected
        assert (lost > 0) == (shm != "0")
        first = [one for one in steps if one["args"]["call"] == rings[0]]
        assert {one["args"].get("peer", rank) for one in first} == {0, 1, 2}
        assert len({one["args"]["segment"] for one in first}) == 13
        for one, after in pairwise(steps):
            assert float(one["ts"]) + float(one["dur"]) < float(after["ts"]) + 1e-4
        assert all(
            inside(one, [outer for outer in calls if outer["args"]["call"] == one["args"]["call"]])
            for one in steps[::100]
        )
        assert any(
            of(found, "step", tid) for name, tid in tids.items() if name.startswith(f"rank {rank} in flight")
        )


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("steps", ["", ":steps"])
def test_killed(tmp_path: Path, steps: str) -> None:
    """What was written before a rank was killed can be read, of all ranks, also who waited."""
    assert finished(command(2, KILLED), {"HPCOLL_TRACE": f"{tmp_path}{steps}"}).returncode != 0
    found = events(tmp_path)
    assert any(one.get("cat") == "step" for one in found) == bool(steps)
    assert any(one.get("cat") == "wait" for one in found)
    for rank in range(2):
        numbers = [one["args"]["call"] for one in of(found, "call", rows(found)[f"rank {rank}"])]
        assert len(numbers) > 100
        assert len(set(numbers)) == len(numbers)


def test_nobody_can_guess_or_read_its_file(tmp_path: Path) -> None:
    """Its name has 64 random bits; it is this user's alone, for the arguments of the program are in it."""
    job(2, "comm.Barrier()", HPCOLL_TRACE=str(tmp_path), SLURM_JOB_ID="17")
    (path,) = tmp_path.iterdir()
    assert re.fullmatch(r".*-17-[0-9a-f]{16}\.trace", path.name)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("planted", ["pipe", "link", "open to all", "of another user"])
def test_what_a_stranger_has_put_in_its_place_is_not_written(tmp_path: Path, planted: str) -> None:
    """Another user of the folder has seen the name, and put something there: no rank waits, and nothing is written."""
    path, private = tmp_path / "trace.json", tmp_path / "private"
    private.touch()
    if planted == "pipe":
        os.mkfifo(path, 0o666)
    elif planted == "link":
        path.symlink_to(private)
    else:
        path.touch()
        path.chmod(0o666)
    if planted == "of another user":
        os.chown(path, 65534, 65534)
    with pytest.raises(OSError, match=r"trace.json"):  # of a pipe that nobody reads the system says so
        TraceFile(path)
    assert private.read_text() == ""
    assert planted == "pipe" or path.read_text() == ""


@pytest.mark.parametrize(
    ("argv", "program"),
    [
        ("[]", [""]),
        ("[__import__('pathlib').Path('/a/b.py')]", ["/a/b.py"]),
        (r"[b'/a/b\xff.py', 3]", ["/a/b\ufffd.py", "3"]),
        (r"['/a/b\udcff.py']", ["/a/b?.py"]),
    ],
    ids=["empty", "path", "bytes", "no UTF-8"],
)
def test_whatever_the_program_has_left_in_its_arguments(
    tmp_path: Path, argv: str, program: list[str]
) -> None:
    """It runs, and has its trace, metrics and record."""
    script = "import signal\ncomm.Barrier()\nsignal.raise_signal(signal.SIGUSR2)\ncomm.Barrier()\nsay('ran')"
    folders = {name: str(tmp_path / name) for name in ("TRACE", "METRICS", "RECORD")}
    done = finished(
        command(2, script, head=f"import sys\nsys.argv[:] = {argv}\n{HEAD}"),
        {f"HPCOLL_{name}": path for name, path in folders.items()},
    )
    assert (done.returncode, spoken(2, done.stdout)) == (0, {0: ["ran"], 1: ["ran"]})
    trace, record = events(tmp_path / "TRACE"), json.loads((tmp_path / "RECORD" / "rank1.json").read_text())
    assert [one["args"]["program"] for one in trace if one["name"] == "hpcoll"] == [program] * 2
    assert record["program"] == program
    assert len([one for one in (tmp_path / "METRICS").iterdir() if "hpcoll_info{" in one.read_text()]) == 2


@pytest.mark.parametrize(("folder", "ntraces"), [("traces", 1), ("/proc/none", 0)])
def test_forks_and_folders(tmp_path: Path, folder: str, ntraces: int) -> None:
    """A fork writes nothing. A folder that cannot be written is one warning, and the program runs."""
    said, complaints = job(2, FORKS + "say('ran')", HPCOLL_TRACE=str(tmp_path / folder))
    assert said == {0: "ran\n", 1: "ran\n"}
    assert complaints.count("no trace is written") == 1 - ntraces
    if ntraces:
        introduced = [one["args"]["rank"] for one in events(tmp_path / folder) if one["name"] == "hpcoll"]
        barriers = [one for one in events(tmp_path / folder) if one["name"] == "Barrier"]
        assert (sorted(introduced), len(barriers)) == ([0, 1], 2)
