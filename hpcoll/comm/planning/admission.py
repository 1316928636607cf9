"""The admission of registered algorithms to calls of a communicator: proven, and alike on all ranks, before any message of a call."""

from collections.abc import Callable

from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.base.text import ranks_in_words
from hpcoll.comm.arguments.call import Call
from hpcoll.comm.plans.signature import Purpose
from hpcoll.schedules.placement import Nodes
from hpcoll.schedules.row import Algorithm

Gather = Callable[[int, Purpose, Callable[[], str]], list[int]]


class Admission:
    """The registered rows that a communicator has used, with roots. What is new here is new on all ranks, in the same call."""

    def __init__(self) -> None:
        self._used: set[tuple[Algorithm, int]] = set()

    def admit(self, row: Algorithm, call: Call, nodes: Nodes, gather_number: Gather | None) -> None:
        """Prove a row for a call; at its first use with a root compare its schedules on all ranks.

        Args:
            row: The row, with the graph of the call.
            call: The call that it is to serve.
            nodes: Placement of all ranks.
            gather_number: That of `hpcoll.comm.team.service_collectives.ServiceCollectives`; None: the call must not wait for other
                ranks, and nothing is compared.

        Raises:
            ScheduleError: It is wrong; on all ranks where it is the same on all.
            ArgumentError: It is not the same on all ranks; on all of them.
        """
        from hpcoll.registry.proof import CHUNKS, proven  # seldom needed

        found, refused = list[str](), None
        try:
            found = [
                proven(row, len(nodes), call.root, n, nodes if row.placed else ())
                for n in (CHUNKS if row.chunked else (1,))
            ]
        except ScheduleError as error:
            refused, found = error, [str(error)]
        if gather_number and (row, call.root) not in self._used:
            import hashlib  # which brings a library of ciphers

            mine = int(hashlib.blake2b("".join(found).encode(), digest_size=7).hexdigest(), 16)
            every = gather_number(
                mine, Purpose.SCHEDULES, lambda: f"{row.key}, whose schedules are compared at its first use"
            )
            if len(set(every)) > 1:
                raise ArgumentError(
                    f"{row.key} is not the same on all ranks, so nobody runs it: {_in_words(every)}"
                )
        self._used.add((row, call.root))
        if refused:
            raise refused


def _in_words(every: list[int]) -> str:
    kinds = [[rank for rank, one in enumerate(every) if one == number] for number in dict.fromkeys(every)]
    return "; ".join(
        f"{ranks_in_words(ranks)}: schedules of digest {every[ranks[0]]:014x}" for ranks in kinds
    )
