"""Many short runs of `program.py` with a late rank, and as many with none: does `Communicator.stragglers` name the right one?

    python benchmarks/lateness/runs.py --late 100 --none 100 --to build/late.jsonl     # half an hour; writes a line for each run
    python benchmarks/lateness/runs.py --table build/late.jsonl                        # tables of what was written

Kinds of lateness: a sleep, a spin, SIGSTOP from outside, a process that takes the rank's core, a host whose link is slow, a delay amid a
training's backward pass, and one that other ranks inherit through a sub-communicator. Ranks are on one node, or on emulated hosts
(`tests/cluster/hosts.sh`, as root) whose clocks differ by seconds and drift by 50 ppm.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from mpi_run import MALLOC, OPEN_MPI, OPEN_MPI_ROOT  # noqa: E402

LIMIT_S = 90
RESULT = "RESULT "  # what a line of the program begins with
CLOCKS = "host0=0:0,host1=7300000000:50,host2=-41000000000:-50,host3=120000000000:-50"  # as tests/cluster/host_clocks.c has it
# Kind, ranks on one node or slots of emulated hosts, MPI library
LATE = (
    ("sleep", 2, "openmpi"),
    ("sleep", 4, "mpich"),
    ("sleep", 8, "openmpi"),
    ("sleep", "1,1", "openmpi"),
    ("sleep", "2,2", "mpich"),
    ("spin", 2, "mpich"),
    ("spin", 4, "openmpi"),
    ("spin", "1,1,1", "openmpi"),
    ("stop", 3, "openmpi"),
    ("stop", 5, "mpich"),
    ("stop", "2,1", "openmpi"),
    ("hog", 2, "openmpi"),
    ("hog", 2, "mpich"),
    ("link", "1,1,1,1", "openmpi"),
    ("link", "1,1,1", "mpich"),
    ("inherit", 4, "openmpi"),
    ("inherit", 6, "mpich"),
    ("inherit", "2,2", "openmpi"),
    ("backward", 2, "torch"),
    ("backward", 4, "torch"),
)
NONE = (
    ("none", 2, "openmpi"),
    ("none", 4, "mpich"),
    ("none", 8, "openmpi"),
    ("none", "1,1", "openmpi"),
    ("none", "2,2", "mpich"),
    ("none", "1,1,1", "openmpi"),
    ("none", 3, "openmpi"),
    ("none", 5, "mpich"),
    ("none", 2, "torch"),
    ("none", "2,1", "openmpi"),
)


def plans(
    rows: tuple[tuple[str, Any, str], ...], n: int, seconds: float, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield the plans of so many runs."""
    chance = random.Random(seed)
    for i in range(n):
        kind, ranks, library = rows[i % len(rows)]
        size = ranks if isinstance(ranks, int) else sum(map(int, ranks.split(",")))
        places = ranks.count(",") + 1 if kind == "link" else size
        delay = (
            chance.choice((0.004, 0.008, 0.02))
            if kind not in ("stop", "hog")
            else chance.choice((0.02, 0.04))
        )
        plan = {
            "kind": kind,
            "ranks": ranks,
            "library": library,
            "late": None if kind == "none" else chance.randrange(places),
            "delay_s": delay,
            "every": chance.choice((3, 4, 5)),
            "seconds": seconds,
            "count": chance.choice((1, 100, 2000)),
            "mbit": 30,
        }
        if kind == "link":
            plan["count"] = 32_000
        yield plan | ({"torch": True} if library == "torch" else {})


def result(plan: dict[str, Any], preloaded: str) -> dict[str, Any]:
    """Run a plan, and return what its rank 0 said; "error" where it did not."""
    python = ROOT / f".venv-{plan['library']}/bin/python"
    if plan["library"] == "torch":
        python = Path(os.environ.get("LATE_TORCH", python))
    program = [str(python), str(HERE / "program.py"), json.dumps(plan)]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMPI_", "PMIX_", "PMI_", "PRTE_"))
    }
    environment |= {"PYTHONPATH": str(ROOT)} | MALLOC
    if isinstance(plan["ranks"], int):
        command = [str(python.with_name("mpiexec")), "-n", str(plan["ranks"]), *program]
        environment |= OPEN_MPI | OPEN_MPI_ROOT
    else:
        command = [str(ROOT / "tests/cluster/hosts.sh"), "--slots", plan["ranks"], "--", *program]
        environment |= {
            "LD_PRELOAD": preloaded,
            "HOST_CLOCKS": CLOCKS,
            "HOST_CLOCKS_FROM": str(time.monotonic_ns()),
        }
    try:
        quiet: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "capture_output": True,
            "text": True,
            "check": False,
        }
        done = subprocess.run(command, env=environment, timeout=LIMIT_S, **quiet)
    except subprocess.TimeoutExpired:
        return plan | {"error": f"more than {LIMIT_S} s"}
    if plan.get("show"):
        print(done.stdout)
    for line in done.stdout.splitlines():
        if line.startswith(RESULT):
            return json.loads(line.removeprefix(RESULT)) | {"load": os.getloadavg()[0]}
    return plan | {"error": (done.stdout + done.stderr)[-1500:]}


def is_right(found: dict[str, Any]) -> bool:
    """Say whether what was named is what was late."""
    if found["kind"] == "link":
        return found["worst"] is None and f"link of host{found['late']} " in found["verdict"]
    return bool(found["worst"] == found["late"])


def tables(every: list[dict[str, Any]]) -> str:
    """Return the confusion table and that of seconds, in Markdown."""
    ran = [one for one in every if "error" not in one]
    lines = [
        "| lateness | runs | right | another | none | seconds lost to injected, median (least to most) |",
        "|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(one["kind"] for one in every):
        runs = [one for one in ran if one["kind"] == kind]
        right = sum(map(is_right, runs))
        none = sum(one["worst"] is None for one in runs if not is_right(one))
        shares = [one["caused_s"] / one["injected_s"] for one in runs if one["injected_s"]]
        seconds = f"{median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})" if shares else ""
        lines.append(f"| {kind} | {len(runs)} | {right} | {len(runs) - right - none} | {none} | {seconds} |")
    return "\n".join([*lines, "", *(f"no result: {one}" for one in every if "error" in one)])


def main() -> None:
    """Run, or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--late", type=int, default=0, help="runs with a late rank (0)")
    parser.add_argument("--none", type=int, default=0, help="runs with none (0)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run (3)")
    parser.add_argument("--seed", type=int, default=1, help="of delays and ranks (1)")
    parser.add_argument("--kind", help="only this kind of lateness")
    parser.add_argument("--to", help="file that each result is appended to")
    parser.add_argument("--table", help="file of results, of which tables are printed; nothing runs")
    asked = parser.parse_args()
    if asked.table:
        print(tables([json.loads(line) for line in Path(asked.table).read_text().splitlines()]))
        return
    rows = tuple(row for row in LATE if asked.kind in (None, row[0]))
    todo = [
        *plans(rows, asked.late, asked.seconds, asked.seed),
        *plans(NONE, asked.none, asked.seconds, asked.seed),
    ]
    random.Random(asked.seed).shuffle(todo)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        preloaded = f"{folder}/host_clocks.so"
        subprocess.run(
            [
                "cc",
                "-shared",
                "-fPIC",
                "-O2",
                "-o",
                preloaded,
                str(ROOT / "tests/cluster/host_clocks.c"),
                "-ldl",
            ],
            check=True,
        )
        for plan in todo:
            found.append(one := result(plan, preloaded))
            if asked.to:
                with open(asked.to, "a") as file:
                    file.write(json.dumps(one) + "\n")
            what = (
                one["error"][-300:]
                if "error" in one
                else f"{'right' if is_right(one) else 'WRONG'} {one['worst']} {one['verdict']}"
            )
            print(f"{plan['kind']} {plan['ranks']} {plan['library']} late {plan['late']}: {what}", flush=True)
    print(tables(found))


if __name__ == "__main__":
    main()
