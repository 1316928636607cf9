"""``hpcoll warmup``: compiles ahead of time, so that the first program on a kind of machine need not."""

import argparse
import importlib
import os
from itertools import product

from hpcoll.base.disk_cache import SITE, folder, keep_in, own_folder
from hpcoll.base.dtypes import check_op, working_dtype, working_op
from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import LINE, printable
from hpcoll.cli.bench.messages import find_dtype, find_op
from hpcoll.cli.options import option
from hpcoll.kernels.host import kernel_address

TYPES, OPERATORS = "double,float", "sum"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        f"Compiled code is kept in {folder()}, for this kind of processor: run warmup on a compute node."
    )
    option(parser, "--types LIST", "element types as in bench, with commas", TYPES)
    option(parser, "--ops LIST", "operators as in bench, with commas", OPERATORS)
    option(parser, "--to FOLDER", f"keep it in FOLDER, for all users who set {SITE}=FOLDER")


def run(arguments: argparse.Namespace) -> int:
    """Compile the engine, then kernels."""
    wanted = list(
        product(map(find_op, arguments.ops.split(",")), map(find_dtype, arguments.types.split(",")))
    )
    for op, dtype in wanted:
        check_op(op, dtype, 0)
    if arguments.to:
        os.umask(0o022)
        keep_in(arguments.to.absolute())
    try:
        own_folder().close()
    except OSError as error:  # else it would compile in vain
        raise ArgumentError(f"nothing can be kept: {error}") from None
    importlib.import_module("hpcoll.runtime.engine.entry")
    importlib.import_module("hpcoll.runtime.engine.comparison")
    for op, dtype in wanted:
        kernel_address(working_op(op, dtype), working_dtype(dtype))
    print(f"the engine and {len(wanted)} kernels are in {printable(str(folder()), LINE)}")
    return 0
