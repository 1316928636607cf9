"""Calls of which it is known who came last."""

from typing import NamedTuple

import numpy as np

from hpcoll.comm.team.resources import Resources


class ComparedCalls(NamedTuple):
    """Calls in a row on one message context, after the ranks have told each other when each began them.

    Attributes:
        resources: Resources of the communicator.
        lane: Position of the message context among `Resources.every_message_context`; 0: blocking calls.
        first: Number of the first call.
        records: int64 ``(n, RECORD_NFIELDS)``: this rank's records (`hpcoll.runtime.program.fields`), in order.
        owner: int64 ``(n,)``: rank of the communicator for which this rank waited; -1: it waited for none.
        waited: int64 ``(n,)``: nanoseconds of that wait, 0 where there was none.
    """

    resources: Resources
    lane: int
    first: int
    records: np.ndarray
    owner: np.ndarray
    waited: np.ndarray
