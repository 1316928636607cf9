"""Compiled: what tells a call from others, and what is noted of it (`hpcoll.runtime.transports.call_log` draws that).

Every message between local peers carries a check of its call and of all calls before it, and so does the tag of every message of the MPI
library, which therefore meets no receive of another call.
"""

from numba import njit

from hpcoll.runtime.engine.ffi import memcpy, pointer, store_release
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES

CHECK_BITS = 24

# Of a signature.
_ELEMENT, _COMBINES = (1 << f.ELEMENT_BITS) - 1 << f.ELEMENT_AT, (1 << f.OP_BITS) - 1 << f.OP_AT

_RECORD_NBYTES = 8 * f.RECORD_NFIELDS
_HOT_NBYTES = f.RECORDS_HOT * _RECORD_NBYTES
_MOST = (1 << 60) - 1  # three such numbers have a sum


@njit(nogil=True)
def _spread(word):  # type: ignore[no-untyped-def]
    """A word in which every bit of another has changed some of the middle: a product alone takes no bit downwards."""
    return (word ^ word >> 32) * f.SPREAD


@njit(nogil=True)
def check_of(fingerprint):  # type: ignore[no-untyped-def]
    """`CHECK_BITS` of a fingerprint, as the word that announces a message has them."""
    return (_spread(fingerprint) >> 8) & (1 << CHECK_BITS) - 1


@njit(nogil=True)
def tolerates(state, local_peer, local_rank, checked):  # type: ignore[no-untyped-def]
    """Whether a peer's call differs in the element type alone, where nothing is combined and one of the types goes with all others."""
    mine = (state[f.SIGNATURE] & _ELEMENT) >> f.ELEMENT_AT
    history = pointer(state[f.LOG])[f.HISTORY] + (local_peer - local_rank) * f.HISTORY_NBYTES
    for i in range(f.REMEMBERED):
        fingerprint = pointer(history + (1 + i) * CACHE_LINE_NBYTES)[f.ITS_FINGERPRINT]
        difference = fingerprint ^ state[f.FINGERPRINT]  # counts that are equal leave nothing
        theirs = mine ^ difference >> f.ELEMENT_AT
        alike = difference & ~_ELEMENT == 0 and state[f.SIGNATURE] & _COMBINES == 0
        if alike and min(mine, theirs) <= f.ANY_ELEMENT and checked == check_of(fingerprint ^ state[f.CHAIN_BEFORE]):
            return True
    return False


@njit(nogil=True)
def begin_call(address):  # type: ignore[no-untyped-def]
    """Note a new call, tell the ranks of the node what it is, and find what its messages are to carry.

    A tag has few bits, so its check is a remainder by a prime: calls that differ in one field, or in their counts, never have the same.

    Returns:
        Whether no call has failed on any rank of the node before.
    """
    state = pointer(address)
    log = pointer(state[f.LOG])
    log[f.CALLS] += 1
    number, counted = log[f.CALLS], state[f.ELEMENTS] * state[f.SIGNED]
    state[f.FINGERPRINT] = state[f.SIGNATURE] ^ counted * f.SPREAD
    state[f.CHAIN_BEFORE], state[f.CHECKED] = log[f.CHAIN], check_of(state[f.FINGERPRINT] ^ log[f.CHAIN])
    combines = state[f.SIGNATURE] & _COMBINES
    if state[f.REQUESTS_PER_LANE]:
        signature = state[f.SIGNATURE] if combines else state[f.SIGNATURE] & ~_ELEMENT
        check = ((signature & _MOST) + (counted & _MOST) + (log[f.CHAIN] & _MOST)) % state[f.TAG_CHECKS]
        state[f.CHECKED_TAG] = state[f.TAG] + check * state[f.TAG_STEP]
    log[f.CHAIN] = _spread(log[f.CHAIN] ^ (state[f.FINGERPRINT] if combines else state[f.FINGERPRINT] & ~_ELEMENT))
    line = pointer(log[f.HISTORY] + (1 + number % f.REMEMBERED) * CACHE_LINE_NBYTES)
    line[f.NUMBER], line[f.ITS_FINGERPRINT] = number, state[f.FINGERPRINT]
    line[f.ITS_SIGNATURE], line[f.ITS_COUNT], line[f.ITS_CHAIN] = state[f.SIGNATURE], state[f.ELEMENTS], state[f.CHAIN_BEFORE]
    store_release(log[f.HISTORY], number)
    if number % f.RECORDS_HOT == 0:  # one block of records stays in the cache
        block = number // f.RECORDS_HOT % f.RECORD_BLOCKS
        memcpy(state[f.MEMCPY], (log[f.RECORDED] + (1 + block) * _HOT_NBYTES, log[f.RECORDED], _HOT_NBYTES))
    record = pointer(log[f.RECORDED] + number % f.RECORDS_HOT * _RECORD_NBYTES)
    record[0], record[1], record[f.ITS_BEGIN], record[f.ITS_END] = state[f.SIGNATURE], state[f.ELEMENTS], state[f.STARTED], 0
    return pointer(log[f.ALARM])[0] == 0


@njit(nogil=True)
def note_begin(state, when):  # type: ignore[no-untyped-def]
    """Note more exactly when the latest call has begun."""
    if state[f.LOG]:
        log = pointer(state[f.LOG])
        pointer(log[f.RECORDED] + log[f.CALLS] % f.RECORDS_HOT * _RECORD_NBYTES)[f.ITS_BEGIN] = when


@njit(nogil=True)
def note_end(state, when):  # type: ignore[no-untyped-def]
    """Note that a call has ended, and tell the ranks of the node."""
    if state[f.LOG]:
        log = pointer(state[f.LOG])
        pointer(log[f.HISTORY])[f.ENDED_AT] = when
        pointer(log[f.RECORDED] + log[f.CALLS] % f.RECORDS_HOT * _RECORD_NBYTES)[f.ITS_END] = when
        store_release(log[f.HISTORY] + 8 * f.CALLS_ENDED, log[f.CALLS])
