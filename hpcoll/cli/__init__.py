"""The command ``hpcoll``: a table of subcommands, each in a module of its own that is imported only when it is called.

So ``hpcoll show`` needs neither MPI nor a compiler. Errors that hpcoll raises, and output that cannot be written, become one line and exit
code 2.
"""

# PYTHON_ARGCOMPLETE_OK

import argparse
import codecs
import importlib
import os
import sys
import traceback
from contextlib import redirect_stdout, suppress
from typing import Any, NamedTuple, NoReturn

from hpcoll.base.errors import HpcollError
from hpcoll.base.text import LINE, meant, one_of, printable, quoted
from hpcoll.cli import output


class Command(NamedTuple):
    """A subcommand; its module has ``configure(parser)`` and ``run(arguments)``, which returns the exit code."""

    name: str
    help: str
    module: str
    example: str


COMMANDS = (
    Command(
        "demo", "show on four ranks what hpcoll does, in a minute", "hpcoll.cli.demo.command", "hpcoll demo"
    ),
    Command("show", "list the algorithms, or draw one", "hpcoll.cli.show", "hpcoll show allreduce/ring -n 4"),
    Command(
        "verify",
        "prove the algorithms correct",
        "hpcoll.cli.verify",
        "hpcoll verify 'allreduce/*' --max-nranks 16",
    ),
    Command(
        "simulate",
        "predict times on a network of many nodes",
        "hpcoll.cli.simulate.command",
        "hpcoll simulate allreduce -n 64 --ranks-per-node 8",
    ),
    Command(
        "synthesize",
        "search for the fewest rounds on given links",
        "hpcoll.cli.synthesize",
        "hpcoll synthesize allgather --topology ring:8",
    ),
    Command(
        "run",
        "start a program on several ranks of this host, whatever MPI library there is",
        "hpcoll.cli.run",
        "hpcoll run -n 4 program.py",
    ),
    Command(
        "bench",
        "measure collectives under mpirun",
        "hpcoll.cli.bench.command",
        "mpirun -n 2 hpcoll bench allreduce -e 16M",
    ),
    Command(
        "bench-torch",
        "measure the backend of torch.distributed beside gloo, under mpirun",
        "hpcoll.cli.bench_torch.command",
        "mpirun -n 2 hpcoll bench-torch",
    ),
    Command(
        "doctor",
        "check MPI, GPUs, network and limits of this machine, and say what to change",
        "hpcoll.cli.doctor.command",
        "mpirun -n 2 hpcoll doctor",
    ),
    Command(
        "inspect",
        "explain a hang from the records of its ranks, or show who waits for whom now",
        "hpcoll.cli.inspect.command",
        "hpcoll inspect --live",
    ),
    Command(
        "trace",
        "say who waited for whom in a run, from its trace; compare two runs; write a page",
        "hpcoll.cli.trace.command",
        "hpcoll trace folder/*",
    ),
    Command(
        "warmup",
        "compile ahead of time what programs need first",
        "hpcoll.cli.warmup",
        "hpcoll warmup --types double --ops sum",
    ),
    Command(
        "tune",
        "measure all algorithms under mpirun and write a tuning table",
        "hpcoll.cli.tune.command",
        "mpirun -n 8 hpcoll tune",
    ),
)
ERROR, INTERRUPTED = 2, 130  # exit codes
_NUMBERS_BELOW = 2**63  # on the command line
_COLLECTIVE = "pattern", "patterns", "collective"  # arguments that name one, or an algorithm
_STAND_INS = {
    "…": "...",
    "→": ">",
    "←": "<",
    "↔": "<>",
    "─": "-",
    "│": "|",
    "├": "|",
    "└": "`",
    "²": "^2",
    "µ": "u",
}


class _Parser(argparse.ArgumentParser):
    """A parser that refuses integers of more than 64 bits, and quotes what it refuses in one printable line."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register("type", int, _integer)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the arguments; here the command refuses what it does not know, with its own usage."""
        parsed, unknown = super().parse_known_args(args, namespace)
        many = next((one.dest for one in self._actions if one.nargs == "*"), "")
        if many and not any(word.startswith("-") for word in unknown):  # argparse takes none behind options
            setattr(parsed, many, [*getattr(parsed, many), *unknown])
            unknown = []
        if unknown:
            meaning = meant(self._option_string_actions, unknown[0].partition("=")[0])
            self.error(f"unrecognized arguments: {' '.join(unknown)}{meaning}")
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"expected {one_of(map(str, action.choices), str(value))}")

    def error(self, message: str) -> NoReturn:
        """Print the message and end the process."""
        super().error(printable(message, LINE))


class _Lines(argparse.HelpFormatter):
    """A formatter that keeps the lines of texts apart."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(super(_Lines, self)._fill_text(line, width, indent) for line in text.splitlines())


def _integer(text: str) -> int:
    try:
        number = int(text)
        if abs(number) < _NUMBERS_BELOW:
            return number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected an integer of at most 64 bits, got {quoted(text)}")


def main(argv: list[str] | None = None) -> int:
    """Run one command, by the arguments of this process unless others are given, and return its exit code.

    That is 0 for good, 1 where the command's answer is no, 2 where it could not be carried out.
    """
    if "_ARGCOMPLETE" in os.environ:  # the shell asks what a word may be
        _complete(os.environ.get("COMP_LINE", "").split()[1:2])
    arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if sys.stderr is None:  # it was closed
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    try:
        if sys.stdout is None:
            raise HpcollError("cannot write to standard output: it is closed")
        with redirect_stdout(_Output(sys.stdout)):
            return _run(arguments)
    except (HpcollError, MemoryError) as error:
        _say(line_of(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader has gone: say nothing
        return 0
    except Exception as error:
        if not (isinstance(error, ImportError | RuntimeError) and _lacks_mpi()):
            _say(traceback.format_exc().rstrip())
    return ERROR


def _complete(chosen: list[str]) -> None:
    """Print what the word at the cursor may be, and end the process; nothing where argcomplete is not installed."""
    with suppress(ImportError):
        from argcomplete import autocomplete
        from argcomplete.completers import FilesCompleter

        from hpcoll.schedules.catalogue import CATALOGUE
        from hpcoll.schedules.collectives import COLLECTIVES

        def names(prefix: str, action: argparse.Action, **_: Any) -> list[str]:
            named = [*COLLECTIVES, *CATALOGUE] if action.dest in _COLLECTIVE else []
            return [*(name for name in named if name.startswith(prefix)), *FilesCompleter()(prefix)]

        autocomplete(_parser(chosen), default_completer=names)


def _run(arguments: list[str]) -> int:
    if "--version" in arguments[:2] and {*arguments} <= {"--version", "--verbose"}:
        from hpcoll.cli.version import versions

        output.print_lines(versions("--verbose" in arguments))
        return 0
    try:
        parsed = _parser(arguments[:1]).parse_args(arguments)
    except SystemExit:  # help, or wrong arguments
        sys.stdout.flush()
        raise
    output.written.clear()
    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
    finally:
        output.say_what_was_written()
    return code


class _Output:
    """Standard output while a command runs: what cannot be written becomes an HpcollError, what its encoding lacks a stand-in."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        with suppress(AttributeError):  # a program's own
            stream.reconfigure(errors="hpcoll")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, as the stream does."""
        return self._told(self._stream.write, text)

    def flush(self) -> None:
        """Write what has been kept back, as the stream does."""
        self._told(self._stream.flush)

    def _told(self, do: Any, *what: str) -> Any:
        try:
            return do(*what)
        except OSError as error:
            # Python shall not try again when it closes the stream
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if isinstance(error, BrokenPipeError):
                raise
            raise HpcollError(f"cannot write to standard output: {error.strerror}") from None


def _say(text: str) -> None:
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _replaced(error: Any) -> tuple[str, int]:
    """Return what is printed in place of characters that the encoding of a stream lacks, and where the text goes on."""
    return "".join(_STAND_INS.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


codecs.register_error("hpcoll", _replaced)


def _lacks_mpi() -> bool:
    """Try to load MPI; where that fails, rank 0 prints what doctor says of it."""
    from hpcoll.cli.doctor.launchers import cannot_load, find_launcher

    try:
        importlib.import_module("mpi4py.MPI")
    except Exception as error:
        finding, launcher = cannot_load(error, os.environ), find_launcher(os.environ)
        if launcher is None or launcher.rank == 0:
            _say(line_of(HpcollError(f"{finding.subject}: {finding.found}; {finding.remedy}")))
        return True
    return False


def line_of(error: HpcollError | MemoryError) -> str:
    """Return the line that is printed of an error."""
    text = (
        str(error)
        if isinstance(error, HpcollError)
        else f"not enough memory: {str(error) or 'nothing says for what'}"
    )
    return printable(f"hpcoll: error: {text}", LINE)


def _parser(chosen: list[str]) -> _Parser:
    """Return the parser of all commands; only the module of the chosen one is imported."""
    parser = _Parser(prog="hpcoll", description="Collectives for MPI programs: draw, prove, measure.")
    parser.add_argument(
        "--version", action="store_true", help="print the versions of hpcoll and what it uses"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="with --version: a line for each, and where it is"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = commands.add_parser(
            command.name,
            help=command.help,
            description=command.help[:1].upper() + command.help[1:] + ".",
            formatter_class=_Lines,
        )
        if [command.name] == chosen:
            module = importlib.import_module(command.module)
            module.configure(subparser)
            subparser.epilog = f"{subparser.epilog or ''}\nExample: {command.example}".strip()
            subparser.set_defaults(run=module.run)
    return parser
