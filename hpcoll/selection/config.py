"""Settings from environment variables; the documentation and ``hpcoll doctor`` read their table, `VARIABLES`, too.

Keywords of a call go before variables. Other variables whose names begin with ``HPCOLL_`` are warned about.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from hpcoll.analysis.cost import Levels
from hpcoll.base.disk_cache import SITE
from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import (
    LINE,
    MAX_RANKS,
    is_count,
    meant,
    one_of,
    parse_nbytes,
    parse_seconds,
    printable,
    quoted,
)
from hpcoll.registry.sources import VARIABLE, compared, content, read_files, read_packages
from hpcoll.runtime.transports.cross_memory import COPIES
from hpcoll.schedules.catalogue import CATALOGUE, find
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.row import Algorithm
from hpcoll.selection.tracing import Tracing, tracing

EVERY_CALL = "all"  # calls are compared on all ranks
RANK_ORDER = "rank"  # the order of contributions that ``order=`` and ``HPCOLL_ORDER`` can ask for
NATIVE = "native"  # the MPI library's own collective, a candidate like any other
_LEVELS = {"WARN": logging.WARNING, "INFO": logging.INFO, "TRACE": logging.DEBUG}
PREFIX = "HPCOLL_"
TUNING = f"{PREFIX}TUNING"
TRACEBACK, FULL = f"{PREFIX}TRACEBACK", "full"  # all of an uncaught error is printed
DIRECT, IPC, STAGED, HOST, DEVICE = CUDA_PATHS = (
    "direct",
    "ipc",
    "staged",
    "host",
    "device",
)  # routes of GPU arrays
_NONE: Mapping[str, Any] = {}

log = logging.getLogger("hpcoll")


def _in_a_line(record: logging.LogRecord) -> bool:
    """Make a record fit for a terminal, since it may quote names that others have given; let all records pass.

    Where no handler says whose it is, it begins with ``hpcoll:``.
    """
    text = record.getMessage() if log.hasHandlers() else f"hpcoll: {record.getMessage()}"
    record.msg, record.args = printable(text, LINE), ()
    return True


log.addFilter(_in_a_line)


class Entry(NamedTuple):
    """A line of a tuning table; times are medians as ``hpcoll bench`` measures them, out of place where there is that."""

    nbytes: int  # m of the measured call, as the catalogue counts it
    algorithm: str  # name in the catalogue, or ``native``
    segment: int  # bytes per segment, at least 1; `nbytes` or more: the whole message
    us: float  # microseconds of a call of hpcoll
    native_us: float  # microseconds of the MPI library's own collective, called without hpcoll
    disturbed: bool = False  # other programs used the cores while it was measured


# class of element types -> collective -> entries in order of size
Table = Mapping[str, Mapping[str, tuple[Entry, ...]]]


class Config(NamedTuple):
    """The settings of a process: the values of `VARIABLES`, or their defaults, mostly None."""

    algorithms: Mapping[str, str] = _NONE  # forced algorithm of each collective that has one
    segment: int | None = None
    level: int = logging.WARNING
    unknown: frozenset[str] = frozenset()  # names of unknown variables that begin with ``HPCOLL_``
    tuning: str | None = None
    shm: int | None = None
    shm_ranks: int | None = None
    shm_copy: str | None = None
    domains: tuple[int, ...] | None = None
    table: Table = (
        _NONE  # entries of the tuning file for the communicator at hand; empty where the file has none
    )
    cuda_path: str | None = None
    order: str | None = None
    check: str | None = None
    warn: float = 60.0
    timeout: float | None = None
    record: str | None = None
    trace: Tracing | None = None
    metrics: str | None = None
    traceback: str | None = None
    summary: bool | None = None
    cache: str | None = None
    start_timeout: float | None = None
    has_key: bool = False
    levels: Levels | None = (
        None  # constants of the cost model in that file; a level that it lacks has the usual ones
    )
    files: tuple[Algorithm, ...] = ()  # rows of the files of ``HPCOLL_ALGORITHMS``
    registered: tuple[Algorithm, ...] = ()  # these and the program's, among which the model chooses, too

    def agreement(self) -> dict[str, object]:
        """Return the settings that must be equal on all ranks of a communicator, by variable; only those that are set."""
        algorithms = {f"{PREFIX}{name.upper()}": algorithm for name, algorithm in self.algorithms.items()}
        others = {name: getattr(self, _BY_NAME[name].field) for name in _AGREED}
        rows = {f"algorithm {row.key}": content(row) for row in self.registered}
        return rows | algorithms | {name: value for name, value in others.items() if value is not None}


def check_algorithm(collective: str, algorithm: str) -> None:
    """Refuse a name that is neither ``native`` nor in the catalogue, nor an installed package's; the ArgumentError lists the names."""
    if algorithm != NATIVE:
        if f"{collective}/{algorithm}" not in CATALOGUE:
            read_packages()
        find(collective, algorithm, (NATIVE,))


def name_of(algorithm: str | Algorithm | None, collective: str) -> str | None:
    """Return the name in an ``algorithm=``, which may be a row of that collective that was registered; ArgumentError for any other."""
    if not isinstance(algorithm, Algorithm):
        return algorithm
    if CATALOGUE.get(algorithm.key) is not algorithm:
        raise ArgumentError(
            f"algorithm {algorithm.key} is not registered: give what hpcoll.algorithm returned"
        )
    if algorithm.collective != collective:
        raise ArgumentError(f"algorithm must be one of {collective}'s, got {algorithm.key}")
    return algorithm.name


class Variable(NamedTuple):
    """An environment variable; texts are in Markdown."""

    name: str
    takes: str  # values that it takes
    meaning: str  # its effect
    default: str  # the behaviour without it
    field: str  # of `Config`, for its value
    parse: Callable[[str], Any]  # returns the value of the variable's text, or raises `ArgumentError`


def _algorithm(collective: str, value: str) -> str:
    check_algorithm(collective, value)
    return value


def _file_name(value: str) -> str:
    if not value:
        raise ArgumentError("expected the name of a file or folder, got ''")
    return value


def _switch(value: str) -> bool | None:
    return _member(("0", "1"), value) == "1" or None


def _positive_number(value: str) -> int:
    if not is_count(value):
        raise ArgumentError(f"number of ranks must be from 1 to {MAX_RANKS}, got {quoted(value)}")
    return int(value)


def _domains(value: str) -> tuple[int, ...]:
    sizes = value.split("+")
    if not all(map(is_count, sizes)):
        raise ArgumentError(f"ranks per cache domain must look like 8 or 3+1+4, got {quoted(value)}")
    return tuple(map(int, sizes))


def _member(names: Sequence[str], value: str) -> str:
    if value not in names:
        raise ArgumentError(f"expected {one_of(names, value)}")
    return value


def _level(value: str) -> int:
    if value.upper() not in _LEVELS:
        raise ArgumentError(f"level must be {one_of(_LEVELS, value)}")
    return _LEVELS[value.upper()]


def positive_segment(value: str | int) -> int:
    """Return the segment size in bytes, at least one, from a keyword or variable; ArgumentError where it is none."""
    segment = parse_nbytes(value)
    if segment < 1:
        raise ArgumentError(f"segment must be at least 1 byte, got {quoted(value)}")
    return segment


_DURATION = "a time: `60s`, `10m`, `500ms`, or seconds without a unit"
_SIZE = "a size: `8`, `64K`, `1.5M`, `1G`"
_ALGORITHM = (
    f"an algorithm of that collective, or `{NATIVE}`",
    "the algorithm of all calls of that collective, v forms included; a call that it cannot serve is an `ArgumentError`",
    "chosen per call",
    "algorithms",
)
VARIABLES = (
    Variable(
        VARIABLE,
        f"names of files, with `{os.pathsep}` between them",
        "algorithms of your own, found by their names from then on; a `.py` file is run",
        "none",
        "files",
        read_files,
    ),
    *(Variable(f"{PREFIX}{name.upper()}", *_ALGORITHM, partial(_algorithm, name)) for name in COLLECTIVES),
    Variable(
        "HPCOLL_SEGMENT", _SIZE, "segment size of all calls", "chosen per call", "segment", positive_segment
    ),
    Variable(
        "HPCOLL_ORDER",
        f"`{RANK_ORDER}`",
        'all reductions of arrays combine contributions as with `order="rank"`: by one expression in rank order, whatever runs',
        "the order is the algorithm's",
        "order",
        partial(_member, (RANK_ORDER,)),
    ),
    Variable(
        TUNING,
        "a file",
        "table that `hpcoll tune` wrote, from which algorithms and segments are picked",
        "the built-in model decides",
        "tuning",
        _file_name,
    ),
    Variable(
        "HPCOLL_SHM",
        f"{_SIZE}; `0` for none",
        "most shared memory per node, for all communicators and symmetric arrays together",
        "half of what others leave in `/dev/shm`",
        "shm",
        parse_nbytes,
    ),
    Variable(
        "HPCOLL_SHM_RANKS",
        "a number of ranks",
        "ranks of a node share memory in groups of so many neighbours only",
        "all ranks of a node",
        "shm_ranks",
        _positive_number,
    ),
    Variable(
        "HPCOLL_SHM_COPY",
        " or ".join(f"`{name}`" for name in COPIES),
        "how long messages get to ranks of the node: staged in shared memory, or copied once by the kernel from the sender's own memory",
        "what was measured to be faster, else staged, and both in turns where cores share no cache",
        "shm_copy",
        partial(_member, COPIES),
    ),
    Variable(
        "HPCOLL_DOMAINS",
        "ranks per cache domain, `8` or `3+1+4`",
        "ranks of a node that share a last-level cache, in order and again from the first size on",
        "what the system says of the cores that ranks are bound to",
        "domains",
        _domains,
    ),
    Variable(
        "HPCOLL_CUDA_PATH",
        ", ".join(f"`{name}`" for name in CUDA_PATHS),
        "the route of GPU arrays between ranks",
        "picked per peer",
        "cuda_path",
        partial(_member, CUDA_PATHS),
    ),
    Variable(
        "HPCOLL_CHECK",
        f"`{EVERY_CALL}`",
        "every blocking collective is compared on all ranks before it runs, in 0.2 ms or more",
        "messages of what hpcoll runs itself carry a check of their call",
        "check",
        partial(_member, (EVERY_CALL,)),
    ),
    Variable(
        "HPCOLL_WARN",
        f"{_DURATION}; `0` for never",
        "after how long a collective that does not end is warned about: who waits for whom; messages are not watched",
        "`60s`",
        "warn",
        parse_seconds,
    ),
    Variable(
        "HPCOLL_TIMEOUT",
        f"{_DURATION}; `0` for never",
        "after how long a collective that does not end raises `CollectiveTimeout` on all ranks",
        "never",
        "timeout",
        lambda value: parse_seconds(value) or None,
    ),
    Variable(
        "HPCOLL_RECORD",
        "a folder",
        "where each rank writes what it has called, for `hpcoll inspect`, when a call fails and at SIGUSR2",
        "nothing is written",
        "record",
        _file_name,
    ),
    Variable(
        "HPCOLL_SUMMARY",
        "`1`",
        "at the end of the program rank 0 prints who came late, by how much, where; at Ctrl-C what it knows alone",
        "nothing is printed",
        "summary",
        _switch,
    ),
    Variable(
        "HPCOLL_TRACE",
        "a folder, or `folder:steps`",
        "where the run writes a trace of its calls, and of their steps, for `hpcoll trace`",
        "nothing is written",
        "trace",
        tracing,
    ),
    Variable(
        "HPCOLL_METRICS",
        "a folder",
        "where each rank writes its sums as Prometheus text every ten seconds",
        "nothing is written",
        "metrics",
        _file_name,
    ),
    Variable(
        TRACEBACK,
        f"`{FULL}`",
        "errors that a program does not catch are printed with hpcoll's own frames, and on each rank with who called what",
        "hpcoll's frames are left out, and one rank of each node prints who called what",
        "traceback",
        partial(_member, (FULL,)),
    ),
    Variable(
        SITE,
        f"folders, with `{os.pathsep}` between them",
        "compiled code that a site offers, made by `hpcoll warmup --to`; looked into before the user's own cache, and never written",
        "the user's own cache alone",
        "cache",
        _file_name,
    ),
    Variable(
        "HPCOLL_START_TIMEOUT",
        _DURATION,
        "how long ranks that no launcher of MPI has started wait for each other",
        "`30m`",
        "start_timeout",
        parse_seconds,
    ),
    Variable(
        "HPCOLL_KEY",
        "any text, the same for all ranks",
        "the secret by which such ranks know each other",
        "a file in the user's cache",
        "has_key",
        bool,
    ),
    Variable(
        "HPCOLL_DEBUG",
        ", ".join(f"`{name.lower()}`" for name in _LEVELS),
        "how much is logged; `info` says what was picked and why, `trace` also how messages get to the peers of each rank",
        "`warn`",
        "level",
        _level,
    ),
)
_BY_NAME = {variable.name: variable for variable in VARIABLES}
_AGREED = (
    "HPCOLL_SEGMENT",
    "HPCOLL_ORDER",
    TUNING,
    "HPCOLL_SHM",
    "HPCOLL_SHM_RANKS",
    "HPCOLL_SHM_COPY",
    "HPCOLL_DOMAINS",
    "HPCOLL_CUDA_PATH",
    "HPCOLL_CHECK",
    "HPCOLL_TIMEOUT",
    "HPCOLL_SUMMARY",
    "HPCOLL_TRACE",
)


def meant_variable(unknown: str) -> str:
    """Return which variable was meant by an unknown one, as a question; where none is like it, all of them."""
    names = [variable.name for variable in VARIABLES]
    return meant(names, unknown, PREFIX) or f"; the variables of hpcoll are {', '.join(names)}"


def read_config(environment: Mapping[str, str] | None = None) -> Config:
    """Read the settings from environment variables, those of the process unless others are given.

    The ArgumentError for a value that a variable does not take names both.
    """
    environment = os.environ if environment is None else environment
    settings: dict[str, Any] = {}
    algorithms: dict[str, str] = {}
    unknown: set[str] = set()
    ours = sorted(name for name in environment if name.startswith(PREFIX))
    for name in sorted(ours, key=lambda name: name != VARIABLE):  # others may name algorithms of these files
        collective = name.removeprefix(PREFIX).lower()
        variable = _BY_NAME.get(name.upper() if collective in COLLECTIVES else name)
        if variable is None:
            unknown.add(name)
            continue
        try:
            value = variable.parse(environment[name].strip())
        except ArgumentError as error:
            raise ArgumentError(f"environment variable {printable(name)}: {error}") from None
        if collective in COLLECTIVES:
            algorithms[collective] = value
        else:
            settings[variable.field] = value
    return Config(algorithms, unknown=frozenset(unknown), registered=compared(), **settings)
