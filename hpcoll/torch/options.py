"""The options of a process group, as ``pg_options=`` of ``init_process_group`` and ``new_group``."""

from dataclasses import dataclass

from mpi4py import MPI

from hpcoll.comm.arguments.call import order_of


@dataclass(frozen=True)
class GroupOptions:
    """The options of a process group.

    Attributes:
        order: ``"rank"``: reductions by one expression in rank order, as in `hpcoll.Communicator.Allreduce`; None: what ``HPCOLL_ORDER``
            says.

    Raises:
        ArgumentError: Another order.
    """

    order: str | None = None

    def __post_init__(self) -> None:
        if self.order is not None:
            order_of(self.order, MPI.COMM_WORLD.rank)
