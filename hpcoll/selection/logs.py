"""Where the log goes: a handler for the logger ``hpcoll``, and what it says of the settings."""

import logging
import os
import sys

from mpi4py import MPI

from hpcoll.base.text import printable
from hpcoll.selection.config import Config, log

_named: set[str] = set()


def configure_log(config: Config, rank: int) -> None:
    """A handler for more than warnings, unless the program has one; each unknown variable is named once, by rank 0."""
    if config.level < logging.WARNING and not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        host = printable(MPI.Get_processor_name()).replace("%", "%%")
        handler.setFormatter(logging.Formatter(f"{host}:{os.getpid()} [{rank}] HPCOLL %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(config.level)
    for name in config.unknown - _named:
        _named.add(name)
        if rank == 0:
            log.warning("environment variable %s means nothing to hpcoll", name)
