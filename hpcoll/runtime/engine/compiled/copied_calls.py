"""Compiled: a short call on GPU arrays, in one crossing: to page-locked memory, the host's call, and back; or by a one-shot kernel."""

from numba import njit

from hpcoll.runtime.engine.compiled import progress
from hpcoll.runtime.engine.compiled.call_lookup import run_cached
from hpcoll.runtime.engine.compiled.checks import wants_look
from hpcoll.runtime.engine.compiled.ffi import (
    INT,
    LONG,
    c_function,
    call_with_address,
    pointer,
    release_gil,
    take_gil,
)
from hpcoll.runtime.engine.compiled.interpreter import run
from hpcoll.runtime.program import call_fields as c
from hpcoll.runtime.program import copy_fields as g
from hpcoll.runtime.program import fields as f

_is_capturing = c_function(INT, LONG, LONG)  # stream, answer
_range = c_function(INT, LONG, LONG, LONG)  # start and bytes of the allocation, address
_copy = c_function(INT, LONG, LONG, LONG, LONG)  # destination, source, bytes, stream
_record = c_function(INT, LONG, LONG)  # event, stream


@njit(nogil=True)
def run_copied(address, sent, received, stream):  # type: ignore[no-untyped-def]
    """Run a call on arrays at two addresses, 0 where there is none; the caller has the GIL, which is released while it waits.

    The answer is one of `call_lookup.run_cached`, of `progress.start` for a persistent request, or `NOT_STORED`. Where the arrays need a
    closer look it is `MISS`. The result is on the GPU only with `DONE` and `NOTED`.
    """
    words, status = pointer(address), c.MISS
    thread = release_gil(())
    fetched = _fetch(address, sent, received, stream)
    if fetched and words[g.EVENT]:
        status = _run_one_shot(words[g.ENGINE], sent if sent else received, received if received else sent)
    elif fetched and words[g.ENGINE]:
        status = progress.start(words[g.ENGINE], words[g.SEND], words[g.RECV])
    take_gil((thread,))
    if fetched and not words[g.ENGINE]:
        status = run_cached(words[g.TABLE], words[g.SEND], words[g.RECV], words[g.OP])
    if status == f.DONE or status == f.NOTED:
        thread = release_gil(())
        stored = _store(address, sent, received, words[g.HOME] or stream)
        take_gil((thread,))
        return status if stored else g.NOT_STORED
    return status


@njit(nogil=True)
def _run_one_shot(engine, source, target):  # type: ignore[no-untyped-def]
    """Run an engine; of a persistent request as that is started."""
    state = pointer(engine)
    if state[f.CELL]:
        return progress.start(engine, source, target)
    status = run(engine, source, target, f.AS_BEFORE)
    return f.NOTED if status == f.DONE and wants_look(state) else status


@njit(nogil=True)
def _fetch(address, sent, received, stream):  # type: ignore[no-untyped-def]
    """Copy what the call reads to the host, behind the work on the stream; say whether that is done."""
    words, found = pointer(address), address + 8 * g.FOUND
    if _is_capturing(words[g.IS_CAPTURING], (stream, found)) != 0 or words[g.FOUND] & 0xFFFFFFFF != 0:
        return False
    apart = sent + words[g.SENT + g.NBYTES] <= received or received + words[g.RECEIVED + g.NBYTES] <= sent
    if sent != 0 and received != 0 and not apart:
        return False
    for side, at in ((g.SENT, sent), (g.RECEIVED, received)):
        if at != 0:
            if _range(words[g.ADDRESS_RANGE], (found, found + 8, at)) != 0:
                return False
            if at + words[side + g.NBYTES] > words[g.FOUND] + words[g.FOUND + 1]:
                return False
    for side, at in ((g.SENT, sent), (g.RECEIVED, received)):
        if at != 0 and words[side + g.FETCHED]:
            copy = words[side + g.HOST], at, words[side + g.NBYTES], stream
            if _copy(words[g.COPY_ASYNC], copy) != 0:
                return False
    if words[g.EVENT]:
        return _record(words[g.RECORD_EVENT], (words[g.EVENT], stream)) == 0
    return call_with_address(words[g.SYNCHRONIZE], (stream,)) == 0


@njit(nogil=True)
def _store(address, sent, received, stream):  # type: ignore[no-untyped-def]
    """Copy the result to the GPU; say whether that is done."""
    words = pointer(address)
    for side, at in ((g.SENT, sent), (g.RECEIVED, received)):
        if at != 0 and words[side + g.STORED]:
            copy = at, words[side + g.HOST], words[side + g.NBYTES], stream
            if _copy(words[g.COPY_ASYNC], copy) != 0:
                return False
            return call_with_address(words[g.SYNCHRONIZE], (stream,)) == 0
    return True
