"""Compiled: collectives in flight, a table of engines that the progress thread advances, or whoever waits.

Each operation has a slot. A thread takes its OWNER word before it advances it. Operations of one message context run in the order of
their tickets. The progress thread parks on a semaphore while nothing is in flight.
"""

from numba import njit

from hpcoll.runtime.engine.compiled import ffi
from hpcoll.runtime.engine.compiled.checks import note_end
from hpcoll.runtime.engine.compiled.ffi import (
    call_with_address,
    exchange,
    load_acquire,
    pointer,
    store_release,
)
from hpcoll.runtime.engine.compiled.interpreter import advance_by_address, begin
from hpcoll.runtime.engine.compiled.local_ops import last_tick, nanoseconds
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program import progress_fields as p

# rounds without movement after which the progress thread sleeps between them, and parks if nothing is in flight
_HURRY, _REST = (
    50,
    150,
)
_YIELDS = 2000  # such rounds in which who waits yields, before it sleeps between them


@njit(nogil=True)
def _advance(table, slot):  # type: ignore[no-untyped-def]
    """Advance one operation; say whether it moved."""
    words, at = pointer(table), table + 8 * (p.SLOTS + p.SLOT * slot)
    fields = pointer(at)
    state = load_acquire(at + 8 * p.STATE)
    if (state != p.QUEUED and state != p.RUNNING) or not exchange(at + 8 * p.OWNER, 0, 1):
        return 0
    moved = 0
    state = load_acquire(at + 8 * p.STATE)
    engine = pointer(fields[p.ENGINE])
    first = state == p.QUEUED and load_acquire(fields[p.TICKETS]) == fields[p.TICKET]
    if first or state == p.RUNNING:
        if engine[f.ERROR] == f.GIVEN_UP:
            moved = -1
        elif first:
            moved = begin(fields[p.ENGINE], fields[p.INPUT], fields[p.OUTPUT])
            store_release(at + 8 * p.STATE, p.RUNNING)
        else:
            moved = advance_by_address(fields[p.ENGINE])
        if moved < 0 or engine[f.ENDED] == engine[f.NLANES]:
            if moved >= 0:
                note_end(engine, nanoseconds(fields[p.ENGINE]))
            store_release(fields[p.TICKETS], fields[p.TICKET] + 1)
            handle = fields[p.HANDLE]  # read before others may fill the slot again
            store_release(at + 8 * p.STATE, p.ENDED_BADLY if moved < 0 else p.ENDED_WELL)
            call_with_address(words[p.COMPLETE], (handle,))
            moved = 1
    store_release(at + 8 * p.OWNER, 0)
    return moved


@njit(nogil=True)
def _round(table):  # type: ignore[no-untyped-def]
    """Give each slot a turn; say whether anything has moved."""
    moved = 0
    for slot in range(load_acquire(table + 8 * p.HIGH)):
        moved |= _advance(table, slot)
    return moved


@njit(nogil=True)
def _in_flight(table):  # type: ignore[no-untyped-def]
    """Say whether any operation has not ended."""
    for slot in range(load_acquire(table + 8 * p.HIGH)):
        state = load_acquire(table + 8 * (p.SLOTS + p.SLOT * slot + p.STATE))
        if state in (p.QUEUED, p.RUNNING):
            return True
    return False


@njit(nogil=True)
def serve(table):  # type: ignore[no-untyped-def]
    """Advance all operations until told to stop: the progress thread."""
    words, idle = pointer(table), 0
    while load_acquire(table + 8 * p.STOP) == 0:
        idle = 0 if _round(table) else idle + 1
        if load_acquire(table + 8 * p.WAITERS) > 0:
            ffi.usleep(words[p.USLEEP], (100,))
        elif idle > _REST and not _in_flight(table):
            store_release(table + 8 * p.PARKED, 1)
            ffi.fence()  # here and in `activate`: of two who each write and then read what the other writes, one must see it
            if not _in_flight(table):
                call_with_address(words[p.SEM_WAIT], (words[p.SEMAPHORE],))
            store_release(table + 8 * p.PARKED, 0)
            idle = 0
        elif idle > _HURRY:
            ffi.usleep(words[p.USLEEP], (20,))
        elif idle:
            ffi.sched_yield(words[p.SCHED_YIELD], ())
    return 0


@njit(nogil=True)
def activate(table, slot, state):  # type: ignore[no-untyped-def]
    """Let the operation of a filled slot be advanced."""
    words = pointer(table)
    store_release(table + 8 * (p.SLOTS + p.SLOT * slot + p.STATE), state)
    ffi.fence()
    if load_acquire(table + 8 * p.PARKED):
        call_with_address(words[p.SEM_POST], (words[p.SEMAPHORE],))
    return 0


@njit(nogil=True)
def wait(table, slot, rounds, yields_after):  # type: ignore[no-untyped-def]
    """Advance all operations until one has ended, for so many rounds without movement at most; return its state.

    It yields after some of these, or sleeps between rounds at once where ``yields_after`` is below 0. It returns before Python would miss
    signals for long.
    """
    words, at, since = pointer(table), table + 8 * (p.SLOTS + p.SLOT * slot + p.STATE), 0
    yields_after, idle = max(0, yields_after), _YIELDS if yields_after < 0 else 0
    ffi.add(table + 8 * p.WAITERS, 1)
    while load_acquire(at) < p.ENDED_WELL and idle < rounds:
        idle, since = (0, 0) if _round(table) else (idle + 1, since)
        if idle > yields_after + _YIELDS:
            ffi.usleep(words[p.USLEEP], (1,))
        elif idle > yields_after:
            ffi.sched_yield(words[p.SCHED_YIELD], ())
        else:
            continue
        # room of all threads: torn, it is wrong by a second, and rounds count
        now = last_tick(words[p.CLOCK_GETTIME], table + 8 * p.CLOCK)
        since = since or now
        if now - since > f.STRETCH_NS:
            break
    ffi.add(table + 8 * p.WAITERS, -1)
    return load_acquire(at)


@njit(nogil=True)
def hold(table):  # type: ignore[no-untyped-def]
    """Keep all threads from advancing operations until `let_go`; return of how many slots."""
    words, held = pointer(table), load_acquire(table + 8 * p.HIGH)
    for slot in range(held):
        while not exchange(table + 8 * (p.SLOTS + p.SLOT * slot + p.OWNER), 0, 1):
            ffi.sched_yield(words[p.SCHED_YIELD], ())
    return held


@njit(nogil=True)
def let_go(table, held):  # type: ignore[no-untyped-def]
    """Let threads advance operations again."""
    for slot in range(held):
        store_release(table + 8 * (p.SLOTS + p.SLOT * slot + p.OWNER), 0)
    return 0


@njit(nogil=True)
def start(engine, input_address, output_address):  # type: ignore[no-untyped-def]
    """Begin a call, and go on while it moves: `DONE` where it is short and its peers are there, else `PENDING`, or `FAILED`.

    CELL is the memory of a persistent request's handle, or 0. `BUSY`: the handle is not null, so that the request is active. What is done
    at once leaves the handle of a completed request there. The ledger counts it without a time: to read the clock twice takes as long as a
    tenth of a short call.
    """
    state = pointer(engine)
    if state[f.CELL] and (pointer(state[f.CELL])[0] ^ state[f.NULL]) & state[f.HANDLE_MASK]:
        return f.BUSY
    moved, idle = begin(engine, input_address, output_address), 0
    while True:
        if moved < 0:
            return f.FAILED
        if state[f.ENDED] == state[f.NLANES]:
            note_end(state, state[f.STARTED])
            account = pointer(state[f.ACCOUNT])
            account[0] += 1
            account[2] += state[f.LEDGER_NBYTES]
            account[3] += 1
            if state[f.CELL]:
                ffi.memcpy(
                    state[f.MEMCPY],
                    (state[f.CELL], engine + 8 * f.STAND_IN, 8 if state[f.HANDLE_MASK] == -1 else 4),
                )
            return f.DONE
        idle = 0 if moved else idle + 1
        if idle >= state[f.LINGERS]:
            return f.PENDING
        if idle > state[f.STAYS]:
            ffi.sched_yield(state[f.SCHED_YIELD], ())
        moved = advance_by_address(engine)
