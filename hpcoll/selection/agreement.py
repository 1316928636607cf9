"""The settings of a communicator, which all its ranks must share."""

from dataclasses import replace

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.selection.config import Config, read_config
from hpcoll.selection.logs import configure_log


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
        for name in sorted(agreement.keys() | found[0][1].keys()):
            expected, got = (repr(one[name]) if name in one else "none" for one in (found[0][1], agreement))
            if expected != got:
                raise ArgumentError(f"rank {rank}: {name} must be equal on all ranks, expected {expected} as on rank 0, got {got}")
    configure_log(config, comm.Get_rank())
    hosts = [host for _, _, host in found]
    if config.tuning is not None and len(hosts) > 1:
        from hpcoll.selection.measured import measured

        table, levels = measured(comm, config.tuning, hosts)
        config = replace(config, table=table, levels=levels)
    return config, hosts
