"""Settings from the environment.

``HPCOLL_<COLLECTIVE>=algorithm`` picks an algorithm, ``HPCOLL_SEGMENT=256K`` the segment size, ``HPCOLL_TUNING=FILE`` names a table
that ``hpcoll tune`` wrote, ``HPCOLL_SHM=1G`` limits shared memory, ``HPCOLL_CUDA_PATH=ipc``
forces a way for GPU arrays, ``HPCOLL_DEBUG=warn|info|trace`` says how much is logged. A
keyword of a call is stronger; unknown ``HPCOLL_*`` names are warned about.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hpcoll.analysis.cost import Levels
from hpcoll.base.errors import ArgumentError
from hpcoll.base.units import parse_nbytes
from hpcoll.schedules.catalogue import find
from hpcoll.schedules.collectives import COLLECTIVES

NATIVE = "native"  # the MPI library's own collective, a candidate like any other
_LEVELS = {"WARN": logging.WARNING, "INFO": logging.INFO, "TRACE": logging.DEBUG}
_PREFIX = "HPCOLL_"
DIRECT, IPC, STAGED, HOST = CUDA_PATHS = ("direct", "ipc", "staged", "host")  # ways for GPU arrays

log = logging.getLogger("hpcoll")


class Entry(NamedTuple):
    """One line of a tuning table; times are of the way of calling (out of place, in place, back to back) in which it does worst.

    Attributes:
        nbytes: m of the measured call, as the catalogue counts it.
        algorithm: A catalogue name, or ``native``.
        segment: Bytes per segment, at least 1; ``nbytes`` or more means the whole message.
        us: Microseconds of a call through a Communicator.
        native_us: Microseconds of the MPI library's own collective, called without one.
    """

    nbytes: int
    algorithm: str
    segment: int
    us: float
    native_us: float


Table = Mapping[str, Mapping[str, tuple[Entry, ...]]]  # class of element types -> collective -> entries in order of size


@dataclass(frozen=True)
class Config:
    """Settings of one process.

    Attributes:
        algorithms: Forced algorithm per collective.
        segment: Forced segment size in bytes, or None.
        level: Level for the logger ``hpcoll``.
        unknown: Variables of ours by name that mean nothing.
        tuning: Name of the tuning file, or None.
        shm: Most bytes of shared memory per node for all communicators together, 0 for none; None: half of what there is.
        shm_ranks: Most ranks of a node that share memory with each other, in groups of neighbours; None: all of them.
        table: What that file says about the communicator at hand; empty when it says nothing.
        cuda_path: One of `CUDA_PATHS` that GPU arrays must take, or None.
        levels: The cost model's constants that the tuning file has for the communicator at hand, or None; a level that was not
            measured has those of `hpcoll.selection.choose`.
    """

    algorithms: Mapping[str, str] = field(default_factory=dict)
    segment: int | None = None
    level: int = logging.WARNING
    unknown: frozenset[str] = frozenset()
    tuning: str | None = None
    shm: int | None = None
    shm_ranks: int | None = None
    table: Table = field(default_factory=dict)
    cuda_path: str | None = None
    levels: Levels | None = None

    def agreement(self) -> tuple[object, ...]:
        """What must be equal on all ranks of a communicator."""
        return tuple(sorted(self.algorithms.items())), self.segment, self.tuning, self.shm, self.shm_ranks, self.cuda_path


def check_algorithm(collective: str, algorithm: str) -> None:
    """Refuse a name that is neither ``native`` nor in the catalogue.

    Raises:
        ArgumentError: lists the names there are.
    """
    if algorithm != NATIVE:
        find(collective, algorithm)


def read_config(environment: Mapping[str, str] | None = None) -> Config:
    """Settings from environment variables.

    Args:
        environment: Default: ``os.environ``.
    Raises:
        ArgumentError: a known variable with a value that means nothing; names both.
    """
    environment = os.environ if environment is None else environment
    algorithms: dict[str, str] = {}
    unknown: set[str] = set()
    segment, level, tuning, shm, shm_ranks, cuda_path = None, logging.WARNING, None, None, None, None
    for name in sorted(name for name in environment if name.startswith(_PREFIX)):
        value, key = environment[name].strip(), name.removeprefix(_PREFIX)
        try:
            if key.lower() in COLLECTIVES:
                check_algorithm(key.lower(), value)
                algorithms[key.lower()] = value
            elif key == "SEGMENT":
                segment = positive_segment(value)
            elif key == "TUNING":
                if not value:
                    raise ArgumentError("expected the name of a file, got ''")
                tuning = value
            elif key == "SHM":
                shm = parse_nbytes(value)
            elif key == "SHM_RANKS":
                shm_ranks = _positive_number(value)
            elif key == "CUDA_PATH":
                if value not in CUDA_PATHS:
                    raise ArgumentError(f"expected one of {', '.join(CUDA_PATHS)}, got {value!r}")
                cuda_path = value
            elif key == "DEBUG":
                if value.upper() not in _LEVELS:
                    raise ArgumentError(f"level must be one of {', '.join(_LEVELS)}, got {value!r}")
                level = _LEVELS[value.upper()]
            else:
                unknown.add(name)
        except ArgumentError as error:
            raise ArgumentError(f"environment variable {name}: {error}") from None
    return Config(algorithms, segment, level, frozenset(unknown), tuning, shm, shm_ranks, cuda_path=cuda_path)


def _positive_number(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ArgumentError(f"number of ranks must be at least 1, got {value!r}")
    return int(value)


def positive_segment(value: str | int) -> int:
    """Segment size in bytes from a keyword or variable.

    Raises:
        ArgumentError: not a size of at least one byte.
    """
    segment = parse_nbytes(value)
    if segment < 1:
        raise ArgumentError(f"segment must be at least 1 byte, got {value!r}")
    return segment
