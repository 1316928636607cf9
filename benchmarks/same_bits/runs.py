"""Many runs of `matrix.py`: do all algorithms, ranks, hosts, libraries, memories and ways to cut an array give the same bits?

    python benchmarks/same_bits/runs.py --to build/same_bits.jsonl                           # hours; writes a line for each run
    python benchmarks/same_bits/runs.py --only hosts --seconds 60 --to build/same_bits.jsonl # runs with a word in their name, some cases
    python benchmarks/same_bits/runs.py --table build/same_bits.jsonl                        # tables of what was written

Each result is compared with NumPy's or Python's when it comes (`right_bits.py`). Here the hashes of all runs are compared, so that a result
of one number of ranks is that of another. Emulated hosts need root (`tests/cluster/hosts.sh`).
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from mpi_run import MALLOC, OPEN_MPI, OPEN_MPI_ROOT  # noqa: E402

LIMIT_S = 1200
LIBRARIES = ("openmpi", "mpich")


class Job(NamedTuple):
    """A run: its kind, ranks of one node or slots of emulated hosts, library, arguments of the program, and settings."""

    kind: str
    ranks: str
    library: str
    arguments: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.kind} {self.ranks} {self.library}"


def jobs(seconds: float) -> list[Job]:
    """Return all runs; each has another order of cases, of which it makes as many as the time allows."""
    places = [("node", str(n), library) for n in range(1, 9) for library in LIBRARIES]
    places += [("hosts", slots, library) for slots in ("1,1", "2,2", "3,2,1", "4,4") for library in LIBRARIES]
    places += [("hosts", slots, "openmpi") for slots in ("1,2", "1,1,1,1", "2,2,2,2")]
    places += [("GPU", str(n), library) for n in (1, 2, 3, 4, 8) for library in LIBRARIES[: 1 + (n < 8)]]
    places += [("messages", str(n), library) for n, library in ((3, "openmpi"), (4, "mpich"), (6, "openmpi"))]
    places += [("environment", "3", library) for library in LIBRARIES]
    options = {"GPU": ("--double", "--largest", "65537")}
    settings = {"messages": (("HPCOLL_SHM", "0"),), "environment": (("HPCOLL_ORDER", "rank"),)}
    return [
        Job(
            kind,
            ranks,
            library,
            (*options.get(kind, ()), "--seed", str(seed), "--seconds", str(seconds)),
            settings.get(kind, ()),
        )
        for seed, (kind, ranks, library) in enumerate(places)
    ]


def run(job: Job) -> dict[str, Any]:
    """Run a job, and return what its rank 0 said; "error" where it did not end."""
    python = ROOT / f".venv-{job.library}/bin/python"
    program = [str(python), str(HERE / "matrix.py"), *job.arguments]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMPI_", "PMIX_", "PMI_", "PRTE_", "HPCOLL_"))
    }
    environment |= {"PYTHONPATH": str(ROOT)} | MALLOC | dict(job.settings)
    if job.kind == "hosts":
        command = [str(ROOT / "tests/cluster/hosts.sh"), "--slots", job.ranks, "--", *program]
    else:
        command = [str(python.with_name("mpiexec")), "-n", job.ranks, *program]
        environment |= OPEN_MPI | OPEN_MPI_ROOT
    begin, found = (
        time.monotonic(),
        {"name": job.name, "kind": job.kind, "ranks": job.ranks, "library": job.library},
    )
    try:
        quiet: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "capture_output": True,
            "text": True,
            "check": False,
        }
        done = subprocess.run(["timeout", "-k", "5", str(LIMIT_S), *command], env=environment, **quiet)
    except OSError as error:
        return found | {"error": str(error)}
    found["seconds"] = round(time.monotonic() - begin)
    if done.returncode or "\ncases " not in done.stdout:
        return found | {"error": f"status {done.returncode}: {(done.stdout + done.stderr)[-1500:]}"}
    return found | {
        "hashes": re.findall(r"^hash (\S+) (.+)$", done.stdout, re.MULTILINE),
        "cases": {kind: int(n) for n, kind in re.findall(r"^cases (\d+) (.+)$", done.stdout, re.MULTILINE)},
        "wrong": re.findall(r"^wrong (.+)$", done.stdout, re.MULTILINE),
        "percent": int(re.findall(r"^percent (\d+)$", done.stdout, re.MULTILINE)[0]),
    }


def differing(found: list[dict[str, Any]]) -> tuple[int, list[str]]:
    """Return the number of results that several runs share, and those whose hashes differ, with the runs."""
    by_name: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for one in found:
        for digest, name in one.get("hashes", ()):
            by_name[name][digest].append(one["name"])
    shared = sum(sum(map(len, digests.values())) > 1 for digests in by_name.values())
    return shared, [f"{name}: {dict(digests)}" for name, digests in by_name.items() if len(digests) > 1]


def tables(found: list[dict[str, Any]]) -> str:
    """Return tables of the cases, in Markdown, and what was wrong."""
    kinds = list(dict.fromkeys(kind for one in found for kind in one.get("cases", ())))
    lines = [
        f"| runs | ranks (of all cases) | {' | '.join(kinds)} | wrong |",
        "|---" * (len(kinds) + 3) + "|",
    ]
    for kind, library in dict.fromkeys((one["kind"], one["library"]) for one in found):
        some = [one for one in found if (one["kind"], one["library"]) == (kind, library) and "cases" in one]
        counts = sum((Counter(one["cases"]) for one in some), Counter[str]())
        wrong = sum(len(one["wrong"]) for one in some)
        ranks = "; ".join(f"{one['ranks']} ({one['percent']} %)" for one in some)
        lines.append(
            f"| {kind}, {library} | {ranks} | {' | '.join(f'{counts[name]:,}' for name in kinds)} | {wrong} |"
        )
    every = sum((Counter(one.get("cases", {})) for one in found), Counter[str]())
    shared, differ = differing(found)
    lines += [
        "",
        f"{every.total():,} cases; {shared:,} results that several runs share, {len(differ)} of them with hashes that differ",
    ]
    lines += [f"differs: {one}" for one in differ]
    lines += [f"no result: {one['name']}: {one['error'][-300:]}" for one in found if "error" in one]
    return "\n".join(
        lines + [f"wrong: {one['name']}: {text}" for one in found for text in one.get("wrong", ())[:20]]
    )


def main() -> None:
    """Run, or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600, help="of each run (600)")
    parser.add_argument("--only", help="runs whose name has this word, such as 'hosts' or 'node 3'")
    parser.add_argument("--to", type=Path, help="file that each result is appended to")
    parser.add_argument(
        "--table", type=Path, help="file of results, of which tables are printed; nothing runs"
    )
    asked = parser.parse_args()
    if asked.table:
        print(tables([json.loads(line) for line in asked.table.read_text().splitlines()]))
        return
    found = []
    for job in jobs(asked.seconds):
        if asked.only is None or asked.only in job.name:
            found.append(one := run(job))
            print(
                one["name"],
                one.get("error") or f"{sum(one['cases'].values())} cases, {len(one['wrong'])} wrong",
                flush=True,
            )
            if asked.to:
                with asked.to.open("a") as file:
                    file.write(json.dumps(one) + "\n")
    print(tables(found))


if __name__ == "__main__":
    main()
