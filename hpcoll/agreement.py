"""Settings that all ranks of a communicator share, and the log. Floor 7."""

import logging
import os
import sys

from mpi4py import MPI

from hpcoll.config import Config, log, read_config
from hpcoll.errors import ArgumentError


def agree(comm: MPI.Intracomm) -> tuple[Config, list[str]]:
    """This process's settings, after checking that all ranks have the same, and every rank's host; collective.

    Raises:
        ArgumentError: on every rank, when a rank's settings are wrong or differ from rank 0's.
    """
    problem, config = "", Config()
    try:
        config = read_config()
    except ArgumentError as error:
        problem = str(error)
    found = comm.allgather((problem, config.agreement(), MPI.Get_processor_name()))
    for rank, (theirs, agreement, _) in enumerate(found):
        if theirs:
            raise ArgumentError(f"rank {rank}: {theirs}")
        if agreement != found[0][1]:
            raise ArgumentError(f"rank {rank}: HPCOLL_* variables must be equal on all ranks, expected {found[0][1]}, got {agreement}")
    _configure_log(config, comm.Get_rank())
    return config, [host for _, _, host in found]


def _configure_log(config: Config, rank: int) -> None:
    """A handler for more than warnings, unless the program has one; each unknown variable is named once, by rank 0."""
    if config.level < logging.WARNING and not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(f"{MPI.Get_processor_name()}:{os.getpid()} [{rank}] HPCOLL %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(config.level)
    for name in config.unknown - _named:
        _named.add(name)
        if rank == 0:
            log.warning("environment variable %s means nothing to hpcoll", name)


_named: set[str] = set()
