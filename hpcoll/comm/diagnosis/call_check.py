"""Calls that are compared on all ranks before they run, by messages of their own: what the checks of their messages cannot show.

With ``HPCOLL_CHECK=all`` those are all blocking collectives, the MPI library's own too; and always its own persistent requests.
"""

from typing import Any

import numpy as np

from hpcoll.base.errors import MismatchError, TransportError
from hpcoll.comm.arguments.methods import METHODS, NUMBERS, row_of
from hpcoll.comm.diagnosis.report import call_rows, tabled
from hpcoll.comm.plans.signature import Purpose, Signature, counted, differing, signed_nbytes
from hpcoll.comm.requests.call_hooks import BeginningCall
from hpcoll.comm.status.blocked_call import call_text
from hpcoll.comm.status.call_site import in_words, place_of_caller
from hpcoll.comm.status.names import region_text
from hpcoll.comm.team.resources import CommunicatorCalls
from hpcoll.runtime.program.fields import REGION
from hpcoll.runtime.telemetry.call_log import PROCESS
from hpcoll.schedules.collectives import COLLECTIVES

_NBYTES = 2048  # of what a rank says


def check_call(context: CommunicatorCalls, beginning: BeginningCall) -> None:
    """Compare a call that is about to run with those of the other ranks; collective.

    Where only the MPI library understands it, or its arrays are in GPU memory, method and root are compared.

    Args:
        context: Calls of the communicator, which is closed where they differ.
        beginning: The call.

    Raises:
        ArgumentError: The arguments are wrong.
        MismatchError: On every rank, quoting the call of each.
        CollectiveTimeout: Not all ranks came in time.
        PeerFailed: A rank is known to have ended.
    """
    row = row_of(beginning.method)
    arguments = beginning.arguments
    order = beginning.order
    root = None if beginning.root is None else context.caller.root(beginning.root)
    call = None if row.gpu_arrays(arguments, context.rank) else row.describe(context.caller, *arguments)
    if call is None:
        mine = _said([row.name, root, order], _named(row.name, root, order))
    else:
        signature = Signature.of(call)._replace(ordered=int(order is not None))
        weight = 0 if call.graph else signed_nbytes(call)  # a rank without neighbours knows no count
        said = [row.name, *signature, counted(call) * weight]
        mine = _said(said, signature.text(call.count), signature.how(said[-1]))
    _tell(context, _every(context, row.name, mine, beginning.limit_s))


def check_persistent(context: CommunicatorCalls, planned: BeginningCall) -> None:
    """Compare a persistent request that the MPI library serves with those of the other ranks; arguments and errors as of `check_call`."""
    method = planned.method
    root = planned.root

    def what() -> str:
        rooted = COLLECTIVES[METHODS[method].collective].rooted
        return f"{_named(f'{method}_init', root if rooted else None)} by the MPI library"

    try:
        numbers = context.resources.service_collectives.gather_number(
            hash((NUMBERS[method], root)), Purpose.PERSISTENT, what
        )
    except TransportError as error:
        context.interrupted(f"{method}_init", error)
        raise
    if len(set(numbers)) == 1:
        return
    _tell(context, _every(context, method, _said([f"{method}_init", root, None], what())))


def _every(
    context: CommunicatorCalls, method: str, mine: dict[str, Any], limit_s: float | None = None
) -> list[dict[str, Any]]:
    """Return what every rank says of its call; the call fails where not all do."""
    import json

    resources = context.resources
    sent = np.zeros(_NBYTES, np.uint8)
    every = np.zeros((resources.nranks, _NBYTES), np.uint8)
    text = json.dumps(mine).encode()[:_NBYTES]
    sent[: len(text)] = np.frombuffer(text, np.uint8)
    try:
        resources.service_collectives.gather(sent, every, Purpose.COMPARISON, mine["what"], limit_s)
    except TransportError as error:
        context.interrupted(method, error)
        raise
    return [json.loads(row.tobytes().rstrip(b"\0")) for row in every]


def _tell(context: CommunicatorCalls, calls: list[dict[str, Any]]) -> None:
    """Raise MismatchError, on all ranks alike, if their calls differ."""
    different = list[Any]()
    for call in calls:
        if call["call"] not in different:
            different.append(call["call"])
    if all(_alike(one, other) for one in different for other in different):
        return
    only_how = len({call["what"] for call in calls}) == 1
    how = differing([call["how"] if only_how else None for call in calls])
    made = [call_text(call["what"], call["where"], call["region"]) for call in calls]
    rows = call_rows([", ".join([text, *how[rank]]) for rank, text in enumerate(made)])
    context.close("ranks did not call the same")
    text = tabled(f"ranks do not call the same on {context.resources.title}", rows)
    raise MismatchError(text, rank=context.rank, call=made[context.rank])


def _said(call: list[Any], what: str, how: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what a rank says of its call: the words that are compared, and texts; ``how`` it runs is told where nothing else differs."""
    place = in_words(place_of_caller())
    region = region_text(int(PROCESS[REGION]))
    return {"call": call, "what": what, "how": how, "where": place[-200:], "region": region[-200:]}


def _named(method: str, root: Any, order: str | None = None) -> str:
    given = {"root": root, "order": order}
    return f"{method}({', '.join(f'{name}={value!r}' for name, value in given.items() if value is not None)})"


def _alike(one: list[Any], other: list[Any]) -> bool:
    if len(one) != len(other):  # one of them only the MPI library understands
        return bool(one[0] == other[0])
    if len(one) == 3:
        return one == other
    ours, theirs = (Signature(*said[1:-1]).compared for said in (one, other))
    return bool(one[0] == other[0] and one[-1] == other[-1] and ours == theirs)
