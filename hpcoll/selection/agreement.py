"""The settings of a communicator, which all its ranks must share, and the handler of the log.

Wrong settings are an error like any other where a program catches it. Where none does, the stacks of all ranks would say nothing more
than its text, which stands for the environment and not for a place in the program: so one rank of the node prints that text.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from zlib import crc32

from mpi4py import MPI

from hpcoll.base.agreement import agreed
from hpcoll.base.disk_cache import lock_folder
from hpcoll.base.errors import ArgumentError, SettingsError
from hpcoll.runtime.telemetry.status_page import launcher
from hpcoll.runtime.transports.mpi import host_name
from hpcoll.selection.config import Config, log, meant_variable, read_config
from hpcoll.selection.processes import Process, Processes, tell_all

_named: set[str] = set()  # unknown variables that were warned about
# keeps the lock by which the other ranks of the node know that this one has spoken
_until_the_end = ExitStack()


def agree(
    comm: MPI.Intracomm, mine: Process, first: int, known: Processes | None = None
) -> tuple[Config, Processes]:
    """Return the settings, after checking that all ranks have the same, and every rank's process; collective.

    Args:
        comm: Communicator of the ranks.
        mine: Process of this rank.
        first: Lowest rank with which this one shares memory.
        known: All ranks' processes, where the ranks have agreed before and nothing has changed; no message is sent then.

    Raises:
        SettingsError: On every rank: a rank's settings are wrong or differ from rank 0's, or rank 0 cannot read the tuning file.
    """
    problem, config = "", Config()
    try:
        config = read_config()
    except ArgumentError as error:
        problem = f"rank {comm.Get_rank()}: {error}"
    with _said_once():
        if known is None:
            facts = config.agreement()
            known, same = tell_all(comm, mine, first, "" if problem else repr(facts))
            if not same:
                agreed(comm.allgather, problem, facts)
        _configure_log(config, comm.Get_rank())
        if config.tuning is not None and len(known) > 1:
            from hpcoll.selection.measured import measured

            table, levels = measured(comm, config.tuning, known.hosts)
            config = config._replace(table=table, levels=levels)
    return config, known


@contextmanager
def _said_once() -> Iterator[None]:
    """Make a refusal a `SettingsError`, which ends a program that does not catch it with one line (`hpcoll.comm.status.uncaught`)."""
    try:
        yield
    except ArgumentError as error:
        raise SettingsError(str(error)) from None


def first_of_node(what: str) -> bool:
    """Say whether this rank is the first of its node to say something, by a lock; each one is where no folder for locks can be had."""
    if MPI.COMM_WORLD.size == 1:
        return True
    try:
        folder = _until_the_end.enter_context(closing(lock_folder()))
        return _until_the_end.enter_context(folder.lock("first", byte=crc32(f"{what} {launcher()}".encode())))
    except OSError:
        return True


def _configure_log(config: Config, rank: int) -> None:
    """Add a handler for more than warnings, unless the program has one; let rank 0 warn of each unknown variable once."""
    if config.level < logging.WARNING and not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        host = host_name().replace("%", "%%")
        handler.setFormatter(
            logging.Formatter(f"{host}:{os.getpid()} [{rank}] HPCOLL %(levelname)s %(message)s")
        )
        log.addHandler(handler)
        log.setLevel(config.level)
    for name in config.unknown - _named:
        _named.add(name)
        if rank == 0:
            log.warning("environment variable %s means nothing%s", name, meant_variable(name))
