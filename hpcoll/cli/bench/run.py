"""``hpcoll bench`` under mpirun: from arguments to a report, with the same errors on all ranks."""

import argparse
import os
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI

import hpcoll
from hpcoll.base.dtypes import check_op
from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import counted, parse_nbytes
from hpcoll.cli import ERROR, output, plot
from hpcoll.cli.all_ranks import ending_all_ranks, on_rank_0
from hpcoll.cli.bench.earlier import draw, run_of
from hpcoll.cli.bench.measure import Pace
from hpcoll.cli.bench.messages import MAX_ITERS, find_dtype, find_op, sizes_of
from hpcoll.cli.bench.modes import BARE, BLOCKING, DEVICE, ORDINARY, SAME
from hpcoll.cli.bench.report import AUTO, FORMATS, NCCL, Report, as_json, document, rows_so_far, total_wrong
from hpcoll.cli.bench.request import BenchRequest, check
from hpcoll.cli.bench.session import BenchFindings, bench
from hpcoll.cli.bench.watch import Watch
from hpcoll.schedules.catalogue import algorithms
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.selection.choose import Need, fitting, unfit
from hpcoll.selection.config import NATIVE, check_algorithm, positive_segment, read_config

_SECOND = "%Y-%m-%d %H:%M:%S"  # the times of nccl-tests: local ones
_ENVIRONMENT = (
    "HPCOLL_",
    "OMPI_MCA_",
    "PRTE_MCA_",
    "PMIX_MCA_",
    "MPICH_",
    "MPIR_",
    "I_MPI_",
    "UCX_",
    "FI_",
    "OMP_",
    "SLURM_JOB_ID",
)


def run(arguments: argparse.Namespace) -> int:
    """Measure, write the report on rank 0, and return 1 on every rank if an answer was wrong anywhere."""
    world: MPI.Intracomm = MPI.COMM_WORLD
    try:
        request = _request(arguments, world.size)
        if COLLECTIVES[request.collective].neighbours:
            world = world.Create_cart([world.size], [True])
        on_rank_0(world, partial(_check_files, arguments))
        check(request, world)
    except ArgumentError:  # all ranks have the same: rank 0 says so
        if world.rank:
            return ERROR
        raise
    start, watch = datetime.now(), Watch(world)
    with ending_all_ranks(world):
        write = _Writer(arguments, request, start, world)
        report = write.all(bench(request, world, watch, write.progress, write.so_far))
        if world.rank == 0 and arguments.json is not None:
            output.write(arguments.json, as_json(report))
        if world.rank == 0 and arguments.plot is not None:
            draw([run_of(document(report), "this run")], arguments.plot)
    return 1 if total_wrong(report.rows) else 0


def _request(arguments: argparse.Namespace, nranks: int) -> BenchRequest:
    """Check the arguments; an error is the same on all ranks."""
    config = read_config()
    collective, names = arguments.collective, algorithms(arguments.collective)
    meaning = COLLECTIVES[collective]
    reduces = meaning.reduces and not meaning.idempotent
    dtype, op = find_dtype(arguments.datatype), find_op(arguments.op) if reduces else None
    if op is not None:
        check_op(op, dtype, 0)
    if arguments.order and op is None:
        raise ArgumentError(f"--order is for reductions: a {collective} combines nothing")
    order = arguments.order or (config.order if op is not None else None)
    if not 0 <= arguments.root < nranks:
        raise ArgumentError(f"root must be a rank below {nranks}, got {arguments.root}")
    for flag, least in (("iters", 1), ("warmup_iters", 0), ("agg_iters", 1)):
        value = getattr(arguments, flag)
        if value is not None and not least <= value <= MAX_ITERS:
            raise ArgumentError(f"{flag} must be from {least} to {MAX_ITERS}, got {value}")
    need = Need(collective, nranks, 0, ordered=op is not None and not op.commutative, canonical=bool(order))
    pace = Pace(
        arguments.iters,
        arguments.warmup_iters,
        arguments.agg_iters,
        average=arguments.average,
        per_iter=bool(arguments.per_iter_timing),
    )
    segment = None if arguments.segment is None else positive_segment(arguments.segment)
    if arguments.plot is not None and meaning.idempotent:
        raise ArgumentError(f"a {collective} has no message size to plot against")
    return BenchRequest(
        collective,
        sizes_of(arguments.minbytes, arguments.maxbytes, arguments.stepbytes, arguments.stepfactor),
        dtype,
        op,
        arguments.root,
        _algorithms(arguments.algorithms or AUTO, need, names),
        segment,
        bool(arguments.check),
        pace,
        arguments.mode,
        arguments.memory,
        arguments.sizes,
        arguments.spec,
        arguments.memory_traffic,
        order,
    )


def _algorithms(text: str, need: Need, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names to measure beside ``native``, without repetition."""
    wanted: list[str] = []
    for name in text.split(","):
        if name == "all":
            wanted += [contender for contender in names if contender in fitting(need)]
        elif name == AUTO:
            wanted.append(name)
        elif name != NATIVE:
            check_algorithm(need.collective, name)
            reason = unfit(need, name)
            if reason:
                raise ArgumentError(f"{need.collective}/{name} cannot serve this call: {reason}")
            wanted.append(name)
    return tuple(dict.fromkeys(wanted))


def _check_files(arguments: argparse.Namespace) -> None:
    """Check before the measurement that rank 0 can write its reports and its drawing."""
    for path in filter(None, (arguments.output, arguments.json)):
        output.check(path)
    if arguments.plot is not None:
        plot.check(arguments.plot)


class _Writer:
    """Writes the report on rank 0 while it comes: rows of the table to the terminal, or all of it so far to a file."""

    def __init__(
        self, arguments: argparse.Namespace, request: BenchRequest, start: datetime, world: MPI.Intracomm
    ) -> None:
        self._arguments, self._world = arguments, world
        self._report = partial(_report, arguments, request, start, world)
        self._shows, self._nlines = arguments.output is None and arguments.format == NCCL, 0

    def progress(self, text: str) -> None:
        """Say what is measured now."""
        if self._world.rank == 0:
            output.progress(text, f"hpcoll: {text}" if text and not self._shows else "")

    def so_far(self, findings: BenchFindings) -> None:
        """Write what has been found so far; collective."""
        report = self._report(findings)
        if self._world.rank == 0 and self._shows:
            output.progress("")
            self._show(rows_so_far(report))
        elif self._world.rank == 0 and self._arguments.output is not None:
            self._save(FORMATS[self._arguments.format](report))

    def all(self, findings: BenchFindings) -> Report:
        """Write everything; collective."""
        report = self._report(findings)
        text = FORMATS[self._arguments.format](report)
        if self._world.rank == 0 and self._arguments.output is not None:
            self._save(text)
        elif self._world.rank == 0:
            self._show(text.splitlines())
        return report

    def _show(self, lines: Sequence[str]) -> None:
        """Print the lines that were not printed before; launchers pass them on at once."""
        print("\n".join(lines[self._nlines :]), flush=True)
        self._nlines = len(lines)

    def _save(self, text: str) -> None:
        try:
            output.write(self._arguments.output, text)
        except ArgumentError:
            print(text, end="")  # what was measured is not lost
            raise


def _report(
    arguments: argparse.Namespace,
    request: BenchRequest,
    start: datetime,
    world: MPI.Intracomm,
    findings: BenchFindings,
) -> Report:
    """Return the report, with facts about software and machine; collective."""
    options = (
        (request.mode, BLOCKING),
        (f"{request.memory} memory", f"{ORDINARY} memory"),
        (f"{request.sizes_of_calls} sizes", f"{SAME} sizes"),
        (request.spec, BARE),
        (f"order {request.order}", "order None"),
    )
    places = world.allgather((os.getpid(), MPI.Get_processor_name()))
    library = " ".join(MPI.Get_library_version().splitlines()[0].strip("\0").split())
    versions = {"python": platform.python_version(), "numpy": np.__version__, "mpi4py": mpi4py.__version__}
    where = ", ".join(f"{host} ({count})" for host, count in Counter(host for _, host in places).items())
    what = ", ".join([request.collective, *(text for text, usual in options if text != usual)])
    heading = [
        f"hpcoll {hpcoll.__version__}: {what} on {counted(world.size, 'rank')}: {where}",
        f"MPI: {library}",
        f"Python {versions['python']}, NumPy {versions['numpy']}, mpi4py {versions['mpi4py']}",
    ]
    if findings.facts:
        gpu = findings.facts["gpu"]
        shared = f"{gpu['ngpus']} x {gpu['name']}, {gpu['ranks_per_gpu']} ranks per GPU, driver for CUDA {gpu['driver']}"
        rates = f"GB/s to it {gpu['to_gpu']:.1f}, from it {gpu['from_gpu']:.1f}, read and written by it {gpu['copy']:.0f}"
        heading.append(f"GPU: {shared}; {rates}")
    facts: dict[str, Any] = {
        "start_time": f"{start:{_SECOND}}",
        "end_time": f"{datetime.now():{_SECOND}}",
        "args": sys.argv,
        "env": [
            f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_ENVIRONMENT)
        ],
        "nccl_version": None,
        "config": {
            "hpcoll": hpcoll.__version__,
            "mpi": library,
            **versions,
            **_settings(arguments, request),
            "devices": _devices(places, findings.facts.get("gpu", {}).get("name", "")),
        },
        **findings.facts,
    }
    return Report(request.collective, world.size, heading, findings.rows, findings.notes, facts)


def _devices(places: list[tuple[int, str]], gpu: str) -> list[dict[str, Any]]:
    """Return nccl-tests' list of the ranks, from process and host of each; which GPU each has is not told."""
    both = {"group": 0, "device": -1, "device_hex": "", "device_info": gpu}
    return [{"rank": rank, "pid": pid, "hostname": host, **both} for rank, (pid, host) in enumerate(places)]


def _settings(arguments: argparse.Namespace, request: BenchRequest) -> dict[str, Any]:
    """Return the settings of the run, with nccl-tests' names where it has them."""
    steps = (
        {"step_factor": arguments.stepfactor}
        if arguments.stepbytes is None
        else {"step_bytes": parse_nbytes(arguments.stepbytes)}
    )
    return {
        "nthreads": 1,
        "ngpus": int(request.memory == DEVICE),
        "minimum_bytes": request.sizes[0],
        "maximum_bytes": request.sizes[-1],
        **steps,
        "warmup_iters": arguments.warmup_iters,
        "iterations": arguments.iters,
        "aggregated_iterations": arguments.agg_iters,
        "validation": arguments.check,
        "graph": 0,
        "blocking_collectives": str(request.mode == BLOCKING).lower(),
        "per_iter_timing": str(request.pace.per_iter).lower(),
        "per_iter_skip": 0,
        "parallel_init": "false",
        "average": arguments.average,
        "algorithms": list(request.algorithms),
        "segment": request.segment,
        "mode": request.mode,
        "memory": request.memory,
        "sizes": request.sizes_of_calls,
        "spec": request.spec,
        "order": request.order,
    }
