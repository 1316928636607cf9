"""``hpcoll bench``: measures a collective under mpirun, every algorithm beside the MPI library's own, with answers checked.

Flags, columns and JSON keys are those of nccl-tests where it has them. Drawing earlier results needs no MPI, which
`hpcoll.cli.bench.run` imports.
"""

import argparse
from functools import partial
from pathlib import Path

from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import one_of
from hpcoll.cli import plot
from hpcoll.cli.bench.earlier import draw, read_run
from hpcoll.cli.bench.messages import FACTOR, MAXBYTES, MINBYTES
from hpcoll.cli.bench.modes import (
    BARE,
    BLOCKING,
    CALLS,
    LIST,
    MEMORIES,
    MODES,
    NEW,
    OBJECTS,
    ORDINARY,
    PLAN,
    SAME,
)
from hpcoll.cli.bench.report import FORMATS, NCCL
from hpcoll.cli.options import add_ranks_per_node, option
from hpcoll.registry.sources import READERS, read_file
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.selection.config import NATIVE


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = partial(option, parser)
    parser.epilog = "Sizes take K, M, G (powers of 1024). Exit code 1 means that an answer was wrong."
    others = "calls: what short calls cost before they run; objects: on Python objects; plan: planning, without MPI"
    parser.add_argument(
        "collective",
        metavar="COLLECTIVE",
        nargs="?",
        help=f"{', '.join(COLLECTIVES)}; {others}; or a file of an algorithm",
    )
    parser.add_argument("collectives", nargs="*", help="of plan; default: all but neighbourhood ones")
    add("-b --minbytes SIZE", "least size", MINBYTES)
    add("-e --maxbytes SIZE", f"greatest size; default {MAXBYTES}")
    steps = parser.add_mutually_exclusive_group()
    option(steps, "-i --stepbytes SIZE", "add SIZE from one size to the next")
    option(steps, "-f --stepfactor N", "multiply by N instead", FACTOR)
    add("-o --op OP", "sum, exact_sum, prod, min, max, avg, land, lor, lxor, band, bor, bxor", "sum")
    add("--order", "of hpcoll's reductions; rank: always the same bits", choices=("rank",))
    add("-d --datatype TYPE", "int8 to uint64, half, bfloat16, float, double, complex64", "float")
    add("-r --root RANK", "root of a rooted collective", 0)
    add("-n --iters N", "iterations; default: as many as fit a second per size, 5 to 1000; of plan: ranks")
    add_ranks_per_node(parser, "of plan: ranks per node, 3+1+4, or 2:cyclic; default 1")
    add("-w --warmup_iters N", "warm-up calls; default 20 for small messages, else 1")
    add("-m --agg_iters N", "calls timed together; default: as many small ones as take 100 us, else 1")
    add("-I --per_iter_timing", "1 keeps each rank's times in the JSON", 0, type=int, choices=(0, 1))
    add("-c --check", "1 checks the answers", 1, type=int, choices=(0, 1))
    add("-a --average", "time of rank 0, average, least, greatest", 3, type=int, choices=(0, 1, 2, 3))
    add(
        "--algorithms LIST",
        "all, auto, or names with commas; native always runs beside them; default auto",
    )
    modes = "overlap: nonblocking with work before Wait; init: X_init and Free in each call"
    add("--mode", modes, BLOCKING, choices=MODES)
    add("--memory", "memory of hpcoll's buffers; native's are always ordinary", ORDINARY, choices=MEMORIES)
    add("--sizes", "new: each call is an element shorter than the last", SAME, choices=(SAME, NEW))
    add("--spec", "form of the buffers; list: [array, datatype]", BARE, choices=(BARE, LIST))
    traffic = "count the bytes that hpcoll's calls read and write, and compare with plain copies"
    add("--memory-traffic", traffic)
    add("--segment SIZE", "bytes per segment; default: hpcoll's choice")
    add("--format", "nccl-tests' table, or its JSON with further keys", NCCL, choices=tuple(FORMATS))
    add("--output FILE", "write to FILE, after every size, instead of the terminal")
    add("-J --output_file FILE", "also write the JSON to FILE, as nccl-tests does", dest="json")
    suffixes = ", ".join(plot.SUFFIXES)
    add("--plot FILE", f"also draw time and bandwidth; suffixes {suffixes}; needs matplotlib")
    again = "draw a result of --format json instead; repeatable"
    add("--from FILE", again, action="append", dest="sources")


def run(arguments: argparse.Namespace) -> int:
    """Measure, or draw earlier results."""
    if arguments.sources:
        return _draw_earlier(arguments)
    if arguments.collective is None:
        raise ArgumentError(f"bench needs a collective: {', '.join(COLLECTIVES)}")
    if arguments.collective == PLAN:
        from hpcoll.cli.bench.plan import measure_plans

        return measure_plans(arguments)
    if arguments.collectives:
        raise ArgumentError(f"bench takes one collective, got {arguments.collectives[0]}, too")
    if arguments.collective in (CALLS, OBJECTS):
        from mpi4py import MPI

        from hpcoll.cli.bench.beside import measure_beside

        return measure_beside(MPI.COMM_WORLD, arguments.collective)
    from hpcoll.cli.bench.run import run as measure

    if Path(arguments.collective).suffix.lower() in READERS:
        _name_algorithms(arguments)
    return measure(arguments)


def _name_algorithms(arguments: argparse.Namespace) -> None:
    """Put collective and names of a file's algorithms into the arguments that have the file."""
    rows = read_file(Path(arguments.collective))
    if len({row.collective for row in rows}) > 1:
        raise ArgumentError(
            f"{arguments.collective} has algorithms of several collectives: name it in HPCOLL_ALGORITHMS"
        )
    arguments.collective, names = rows[0].collective, ",".join(row.name for row in rows)
    arguments.algorithms = ",".join(filter(None, (names, arguments.algorithms)))
    arguments.root = rows[0].roots[0] if rows[0].roots else arguments.root


def _draw_earlier(arguments: argparse.Namespace) -> int:
    """Draw results from files: of ``native`` and the named algorithms, or of all."""
    if arguments.plot is None:
        raise ArgumentError("--from needs --plot FILE")
    plot.check(arguments.plot)
    runs = [read_run(path) for path in arguments.sources]
    if arguments.algorithms not in (None, "all"):
        names = {NATIVE, *arguments.algorithms.split(",")}
        known = {result.algorithm for run in runs for result in run.results}
        unknown = names - {NATIVE} - known
        if unknown:
            raise ArgumentError(
                f"algorithms of the results given with --from must be {one_of(sorted(known), min(unknown))}"
            )
        runs = [
            run._replace(results=tuple(result for result in run.results if result.algorithm in names))
            for run in runs
        ]
    wrong = [run.name for run in runs if arguments.collective not in (None, run.facts[0])]
    if wrong:
        raise ArgumentError(f"{wrong[0]} is not of {arguments.collective}")
    draw(runs, arguments.plot)
    return 0
