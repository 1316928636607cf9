"""``hpcoll bench``: measures a collective under mpirun, every algorithm beside the MPI library's own, with answers checked. Floor 7.

Flags, columns and JSON keys are those of nccl-tests where it has them.
"""

import argparse
import os
import platform
import sys
import traceback
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI

import hpcoll
from hpcoll.bench.cases import METHODS
from hpcoll.bench.measure import Pace
from hpcoll.bench.report import FORMATS, Report
from hpcoll.bench.results import total_wrong
from hpcoll.bench.session import AUTO, Findings, Request, sizes
from hpcoll.bench.session import run as measure
from hpcoll.bench.values import find_dtype, find_op
from hpcoll.catalogue import algorithms
from hpcoll.cli import ERROR
from hpcoll.collectives import COLLECTIVES
from hpcoll.config import NATIVE, check_algorithm, positive_segment, read_config
from hpcoll.dtypes import check_op
from hpcoll.errors import ArgumentError, HpcollError
from hpcoll.selection import Need, fitting, unfit
from hpcoll.units import parse_nbytes

MINBYTES, MAXBYTES, FACTOR = "8", "16M", 8
MAX_SIZES = 10_000
_ENVIRONMENT = ("HPCOLL_", "OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_", "MPICH_", "MPIR_", "I_MPI_", "UCX_", "FI_", "OMP_", "SLURM_JOB_ID")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    parser.epilog = "Sizes take K, M, G (powers of 1024). Exit code 1 means that an answer was wrong."
    add("collective", metavar="COLLECTIVE", help=", ".join(METHODS))
    add("-b", "--minbytes", default=MINBYTES, metavar="SIZE", help=f"least size; default {MINBYTES}")
    add("-e", "--maxbytes", metavar="SIZE", help=f"greatest size; default {MAXBYTES}")
    steps = parser.add_mutually_exclusive_group()
    steps.add_argument("-i", "--stepbytes", metavar="SIZE", help="add SIZE from one size to the next")
    steps.add_argument("-f", "--stepfactor", type=int, default=FACTOR, metavar="N", help=f"multiply by N instead; default {FACTOR}")
    add("-o", "--op", default="sum", help="sum, prod, min, max, avg, land, lor, lxor, band, bor, bxor; default sum")
    add("-d", "--datatype", default="float", metavar="TYPE", help="int8 to uint64, half, bfloat16, float, double, complex64; default float")
    add("-r", "--root", type=int, default=0, metavar="RANK", help="root of a rooted collective; default 0")
    add("-n", "--iters", type=int, metavar="N", help="iterations; default: as many as fit a second per size, 5 to 1000")
    add("-w", "--warmup_iters", type=int, metavar="N", help="calls before; default 20 for small messages, else 1")
    add("-m", "--agg_iters", type=int, metavar="N", help="calls timed together; default: 100 us worth of small messages, else 1")
    add("-c", "--check", type=int, default=1, choices=(0, 1), help="check the answers; default 1")
    add("-a", "--average", type=int, default=3, choices=(0, 1, 2, 3), help="time of rank 0, average, least, greatest; default 3")
    add("--algorithms", default=AUTO, metavar="LIST", help="all, auto, or names with commas; native always runs beside them; default auto")
    add("--segment", metavar="SIZE", help="bytes per segment; default: hpcoll's choice")
    add("--format", default="nccl", choices=tuple(FORMATS), help="default nccl")
    add("--output", type=Path, metavar="FILE", help="write to FILE instead of the terminal")


def run(arguments: argparse.Namespace) -> int:
    """Measure, write the report on rank 0, and return 1 on every rank if an answer was wrong anywhere."""
    world = MPI.COMM_WORLD
    try:
        request = _request(arguments, world.size)
        _check_output(arguments.output, world)
    except ArgumentError:  # alike on all ranks: one of them says so
        if world.rank:
            return ERROR
        raise
    if world.size == 1:
        print("hpcoll: note: only one rank runs; for more: mpirun -n 4 hpcoll bench ...", file=sys.stderr)
    start = datetime.now(timezone.utc)
    try:
        findings = measure(request, world, _progress if world.rank == 0 else lambda text: None)
        report = _report(arguments, request, findings, start, world)
        if world.rank == 0:
            _write(FORMATS[arguments.format](report), arguments.output)
    except Exception as error:
        if world.size > 1:  # the others may wait for this rank
            print(f"hpcoll: error: {error}" if isinstance(error, HpcollError) else traceback.format_exc(), file=sys.stderr, flush=True)
            world.Abort(ERROR)
        raise
    return 1 if total_wrong(findings.rows) else 0


def _request(arguments: argparse.Namespace, nranks: int) -> Request:
    """Arguments, checked: what is wrong is wrong on all ranks."""
    collective, names = arguments.collective, algorithms(arguments.collective)
    read_config()
    meaning = COLLECTIVES[collective]
    reduces = meaning.reduces and not meaning.idempotent
    dtype, op = find_dtype(arguments.datatype), find_op(arguments.op) if reduces else None
    if op is not None:
        check_op(op, dtype, 0)
    if not 0 <= arguments.root < nranks:
        raise ArgumentError(f"root must be a rank below {nranks}, got {arguments.root}")
    for flag, least in (("iters", 1), ("warmup_iters", 0), ("agg_iters", 1)):
        value = getattr(arguments, flag)
        if value is not None and value < least:
            raise ArgumentError(f"{flag} must be at least {least}, got {value}")
    need = Need(collective, nranks, 0, ordered=op is not None and not op.commutative)
    pace = Pace(arguments.iters, arguments.warmup_iters, arguments.agg_iters, average=arguments.average)
    segment = None if arguments.segment is None else positive_segment(arguments.segment)
    wanted = _algorithms(arguments.algorithms, need, names)
    return Request(collective, _sizes(arguments), dtype, op, arguments.root, wanted, segment, bool(arguments.check), pace)


def _sizes(arguments: argparse.Namespace) -> tuple[int, ...]:
    least = parse_nbytes(arguments.minbytes)
    greatest = max(least, parse_nbytes(MAXBYTES)) if arguments.maxbytes is None else parse_nbytes(arguments.maxbytes)
    step = 0 if arguments.stepbytes is None else parse_nbytes(arguments.stepbytes)
    if not 1 <= least <= greatest:
        raise ArgumentError(f"sizes need 1 <= minbytes <= maxbytes, got {least} and {greatest}")
    if arguments.stepfactor < 2 or (arguments.stepbytes is not None and step < 1):
        raise ArgumentError("stepfactor must be at least 2 and stepbytes at least 1")
    if step and (greatest - least) // step >= MAX_SIZES:
        raise ArgumentError(f"stepbytes makes {(greatest - least) // step + 1} sizes, at most {MAX_SIZES} are measured")
    return tuple(sizes(least, greatest, step, arguments.stepfactor))


def _algorithms(text: str, need: Need, names: tuple[str, ...]) -> tuple[str, ...]:
    """Names to measure beside ``native``, without repetition."""
    wanted: list[str] = []
    for name in text.split(","):
        if name == "all":
            wanted += [one for one in names if one in fitting(need)]
        elif name == AUTO:
            wanted.append(name)
        elif name != NATIVE:
            check_algorithm(need.collective, name)
            reason = unfit(need, name)
            if reason:
                raise ArgumentError(f"{need.collective}/{name} cannot serve this call: {reason}")
            wanted.append(name)
    return tuple(dict.fromkeys(wanted))


def _check_output(path: Path | None, world: MPI.Intracomm) -> None:
    """Find out before the measurement that rank 0 can write its report."""
    problem = ""
    if path is not None and world.rank == 0:
        try:
            path.open("a").close()
        except OSError as error:
            problem = f"cannot write {path}: {error.strerror}"
    problem = world.bcast(problem)
    if problem:
        raise ArgumentError(problem)


def _progress(text: str) -> None:
    """A line that a terminal overwrites."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _report(arguments: argparse.Namespace, request: Request, findings: Findings, start: datetime, world: MPI.Intracomm) -> Report:
    """The report, with what there is to say about software and machine; collective."""
    hosts = Counter(world.allgather(MPI.Get_processor_name()))
    library = " ".join(MPI.Get_library_version().splitlines()[0].strip("\0").split())
    versions = {"python": platform.python_version(), "numpy": np.__version__, "mpi4py": mpi4py.__version__}
    where = ", ".join(f"{host} ({count})" for host, count in hosts.items())
    heading = [
        f"hpcoll {hpcoll.__version__}: {request.collective} on {world.size} {'rank' if world.size == 1 else 'ranks'}: {where}",
        f"MPI: {library}",
        f"Python {versions['python']}, NumPy {versions['numpy']}, mpi4py {versions['mpi4py']}",
    ]
    facts: dict[str, Any] = {
        "version": hpcoll.__version__,
        "start_time": start.isoformat(),
        "end_time": datetime.now(timezone.utc).isoformat(),
        "args": sys.argv,
        "env": [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_ENVIRONMENT)],
        "config": {"mpi": library, **versions, "hosts": dict(hosts), **_settings(arguments, request)},
    }
    return Report(request.collective, world.size, heading, findings.rows, findings.notes, facts)


def _settings(arguments: argparse.Namespace, request: Request) -> dict[str, Any]:
    steps = {"step_factor": arguments.stepfactor} if arguments.stepbytes is None else {"step_bytes": parse_nbytes(arguments.stepbytes)}
    return {
        "minimum_bytes": request.sizes[0],
        "maximum_bytes": request.sizes[-1],
        **steps,
        "warmup_iters": arguments.warmup_iters,
        "iterations": arguments.iters,
        "aggregated_iterations": arguments.agg_iters,
        "validation": arguments.check,
        "average": arguments.average,
        "algorithms": list(request.algorithms),
        "segment": request.segment,
    }


def _write(text: str, path: Path | None) -> None:
    if path is None:
        print(text, end="")
    else:
        path.write_text(text, encoding="utf-8")
