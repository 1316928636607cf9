"""The command ``hpcoll``: a table of subcommands, each in a module of its own that is imported only when it is called.

So ``hpcoll show`` needs neither MPI nor a compiler. Errors that hpcoll raises become one line and exit code 2.
"""

import argparse
import importlib
import os
import sys
from typing import NamedTuple

from hpcoll import __version__
from hpcoll.base.errors import HpcollError


class Command(NamedTuple):
    """A subcommand: its module has ``configure(parser)`` and ``run(arguments) -> exit code``."""

    name: str
    help: str
    module: str


COMMANDS = (
    Command("show", "list the algorithms, or draw one", "hpcoll.cli.show"),
    Command("verify", "prove the algorithms correct", "hpcoll.cli.verify"),
    Command("simulate", "predict times on a network of many nodes", "hpcoll.cli.simulate.command"),
    Command("bench", "measure collectives under mpirun", "hpcoll.cli.bench.command"),
    Command("bench-torch", "measure the backend of torch.distributed beside gloo, under mpirun", "hpcoll.cli.bench.torch_command"),
    Command("doctor", "say what MPI, GPUs and network this machine offers, and what to change", "hpcoll.cli.doctor.command"),
    Command("inspect", "say what happened, from records of ranks that hung, or who waits for whom now", "hpcoll.cli.inspect.command"),
    Command("warmup", "compile ahead of time what programs need first", "hpcoll.cli.warmup"),
    Command("tune", "measure all algorithms under mpirun and write a table to pick from", "hpcoll.cli.tune.command"),
)
ERROR, INTERRUPTED = 2, 130  # exit codes


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the program's name; default: those of this process.
    Returns:
        Exit code: 0 good, 1 the command's answer is no, 2 it could not be carried out.
    """
    arguments = sys.argv[1:] if argv is None else argv
    try:
        parsed = _parser(arguments[:1]).parse_args(arguments)
        code: int = parsed.run(parsed)
        sys.stdout.flush()
    except HpcollError as error:
        print(f"hpcoll: error: {error}", file=sys.stderr)
        return ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader has gone: say nothing now, nor when Python closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _parser(chosen: list[str]) -> argparse.ArgumentParser:
    """The parser of all commands; only the chosen one's module is imported."""
    parser = argparse.ArgumentParser(prog="hpcoll", description="Collectives for MPI programs: draw, prove, measure.")
    parser.add_argument("--version", action="version", version=f"hpcoll {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = commands.add_parser(command.name, help=command.help, description=command.help[:1].upper() + command.help[1:] + ".")
        if [command.name] == chosen:
            module = importlib.import_module(command.module)
            module.configure(subparser)
            subparser.set_defaults(run=module.run)
    return parser
