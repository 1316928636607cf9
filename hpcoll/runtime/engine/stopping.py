"""Messages of the MPI library that a run which ended badly has left under way: stopped where they can be, so that they write nowhere."""

import contextlib
import time

import numpy as np
from mpi4py import MPI

from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import Code
from hpcoll.runtime.transports.mpi import library


def stop(engine: HostEngine, most_s: float) -> bool:
    """Stop the messages of an engine that does not run, and wait for them for so long at most; whether none is under way."""
    rows, nrequests = engine.numbers(f.ROWS, len(engine.program.rows), f.NCOLUMNS), engine.program.nrequests
    kinds = {int(row[f.REQUEST]): int(row[f.CODE]) for row in rows if row[f.CODE] in (Code.SEND, Code.RECV)}
    if not kinds or MPI.Is_finalized():
        return True
    nbytes = engine.program.window * nrequests * library().request_nbytes
    handles = engine.numbers(f.REQUESTS, -(-nbytes // 8), 1).ravel().view(f"u{library().request_nbytes}")
    left = {place: MPI.Request.fromhandle(int(handles[place])) for place in np.flatnonzero(handles != library().request_null).tolist()}
    for place, request in left.items():
        if kinds.get(place % nrequests) == Code.RECV:  # cancelled, unless it has begun
            with contextlib.suppress(MPI.Exception):
                request.Cancel()
    end = time.monotonic() + most_s
    while True:
        for place in [place for place, request in left.items() if _ended(request)]:
            handles[place] = library().request_null
            del left[place]
        if not left or time.monotonic() > end:
            return not left


def _ended(request: MPI.Request) -> bool:
    with contextlib.suppress(MPI.Exception):
        return request.Test()
    return False
