"""Runs the tests of other people's packages without hpcoll and with it, and compares: ``client_run.py NRANKS CLIENT [PYTEST ARGUMENTS]``.

Nothing may fail with hpcoll that passes without it, and all together may take but so many times as long (`clients/table.py`).
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import mpi_run
import outcomes
from clients import compare, rank, sources
from clients.table import CLIENTS
from outcomes import FAILED, PASSED, SKIPPED, TOKENS, Case

from hpcoll.base.busy import core_use, usage

VARIANTS = ("plain", "hpcoll")
QUIET = 0.1  # cores that other programs may use where times are judged


class Variant(NamedTuple):
    """The outcomes of a client's tests run in a way; ``others`` is how many cores other programs used meanwhile."""

    cases: compare.Cases
    seconds: compare.Seconds
    others: float


def variant(nranks: int, name: str, which: str, pytest_args: list[str], folder: Path) -> Variant:
    """Run a client's tests one way."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share the cores
    cores = frozenset(os.sched_getaffinity(0))
    before = usage(cores)
    status = mpi_run.mpiexec(nranks, [__file__, "--rank", name, which, *pytest_args], folder)
    meanwhile = core_use([before], [usage(cores)], len(cores))  # the ranks are children that have ended
    cases, others = outcomes.merge(folder, nranks), meanwhile.others
    ended = f"mpiexec ended with status {status} after {meanwhile.seconds:.0f} s"
    print(
        f"{which}: {outcomes.tally(cases.values())}; {ended}; other programs used {others:.1f} cores",
        flush=True,
    )
    return Variant(cases, compare.seconds(folder, nranks), others)


def run(nranks: int, name: str, pytest_args: list[str], folder: Path) -> dict[str, Case]:
    """Run a client's tests both ways; what became of its cases, and of its time."""
    client, reason = CLIENTS[name], sources.missing(name)
    if reason:
        return {"all": Case(SKIPPED, 0.0, reason)}
    plain, ours = (variant(nranks, name, which, pytest_args, folder / which) for which in VARIANTS)
    print(compare.table(client, plain.seconds, ours.seconds))
    timed = Case(
        FAILED if compare.too_long(client, plain.seconds, ours.seconds) else PASSED,
        0.0,
        "all cases: too long",
    )
    if nranks > (os.cpu_count() or 1) or max(plain.others, ours.others) > QUIET:
        timed = Case(SKIPPED, 0.0, "times are judged where every rank has a core that no other program uses")
    return compare.judged(client, plain.cases, ours.cases) | {"time": timed}


def main(nranks: int, name: str, pytest_args: list[str]) -> int:
    """Run a client, say what differs, and write down what became of its cases, as one rank would."""
    folder = Path(os.environ.get(TOKENS) or tempfile.mkdtemp(prefix="hpcoll-clients-"))
    cases = run(nranks, name, pytest_args, folder)
    failed = {case: found for case, found in cases.items() if found.outcome == FAILED}
    for case, found in failed.items():
        print(f"failed: {case}: {found.note}")
    for each in range(nranks if failed else 0):
        mpi_run.show_output(folder / VARIANTS[1], each)
    lines = [json.dumps([f"{name}: {case}", *found]) + "\n" for case, found in cases.items()]
    outcomes.path(folder, 0).write_text("".join(lines))
    outcomes.token(folder, 0).write_text(outcomes.tally(cases.values()) + "\n")
    print(f"{name}: {outcomes.tally(cases.values())}; all of it is in {folder}")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank.run(sys.argv[2], sys.argv[3] == VARIANTS[1], sys.argv[4:])
    else:
        sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
