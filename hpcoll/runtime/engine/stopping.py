"""Messages of the MPI library that a run which ended badly has left under way: stopped, so that they write nowhere any more."""

import contextlib

import numpy as np
from mpi4py import MPI

from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import Code
from hpcoll.runtime.transports.mpi import library

_TRIES = 1000  # of a message that is about to end


def stop(engine: HostEngine) -> bool:
    """Stop the messages of an engine that does not run; whether none is under way."""
    rows, nrequests = engine.numbers(f.ROWS, len(engine.program.rows), f.NCOLUMNS), engine.program.nrequests
    kinds = {int(row[f.REQUEST]): int(row[f.CODE]) for row in rows if row[f.CODE] in (Code.SEND, Code.RECV)}
    if not kinds or MPI.Is_finalized():
        return True
    nbytes = engine.program.window * nrequests * library().request_nbytes
    handles = engine.numbers(f.REQUESTS, -(-nbytes // 8), 1).ravel().view(f"u{library().request_nbytes}")
    for place in np.flatnonzero(handles != library().request_null).tolist():
        if _ends(MPI.Request.fromhandle(int(handles[place])), receives=kinds.get(place % nrequests) == Code.RECV):
            handles[place] = library().request_null
    return bool((handles == library().request_null).all())


def _ends(request: MPI.Request, *, receives: bool) -> bool:
    """Whether a message has ended; a receive is cancelled, unless it has begun."""
    with contextlib.suppress(MPI.Exception):
        if receives:
            request.Cancel()
        return any(request.Test() for _ in range(_TRIES))
    return False
