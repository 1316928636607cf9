"""``hpcoll warmup``: compiles ahead of time, so that the first program on a kind of machine need not."""

import argparse
import importlib
from itertools import product

from hpcoll.base.disk_cache import folder
from hpcoll.base.dtypes import check_op, working_dtype
from hpcoll.cli.bench.values import find_dtype, find_op
from hpcoll.kernels.host import kernel_address

TYPES, OPERATORS = "double,float", "sum"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = f"What is compiled is kept in {folder()}, for this kind of processor: run it on a compute node."
    parser.add_argument("--types", default=TYPES, metavar="LIST", help=f"element types as in bench, with commas; default {TYPES}")
    parser.add_argument("--ops", default=OPERATORS, metavar="LIST", help=f"operators as in bench, with commas; default {OPERATORS}")


def run(arguments: argparse.Namespace) -> int:
    """Compile the engine, then kernels."""
    wanted = list(product(map(find_op, arguments.ops.split(",")), map(find_dtype, arguments.types.split(","))))
    for op, dtype in wanted:
        check_op(op, dtype, 0)
    importlib.import_module("hpcoll.runtime.engine.entry")
    for op, dtype in wanted:
        kernel_address(op, working_dtype(dtype))
    print(f"the engine and {len(wanted)} kernels are in {folder()}")
    return 0
