"""Settings that all ranks of a communicator share, and the log."""

import logging
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

from hpcoll.analysis.cost import Levels
from hpcoll.base.errors import ArgumentError
from hpcoll.selection import tuning
from hpcoll.selection.choose import HOSTS, ONE_HOST
from hpcoll.selection.config import Config, Table, log, read_config


def agree(comm: MPI.Intracomm) -> tuple[Config, list[str]]:
    """This process's settings, after checking that all ranks have the same, and every rank's host; collective.

    Raises:
        ArgumentError: on every rank, when a rank's settings are wrong or differ from rank 0's, or when rank 0 cannot read the
            tuning file or finds something wrong in it.
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
    hosts = [host for _, _, host in found]
    if config.tuning is not None and len(hosts) > 1:
        table, levels = _agreed_tuning(comm, config.tuning, hosts)
        config = replace(config, table=table, levels=levels)
    return config, hosts


def site(hosts: Sequence[str]) -> tuning.Site:
    """Where a communicator with these hosts, one per rank, measures."""
    text = " ".join(MPI.Get_library_version().replace("\0", " ").split())
    return tuning.Site(text, len(hosts), tuple(sorted(Counter(hosts).items())))


def _agreed_tuning(comm: MPI.Intracomm, name: str, hosts: Sequence[str]) -> tuple[Table, Levels | None]:
    """What the tuning file says about this communicator; rank 0 reads it, and nobody else does.

    Raises:
        ArgumentError: on every rank, when the file cannot be read or something in it is wrong.
    """
    problem = ""
    found: tuple[Table, Levels | None] = {}, None
    if comm.Get_rank() == 0:
        try:
            document = tuning.read(Path(name))
            table, misfit = tuning.fit(document, site(hosts))
            found = table, _levels(name, document, site(hosts))
            if misfit is not None:
                _warn_of(name, misfit)
        except ArgumentError as error:
            problem = str(error)
    problem, found = comm.bcast((problem, found))
    if problem:
        raise ArgumentError(f"rank 0: {problem}")
    return found


def _levels(name: str, document: tuning.Document, here: tuning.Site) -> Levels | None:
    """The model's constants that a file has for a site; says where they were measured if that was elsewhere."""
    found, misfit = tuning.fit_levels(document, here)
    if misfit is not None:
        _warn_of(name, misfit)
    for one in found.values():
        if one.site != here:
            text = "tuning file %s: constants of level %s were measured with %d ranks on %s"
            log.info(text, name, one.level, one.site.nranks, ", ".join(host for host, _ in one.site.hosts))
    guessed = HOSTS if len(here.hosts) > 1 else ONE_HOST
    return guessed._replace(**{level: one.network for level, one in found.items()}) if found else None


def _warn_of(name: str, misfit: tuning.Misfit) -> None:
    """Warn once per file and field, and on one rank however many communicators there are; of the others, tell who asks for it."""
    level = logging.INFO
    if (name, misfit.field) not in _refused and MPI.COMM_WORLD.Get_rank() == 0:
        level = logging.WARNING
    _refused.add((name, misfit.field))
    text = "tuning file %s does not fit this communicator: field %s has %s, this run has %s; the model decides"
    log.log(level, text, name, misfit.field, misfit.found, misfit.expected)


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
_refused: set[tuple[str, str]] = set()
