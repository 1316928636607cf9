"""The settings of a communicator, which all its ranks must share."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.selection.config import Config, read_config
from hpcoll.selection.logs import configure_log
from hpcoll.selection.topology import Process


def agree(comm: MPI.Intracomm, mine: Process, known: Sequence[Process] | None = None) -> tuple[Config, Sequence[Process]]:
    """This process's settings, after checking that all ranks have the same, and every rank's process; collective.

    Args:
        comm: Of the ranks.
        mine: This rank's process.
        known: Of all ranks, where they have agreed before and nothing has changed on any; they do so without a message then.

    Raises:
        ArgumentError: on every rank, when a rank's settings are wrong or differ from rank 0's, or when rank 0 cannot read the
            tuning file or finds something wrong in it.
    """
    problem, config = "", Config()
    try:
        config = read_config()
    except ArgumentError as error:
        problem = str(error)
    if known is None:
        found = comm.allgather((problem, config.agreement(), mine))
        _check(found)
        known = [process for _, _, process in found]
    configure_log(config, comm.Get_rank())
    if config.tuning is not None and len(known) > 1:
        from hpcoll.selection.measured import measured

        table, levels = measured(comm, config.tuning, [one.host for one in known])
        config = replace(config, table=table, levels=levels)
    return config, known


def _check(found: Sequence[tuple[str, dict[str, Any], Process]]) -> None:
    for rank, (problem, agreement, _) in enumerate(found):
        if problem:
            raise ArgumentError(f"rank {rank}: {problem}")
        for name in sorted(agreement.keys() | found[0][1].keys()):
            expected, got = (repr(one[name]) if name in one else "none" for one in (found[0][1], agreement))
            if expected != got:
                raise ArgumentError(f"rank {rank}: {name} must be equal on all ranks, expected {expected} as on rank 0, got {got}")
