"""Compiled: the checks by which messages tell calls apart, and what is noted of a call (`hpcoll.runtime.telemetry.call_log`).

Every message between local peers carries a check of its call and of all calls before it. So does the tag of every message of the MPI
library, which therefore meets no receive of another call.
"""

from numba import njit

from hpcoll.runtime.engine.compiled.ffi import memcpy, pointer, store_release
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES

CHECK_BITS = 30

_CHECK = (1 << CHECK_BITS) - 1
# Of a signature.
_ELEMENT, _COMBINES = (1 << f.ELEMENT_BITS) - 1 << f.ELEMENT_AT, (1 << f.OP_BITS) - 1 << f.OP_AT

_RECORD_NBYTES = 8 * f.RECORD_NFIELDS
_HOT_NBYTES = f.RECORDS_HOT * _RECORD_NBYTES
_MOST = (1 << 60) - 1  # three such numbers have a sum


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
    if state[f.REQUESTS_PER_LANE] or state[f.FORM]:  # parts that follow may have messages of the library though this has none
        counted = state[f.COUNTED] * state[f.SIGNED]
        check = ((compared & _MOST) + (counted & _MOST) + (chain & _MOST)) % state[f.TAG_CHECKS]
        state[f.CHECKED_TAG] = state[f.TAG] + check * state[f.TAG_STEP]


@njit(nogil=True)
def note_call(state):  # type: ignore[no-untyped-def]
    """Note a new call, and tell the ranks of the node what it is."""
    log, signature, count = pointer(state[f.LOG]), state[f.SIGNATURE], state[f.ELEMENTS]
    number, chain = log[f.CALLS] + 1, log[f.CHAIN]
    line = pointer(log[f.HISTORY] + (1 + number % f.REMEMBERED) * CACHE_LINE_NBYTES)
    line[f.NUMBER], line[f.ITS_SIGNATURE], line[f.ITS_COUNT], line[f.ITS_CHAIN] = number, signature, count, chain
    line[f.ITS_COUNTED] = state[f.COUNTED]
    store_release(log[f.HISTORY], number)
    if number % f.RECORDS_HOT == 0:  # one block of records stays in the cache
        block = number // f.RECORDS_HOT % f.RECORD_BLOCKS
        memcpy(state[f.MEMCPY], (log[f.RECORDED] + (1 + block) * _HOT_NBYTES, log[f.RECORDED], _HOT_NBYTES))
    record = pointer(log[f.RECORDED] + number % f.RECORDS_HOT * _RECORD_NBYTES)
    process = pointer(log[f.PROCESS])
    record[0], record[1], record[f.ITS_BEGIN], record[f.ITS_END] = signature, count, state[f.ISSUED] or state[f.STARTED], 0
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
def wants_look(state):  # type: ignore[no-untyped-def]
    """Say whether Python is to look at the log after a blocking call that has ended."""
    if state[f.LOG] == 0:
        return False
    log = pointer(state[f.LOG])
    return log[f.CALLS] >= log[f.DUE] or log[f.TOOK] >= log[f.LONG]
