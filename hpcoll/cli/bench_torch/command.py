"""``hpcoll bench-torch``: measures the backend of torch.distributed beside gloo, in turns, with answers checked.

PyTorch is imported only to measure, with `hpcoll.cli.bench_torch.run`.
"""

import argparse
import importlib.util
import math
from functools import partial

from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import one_of
from hpcoll.cli.bench.messages import MAX_ITERS, sizes_of
from hpcoll.cli.options import option

OPERATIONS = (
    "all_reduce",
    "all_gather_into_tensor",
    "all_gather",
    "reduce_scatter_tensor",
    "reduce_scatter",
    "broadcast",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = partial(option, parser)
    parser.epilog = "Sizes are those of the whole message and take K, M, G (powers of 1024). Exit code 1 means that an answer was wrong."
    parser.add_argument(
        "operations", metavar="OPERATION", nargs="*", help=f"{', '.join(OPERATIONS)}; default all"
    )
    add("-b --minbytes SIZE", "least size", "1K")
    add("-e --maxbytes SIZE", "greatest size", "64M")
    add("-f --stepfactor N", "multiply by N from one size to the next", 4)
    add("-n --iters N", "iterations; default: as many as fit --seconds, 5 to 1000")
    add("--seconds S", "seconds for each operation and size", 1)


def run(arguments: argparse.Namespace) -> int:
    """Check the arguments, measure, and print a table on rank 0."""
    unknown = set(arguments.operations) - set(OPERATIONS)
    if unknown:
        raise ArgumentError(f"operations must be {one_of(OPERATIONS, min(unknown))}")
    if arguments.iters is not None and not 1 <= arguments.iters <= MAX_ITERS:
        raise ArgumentError(f"iters must be from 1 to {MAX_ITERS}, got {arguments.iters}")
    if not 0 < arguments.seconds < math.inf:
        raise ArgumentError(f"seconds must be above 0, got {arguments.seconds:g}")
    sizes = sizes_of(arguments.minbytes, arguments.maxbytes, None, arguments.stepfactor)
    if importlib.util.find_spec("torch") is None:
        raise ArgumentError("bench-torch needs PyTorch: pip install 'hpcoll[torch]'")
    from hpcoll.cli.bench.measure import Pace
    from hpcoll.cli.bench_torch.run import bench_torch

    names = [name for name in OPERATIONS if name in (arguments.operations or OPERATIONS)]
    return bench_torch(names, sizes, Pace(arguments.iters, budget_s=arguments.seconds))
