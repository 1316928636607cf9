"""``HPCOLL_CHECK=all``: every blocking collective is compared on all ranks before it runs, by a message of its own.

That covers what the checks of messages do not: what the MPI library serves.
"""

from typing import Any, Protocol

import numpy as np

from hpcoll.base.errors import MismatchError, TransportError
from hpcoll.base.units import ranks_in_words
from hpcoll.comm.caller import in_words, place_of_caller
from hpcoll.comm.calls.call import Call
from hpcoll.comm.calls.methods import Caller, Method
from hpcoll.comm.resources import Resources
from hpcoll.comm.signature import Purpose, Signature, signed_nbytes

_NBYTES = 2048  # of what a rank says


class Comparing(Protocol):
    """What comparing needs of a context."""

    resources: Resources
    rank: int
    caller: Caller

    def close(self, why: str) -> None:
        """Refuse further use."""

    def interrupted(self, what: str, error: BaseException) -> None:
        """It did not end: tell the others, and refuse further use."""


def compare(context: Comparing, row: Method, arguments: tuple[Any, ...], root: Any, limit_s: float | None = None) -> None:
    """Compare a call that is about to run with those of the other ranks; collective.

    Where only the MPI library understands it, or its arrays are in GPU memory, method and root are compared.

    Args:
        context: Of the communicator, which is closed where they differ.
        row: The method.
        arguments: The caller's positional ones; ``root`` among them, or None.
        limit_s: Seconds that it may take; None: what ``HPCOLL_TIMEOUT`` says.
    Raises:
        ArgumentError: the arguments are wrong.
        MismatchError: on every rank, quoting the call of each.
        CollectiveTimeout: not all ranks came in that time. PeerFailed: one is known to have ended.
    """
    import json

    on, call = context.resources, None if row.gpu_arrays(arguments, context.rank) else row.describe(context.caller, *arguments)
    mine = _said(row.name, call, root if root is None else context.caller.root(root))
    sent, every = np.zeros(_NBYTES, np.uint8), np.zeros((on.nranks, _NBYTES), np.uint8)
    text = json.dumps(mine).encode()[:_NBYTES]
    sent[: len(text)] = np.frombuffer(text, np.uint8)
    try:
        on.agreements.gather(sent, every, Purpose.COMPARISON, mine["what"].rpartition(" at ")[0], limit_s)
    except TransportError as error:
        context.interrupted(row.name, error)
        raise
    calls = [json.loads(one.tobytes().rstrip(b"\0")) for one in every]
    different = {json.dumps(one["call"]): one["call"] for one in calls}.values()
    if all(_alike(one, other) for one in different for other in different):  # the same answer on all ranks
        return
    found: dict[str, list[int]] = {}
    for rank, one in enumerate(calls):
        found.setdefault(one["what"], []).append(rank)
    each = "; ".join(f"{ranks_in_words(ranks)}: {what}" for what, ranks in found.items())
    context.close("ranks did not call the same")
    raise MismatchError(f"rank {on.rank}: ranks do not call the same on {on.title}: {each}")


def _said(method: str, call: Call | None, root: Any) -> dict[str, Any]:
    """What a rank says of its call: what is compared, and in words."""
    where = in_words(place_of_caller())
    if call is None:
        return {"call": [method, root], "what": f"{method}({'' if root is None else f'root={root}'}) at {where[-200:]}"}
    signature = Signature.of(call)
    counted = call.count if signed_nbytes(call) else 0
    return {"call": [method, *signature, counted], "what": f"{signature.text(call.count)} at {where[-200:]}"}


def _alike(one: list[Any], other: list[Any]) -> bool:
    if len(one) != len(other):  # one of them only the MPI library understands
        return bool(one[0] == other[0])
    if len(one) == 2:
        return one == other
    return bool(one[0] == other[0] and one[-1] == other[-1] and Signature(*one[1:-1]).compared == Signature(*other[1:-1]).compared)
