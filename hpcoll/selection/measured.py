"""The tuning file's content for a communicator, which rank 0 reads and broadcasts."""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mpi4py import MPI

from hpcoll.analysis.cost import HOSTS, ONE_HOST, Levels
from hpcoll.base.errors import ArgumentError
from hpcoll.selection import tuning
from hpcoll.selection.config import Table, log

_refused: set[tuple[str, str]] = set()


def site(hosts: Sequence[str]) -> tuning.Site:
    """Return the site of a communicator, from each rank's host."""
    text = " ".join(MPI.Get_library_version().replace("\0", " ").split())
    return tuning.Site(text, len(hosts), tuple(sorted(Counter(hosts).items())))


def measured(comm: MPI.Intracomm, name: str, hosts: Sequence[str]) -> tuple[Table, Levels | None]:
    """Return the table and constants that a tuning file has for a communicator; collective.

    Every rank raises ArgumentError when rank 0 cannot read the file or finds something wrong in it.
    """
    problem = ""
    result: tuple[Table, Levels | None] = {}, None
    if comm.Get_rank() == 0:
        try:
            document = tuning.read(Path(name))
            table, misfit = tuning.fit(document, site(hosts))
            result = table, _levels(name, document, site(hosts))
            if misfit is not None:
                _warn_of(name, misfit)
        except ArgumentError as error:
            problem = str(error)
    problem, result = comm.bcast((problem, result))
    if problem:
        raise ArgumentError(f"rank 0: {problem}")
    return result


def _levels(name: str, document: tuning.Document, here: tuning.Site) -> Levels | None:
    """Return the cost model's constants that a file has for a site; log where they were measured if elsewhere."""
    levels, misfit = tuning.fit_levels(document, here)
    if misfit is not None:
        _warn_of(name, misfit)
    for constants in levels.values():
        if constants.site != here:
            text = "tuning file %s: constants of level %s were measured with %d ranks on %s"
            log.info(
                text,
                name,
                constants.level,
                constants.site.nranks,
                ", ".join(host for host, _ in constants.site.hosts),
            )
    guessed = HOSTS if len(here.hosts) > 1 else ONE_HOST
    return (
        guessed._replace(**{level: constants.network for level, constants in levels.items()})
        if levels
        else None
    )


def _warn_of(name: str, misfit: tuning.Misfit) -> None:
    """Warn once per file and field, on one rank of the program; log the others as information."""
    level = logging.INFO
    if (name, misfit.field) not in _refused and MPI.COMM_WORLD.Get_rank() == 0:
        level = logging.WARNING
    _refused.add((name, misfit.field))
    text = (
        "tuning file %s does not fit this communicator: field %s has %s, this run has %s; the model decides"
    )
    log.log(level, text, name, misfit.field, misfit.found, misfit.expected)
