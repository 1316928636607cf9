"""The name of the backend, and the options of a process group, as ``pg_options=`` of ``init_process_group`` and ``new_group``."""

from dataclasses import dataclass

from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import quoted
from hpcoll.selection.config import RANK_ORDER

NAME = "hpcoll"  # of the backend
DEVICES = ["cpu", "cuda"]


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
        if self.order not in (None, RANK_ORDER):
            raise ArgumentError(f"order must be {RANK_ORDER!r} or None, got {quoted(self.order)}")
