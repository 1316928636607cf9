"""Compiled: a call on a Python object that takes the short way, from the object to what is loaded, in one crossing.

Whoever calls has the GIL, which is released while messages are under way.
"""

from numba import njit

from hpcoll.kernels.machine_code import RAISED
from hpcoll.runtime.engine.compiled.ffi import (
    INT,
    LONG,
    VOID,
    byte_pointer,
    capi_function,
    pointer,
    release_gil,
    take_gil,
)
from hpcoll.runtime.engine.compiled.interpreter import run
from hpcoll.runtime.program import call_fields as c
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program import object_fields as o

_vectorcall = capi_function(o.VECTORCALL, LONG, LONG, LONG, LONG, LONG)
_append = capi_function("PyList_Append", INT, LONG, LONG)
_drop = capi_function("Py_DecRef", VOID, LONG)


@njit(nogil=True)
def call_on_object(address, given):  # type: ignore[no-untyped-def]
    """Send an object, if this rank does, and load what comes: `DONE`, `LONG_WAY`, `RAISED`, or an answer of `interpreter.run`."""
    words, data = pointer(address), 0
    words[o.SENT] = 0
    for i in range(3):
        if pointer(words[o.SERIALIZER])[o.GIVEN_AT + i] != words[o.GIVEN + i]:
            return o.LONG_WAY
    if words[o.SENDS]:
        words[o.OBJECT] = given
        data = _vectorcall((words[o.DUMPS], address + 8 * o.OBJECT, 2, words[o.KEYWORDS]))
        if data == 0:
            return RAISED
        if words[o.KINDS]:
            words[o.KIND] = _kinds_of(words, given, data)
            # the hash of a pickle, which nobody asks for
            pointer(data + words[o.LENGTH_AT])[1] = words[o.KIND]
        if pointer(data)[c.SIZE] > words[o.ROOM] or pointer(words[o.BUFFERS])[c.SIZE]:
            return _handed_on(words, data, o.LONG_WAY)
    source = data + words[o.LENGTH_AT] if data else words[o.TARGET]
    words[o.SENT] = 1
    if words[o.SIGNATURE]:
        engine = pointer(words[o.ENGINE])
        engine[f.SIGNATURE], engine[f.KINDS] = words[o.SIGNATURE], words[o.KINDS]
    thread = release_gil(())
    status = run(words[o.ENGINE], source, source if words[o.IN_PLACE] else words[o.TARGET], f.AS_BEFORE)
    take_gil((thread,))
    if status != f.DONE:
        return _handed_on(words, data, status)
    if data and words[o.IN_PLACE]:
        status = _load(address, data)
    else:
        for i in range(words[o.NVIEWS]):
            status = status or _load(address, pointer(words[o.VIEWS])[i])
    if data:
        _drop((data,))
    return status


@njit(nogil=True)
def _kinds_of(words, given, data):  # type: ignore[no-untyped-def]
    """Return the kinds of an object, of which there is a pickle; as many as the operator asks for."""
    kinds, at = 0, words[o.TYPES]
    type_of = pointer(given)[c.TYPE_OF]
    if type_of == words[o.ARRAY]:
        type_of = pointer(given)[c.DESCR]
    while at < words[o.TYPES_END] and kinds == 0:
        if pointer(at)[0] == type_of:
            kinds = pointer(at)[1]
        at += 16
    if kinds & words[o.KINDS] == 0 and words[o.KINDS] & f.PLAIN and _is_plain(words, data):
        kinds |= f.PLAIN
    return kinds


@njit(nogil=True)
def _is_plain(words, data):  # type: ignore[no-untyped-def]
    """Say whether a pickle makes numbers, texts, and lists, tuples and dicts of these, and nothing else."""
    follows, at = byte_pointer(words[o.OPCODES]), data + words[o.LENGTH_AT] + f.CELL_HEAD_NBYTES
    end = at + pointer(data)[c.SIZE]
    while at < end:
        nbytes = int(follows[byte_pointer(at)[0]])
        at += 1
        if nbytes == o.UNKNOWN:
            return False
        if nbytes >= o.LENGTH:
            nbytes -= o.LENGTH
            length = int(byte_pointer(at)[0])
            for i in range(1, nbytes):
                length |= int(byte_pointer(at)[i]) << 8 * i
            at += length
        at += nbytes
    return True


@njit(nogil=True)
def _load(address, view):  # type: ignore[no-untyped-def]
    """Add the object of a pickle to those that are made."""
    words = pointer(address)
    words[o.VIEW] = view
    made = _vectorcall((words[o.LOADS], address + 8 * o.VIEW, 1, 0))
    if made == 0:
        return RAISED
    added = _append((words[o.MADE], made))
    _drop((made,))
    return f.DONE if added == 0 else RAISED


@njit(nogil=True)
def _handed_on(words, data, status):  # type: ignore[no-untyped-def]
    """Give a pickle to whoever called, with a status."""
    if data:
        if _append((words[o.MADE], data)) != 0:
            status = RAISED
        _drop((data,))
    return status
