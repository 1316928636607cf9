"""Compiled: the checks by which messages tell calls apart, and what is noted of a call (`hpcoll.runtime.telemetry.call_log`).

Every message between local peers carries a check of its call and of all calls before it. So does the tag of every message of the MPI
library, which therefore meets no receive of another call.
"""

from numba import njit

from hpcoll.runtime.engine.compiled.ffi import memcpy, pointer, store_release
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES, Code

CHECK_BITS = 30

_CHECK = (1 << CHECK_BITS) - 1
# Of a signature.
_ELEMENT, _COMBINES = (1 << f.ELEMENT_BITS) - 1 << f.ELEMENT_AT, (1 << f.OP_BITS) - 1 << f.OP_AT

_RECORD_NBYTES = 8 * f.RECORD_NFIELDS
_HOT_NBYTES = f.RECORDS_HOT * _RECORD_NBYTES
_MOST = (1 << 60) - 1  # three such numbers have a sum
_SEND, _WAIT, _REDUCE, _POST, _ACK, _RESERVE = map(
    int, (Code.SEND, Code.WAIT, Code.REDUCE, Code.POST, Code.ACK, Code.RESERVE)
)
_ROW_NBYTES = 8 * f.NCOLUMNS


@njit(nogil=True)
def _spread(word):  # type: ignore[no-untyped-def]
    """Return a word in whose middle every bit of another has changed some: a product alone takes no bit downwards."""
    return (word ^ word >> 32) * f.SPREAD


@njit(nogil=True)
def _hash(word):  # type: ignore[no-untyped-def]
    """Return the highest bits of a product, which all bits of a word have changed."""
    return word * f.SPREAD >> 64 - CHECK_BITS & _CHECK


@njit(nogil=True)
def _fingerprint(state, signature):  # type: ignore[no-untyped-def]
    return signature ^ state[f.COUNTED] * state[f.SIGNED] * f.SPREAD


@njit(nogil=True)
def _compared(signature):  # type: ignore[no-untyped-def]
    """Return a signature, without its element type if that has one byte and nothing is combined."""
    if signature & _COMBINES or signature & _ELEMENT > f.ONE_BYTE << f.ELEMENT_AT:
        return signature
    return signature & ~_ELEMENT


@njit(nogil=True)
def alarmed(state):  # type: ignore[no-untyped-def]
    """Say whether a call has failed on any rank of the node."""
    return pointer(pointer(state[f.LOG])[f.ALARM])[0] != 0


@njit(nogil=True)
def sign_messages(state):  # type: ignore[no-untyped-def]
    """Compute the checks that the messages of a new call carry.

    A tag has few bits, so its check is a remainder by a prime: calls that differ in one field, or in their counts, never have the same.
    """
    chain, compared = pointer(state[f.LOG])[f.CHAIN], _compared(state[f.SIGNATURE])
    state[f.CHECKED] = _hash(_fingerprint(state, compared) ^ chain)
    # parts that follow may have messages of the library though this has none
    if state[f.REQUESTS_PER_LANE] or state[f.FORM]:
        counted = state[f.COUNTED] * state[f.SIGNED]
        check = ((compared & _MOST) + (counted & _MOST) + (chain & _MOST)) % state[f.TAG_CHECKS]
        state[f.CHECKED_TAG] = state[f.TAG] + check * state[f.TAG_STEP]


@njit(nogil=True)
def note_call(state):  # type: ignore[no-untyped-def]
    """Note a new call, and tell the ranks of the node what it is."""
    log, signature, count = pointer(state[f.LOG]), state[f.SIGNATURE], state[f.ELEMENTS]
    number, chain = log[f.CALLS] + 1, log[f.CHAIN]
    line = pointer(log[f.HISTORY] + (1 + number % f.REMEMBERED) * CACHE_LINE_NBYTES)
    line[f.NUMBER], line[f.ITS_SIGNATURE], line[f.ITS_COUNT], line[f.ITS_CHAIN] = (
        number,
        signature,
        count,
        chain,
    )
    line[f.ITS_COUNTED] = state[f.COUNTED]
    store_release(log[f.HISTORY], number)
    if number % f.RECORDS_HOT == 0:  # one block of records stays in the cache
        block = number // f.RECORDS_HOT % f.RECORD_BLOCKS
        memcpy(state[f.MEMCPY], (log[f.RECORDED] + (1 + block) * _HOT_NBYTES, log[f.RECORDED], _HOT_NBYTES))
    record = pointer(log[f.RECORDED] + number % f.RECORDS_HOT * _RECORD_NBYTES)
    process = pointer(log[f.PROCESS])
    record[0], record[1], record[f.ITS_BEGIN], record[f.ITS_END] = (
        signature,
        count,
        state[f.ISSUED] or state[f.STARTED],
        0,
    )
    record[f.ITS_SPENT], record[f.ITS_NAMES] = process[f.SPENT] - log[f.OWN_SPENT], process[f.REGION]
    record[f.ITS_WAIT_BEGIN], record[f.ITS_WAIT_END], state[f.NUMBERED], state[f.ISSUED] = 0, 0, number, 0
    log[f.CALLS], log[f.CHAIN] = number, _spread(chain ^ _fingerprint(state, _compared(signature)))


@njit(nogil=True)
def record_of(log_address, number):  # type: ignore[no-untyped-def]
    """Return the address of the record of a call that is still kept."""
    log = pointer(log_address)
    block, at = number // f.RECORDS_HOT, number % f.RECORDS_HOT
    place = 0 if block == log[f.CALLS] // f.RECORDS_HOT else 1 + (block + 1) % f.RECORD_BLOCKS
    return log[f.RECORDED] + place * _HOT_NBYTES + at * _RECORD_NBYTES


@njit(nogil=True)
def note_end(state, when):  # type: ignore[no-untyped-def]
    """Note that a call has ended, and tell the ranks of the node."""
    if state[f.LOG]:
        log = pointer(state[f.LOG])
        pointer(log[f.HISTORY])[f.ENDED_AT] = when
        pointer(log[f.RECORDED] + log[f.CALLS] % f.RECORDS_HOT * _RECORD_NBYTES)[f.ITS_END] = when
        store_release(log[f.HISTORY] + 8 * f.CALLS_ENDED, log[f.CALLS])


@njit(nogil=True)
def note_spent(state, elapsed):  # type: ignore[no-untyped-def]
    """Note how long the program has been in a blocking call that has ended."""
    if state[f.LOG]:
        log = pointer(state[f.LOG])
        log[f.TOOK] = elapsed
        log[f.OWN_SPENT] += elapsed
        pointer(log[f.PROCESS])[f.SPENT] += elapsed


@njit(nogil=True)
def note_lingered(state, elapsed, on_core):  # type: ignore[no-untyped-def]
    """Note how long the program has waited in a blocking call, and how much of that on a core."""
    if state[f.LOG]:
        process = pointer(pointer(state[f.LOG])[f.PROCESS])
        process[f.LINGERED] += elapsed
        process[f.ON_CORE] += on_core


@njit(nogil=True)
def is_new(state):  # type: ignore[no-untyped-def]
    """Say whether no step of the call that runs was noted so far."""
    return (
        state[f.STARTED] == 0 or state[f.STARTED] != pointer(pointer(state[f.LOG])[f.STEPS])[f.STEPS_STARTED]
    )


@njit(nogil=True)
def begin_steps(state, now):  # type: ignore[no-untyped-def]
    """Note that the steps from now on are those of a call that begins; `note_call` follows its first ones. Its time counts from them."""
    steps, lanes, channels = pointer(pointer(state[f.LOG])[f.STEPS]), pointer(state[f.LANES]), 1
    while channels < state[f.NLANES] and lanes[3 * channels + 2] == lanes[2]:
        channels += 1
    state[f.STARTED] = state[f.STARTED] or now
    steps[f.STEPS_CALL] = pointer(state[f.LOG])[f.CALLS] + int(state[f.FORM] & f.PART == 0)
    steps[f.STEPS_STARTED], steps[f.STEPS_CHANNELS], steps[f.STEPS_AT] = state[f.STARTED], channels, now


@njit(nogil=True)
def _peer_of(at, first):  # type: ignore[no-untyped-def]
    """Return the peer of a row at an address plus 1, or 0; a wait has that of the message that was begun before, from a first row on."""
    row = pointer(at)
    code, request = row[f.CODE], row[f.REQUEST]
    if code == _WAIT:
        while at > first and (pointer(at)[f.CODE] > _SEND or pointer(at)[f.REQUEST] != request):
            at -= _ROW_NBYTES
        return pointer(at)[f.PEER] + 1 if pointer(at)[f.CODE] <= _SEND else 0
    if code <= _SEND:
        return row[f.PEER] + 1
    return row[f.LOCAL_PEER] + 1 if code >= _POST and code != _RESERVE else 0


@njit(nogil=True)
def note_step(state, lane, at, now):  # type: ignore[no-untyped-def]
    """Note a row at an address that is done: it began when the one before was, so that what a rank waits is part of the row that waited."""
    log, row = pointer(state[f.LOG]), pointer(at)
    steps, code = pointer(log[f.STEPS]), row[f.CODE]
    if code == _ACK:
        return
    begin, steps[f.STEPS_AT] = steps[f.STEPS_AT], now
    if steps[f.STEPS_NOTED] - steps[f.STEPS_TAKEN] >= f.STEPS_ROOM:
        steps[f.STEPS_LOST] += 1
        return
    segment = lane // steps[f.STEPS_CHANNELS] + 1 if state[f.NLANES] > steps[f.STEPS_CHANNELS] else 0
    peer = _peer_of(at, state[f.ROWS] + pointer(state[f.LANES])[3 * lane] * _ROW_NBYTES)
    step = pointer(log[f.STEPS] + 8 * (f.FIRST_STEP + steps[f.STEPS_NOTED] % f.STEPS_ROOM * f.STEP_NFIELDS))
    step[f.STEP_CALL], step[f.STEP_BEGIN], step[f.STEP_END] = steps[f.STEPS_CALL], begin, now
    step[f.STEP_WHAT] = code + (segment << f.STEP_SEGMENT_AT) + (peer << f.STEP_PEER_AT)
    step[f.STEP_NBYTES] = (
        -1 if state[f.FORM] & f.CELLS else row[f.REDUCED_NBYTES] if code == _REDUCE else row[f.NBYTES]
    )
    store_release(log[f.STEPS] + 8 * f.STEPS_NOTED, steps[f.STEPS_NOTED] + 1)


@njit(nogil=True)
def wants_look(state):  # type: ignore[no-untyped-def]
    """Say whether Python is to look at the log after a blocking call that has ended."""
    if state[f.LOG] == 0:
        return False
    log = pointer(state[f.LOG])
    return log[f.CALLS] >= log[f.DUE] or log[f.TOOK] >= log[f.LONG]
