"""``hpcoll run``: starts a program on several ranks of this host, whatever MPI library there is."""

import argparse
import os
import sys

from hpcoll.base.errors import ArgumentError
from hpcoll.cli.options import option
from hpcoll.launch.ranks import Ended, Ranks


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "Where a rank fails, all are ended, and the exit code is that rank's."
    option(parser, "-n --nranks N", "number of ranks", len(os.sched_getaffinity(0)))
    option(parser, "-m --module", "PROGRAM is the name of a module, as in python -m")
    option(parser, "-p --prefix", "each line that a rank prints begins with its rank, as in [2]")
    parser.add_argument("program", metavar="PROGRAM", help="a file of Python (.py), or any program")
    parser.add_argument("words", metavar="...", nargs=argparse.REMAINDER, help="its arguments")


def run(arguments: argparse.Namespace) -> int:
    """Start the ranks, and wait for them."""
    if arguments.nranks < 1:
        raise ArgumentError(f"-n must be a number of ranks, at least 1, got {arguments.nranks}")
    # by mpi4py, an error of one rank ends all, also those that wait in MPI_Finalize
    python = [sys.executable, "-m", "mpi4py", *(["-m"] if arguments.module else [])]
    is_python = arguments.module or arguments.program.endswith(".py")
    command = [*(python if is_python else []), arguments.program, *arguments.words]
    ranks = Ranks(command, arguments.nranks, {}, prefix=arguments.prefix)
    try:
        ranks.wait()
    except Ended as error:
        print(f"hpcoll: {error}; the others are ended", file=sys.stderr)
        return error.code
    finally:
        ranks.end()
    return 0
