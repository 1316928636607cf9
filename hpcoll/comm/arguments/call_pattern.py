"""Patterns of a call's arguments, by which compiled code recognises calls like it (`hpcoll.runtime.engine.call_cache`)."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments.buffer_specs import layout_of
from hpcoll.comm.arguments.buffers import Resolved, resolve
from hpcoll.comm.arguments.call import Call
from hpcoll.comm.arguments.memory import buffer_of
from hpcoll.comm.arguments.methods import Method
from hpcoll.comm.arguments.typed_blocks import TypedSpec
from hpcoll.runtime.engine.call_cache import BufferPattern
from hpcoll.runtime.engine.object_layout import is_holder
from hpcoll.runtime.program.call_fields import (
    ABSENT,
    ALIASED,
    BLOCKS,
    FILLED,
    MANY,
    OF_EDGES,
    OF_NONE,
    OF_RECEIVED,
    OF_SENT,
    ONE,
    TYPED,
)
from hpcoll.runtime.transports.mpi import handle

Sides = tuple[BufferPattern, BufferPattern]
_FORMAT_NLETTERS = 8  # of a view's format, with the zero behind it


def sides(
    row: Method,
    arguments: Sequence[Any],
    buffers: Sequence[Any],
    call: Call | None,
    rank: int,
    nblocks: tuple[int, int],
) -> Sides | None:
    """Return the patterns of the buffers of a call that has passed all checks; None where compiled code cannot read them.

    Args:
        row: Row of the method.
        arguments: Arguments of the call, as the caller gives them.
        buffers: Send buffer, or ``MPI.IN_PLACE``, and receive buffer, as `hpcoll.runtime.engine.compiled.call_lookup.run_cached` gets them.
        call: The call; None where only the MPI library understands it.
        rank: Rank of this process.
        nblocks: Blocks of a send buffer and of a receive buffer that have several.
    """
    kinds = [
        row.holds[1] if len(arguments) > 1 and one is arguments[1] is not arguments[0] else row.holds[0]
        for one in buffers
    ]
    if row.holds[0] == BLOCKS and not row.at_root and arguments[0] is MPI.IN_PLACE:
        kinds[1] = BLOCKS  # what is sent lies there
    if row.at_root and row.name.endswith("v") and rank != row.find("root", arguments):
        kinds[1 if row.at_root == "recvbuf" else 0] = ABSENT
    known = {id(one.spec): one for one in (call.keep if call else ()) if isinstance(one, Resolved)}
    found: list[BufferPattern] = []
    for at, (spec, kind, n) in enumerate(zip(buffers, kinds, nblocks, strict=True)):
        if kind == BLOCKS and not n:
            return None
        if kind == ABSENT or not n or spec is MPI.IN_PLACE:
            found.append(BufferPattern(ABSENT if kind == ABSENT or not n else ALIASED))
            continue
        if _readable(spec, writable=at == 1) is None:
            return None
        resolved = known.get(id(spec))
        if resolved is None:
            many, nparts = (n, 1) if kind == MANY else (None, n if kind == BLOCKS else 1)
            with suppress(ArgumentError):  # what hpcoll refuses, the library may take
                resolved = resolve(spec, name="", rank=rank, nblocks=many, nparts=nparts)
        side = _side(spec, resolved, kind, n, writable=at == 1) if resolved else None
        if side is None:
            return None
        found.append(side)
    return found[0], found[1]


def typed_sides(buffers: Sequence[Any], call: Call, nblocks: tuple[int, int]) -> Sides | None:
    """Return the patterns of a call whose blocks have datatypes of their own, as `sides`."""
    assert call.blocks is not None
    found: list[BufferPattern] = []
    for i, (spec, places, n) in enumerate(zip(buffers, call.blocks[:2], nblocks, strict=True)):
        parts = TypedSpec.of(spec, n) if n else None
        array = None if parts is None else _readable(spec, writable=i == 1)
        if (
            parts is None
            or array is None
            or type(parts.types) not in (list, tuple)
            or any(isinstance(one, str) for one in parts.types)
        ):
            return None
        layouts = [layout_of(array, one, "") for one in parts.types]
        ends = [
            int(d) + (int(n) - 1) * one.extent + one.upper
            for n, d, one in zip(parts.counts, parts.displs, layouts)
            if one and n
        ]
        firsts = [int(d) + one.lower for n, d, one in zip(parts.counts, parts.displs, layouts) if one and n]
        if min(firsts, default=0) < 0:  # it reaches before the array
            return None
        reach = 0, 0, 0, max(ends, default=0)
        keep = tuple(parts.types)
        found.append(
            BufferPattern(
                TYPED, 0, i == 1, parts.buffer, len(spec), -1, keep, 1, n, parts.remembered(places), reach
            )
        )
    return found[0], found[1]


def whose_sizes(row: Method, call: Call, sent: BufferPattern, received: BufferPattern) -> int:
    """Return the side of a call with varying blocks that says the sizes of all, as in `hpcoll.runtime.program.call_fields`."""
    assert call.blocks is not None
    if call.op is not None:
        # as `hpcoll.comm.arguments.methods.with_counts` writes it
        return FILLED if (received if sent.kind == ALIASED else sent).length == 4 else OF_SENT
    if call.graph is not None:
        return OF_EDGES
    return OF_NONE if not call.blocks[2] else OF_SENT if row.at_root == "sendbuf" else OF_RECEIVED


def _side(spec: Any, found: Resolved, kind: int, nblocks: int, *, writable: bool) -> BufferPattern | None:
    """Return the pattern of a buffer that holds elements, from how it was resolved."""
    buffer, (length, type_at, datatype), layout = buffer_of(spec), _form(spec), found.layout
    if layout is None or (layout.datatype is not None and kind == MANY):
        return None
    derived: tuple[int, ...] = ()
    if layout.datatype is not None:
        reach = (0, -layout.extent) if layout.trusted else (layout.lower, layout.upper)
        derived = handle(layout.datatype), layout.dtype.itemsize, *reach
    nbytes = 0 if kind == MANY else found.nbytes
    blocks = 1 if kind == ONE else nblocks
    return BufferPattern(
        kind, nbytes, writable, buffer, length, type_at, datatype, layout.extent, blocks, derived=derived
    )


def opaque_sides(buffers: Sequence[Any]) -> Sides | None:
    """Return the patterns of a call that only the MPI library understands: only its types count."""
    found: list[BufferPattern] = []
    for at, spec in enumerate(buffers):
        if _readable(spec, writable=at == 1) is None:
            return None
        found.append(BufferPattern(ONE, 0, at == 1, buffer_of(spec), *_form(spec)))
    return found[0], found[1]


def _readable(spec: Any, *, writable: bool) -> np.ndarray | None:
    """Return the memory that compiled code would find, or None. Of a view it reads formats of a few letters."""
    buffer = buffer_of(spec)
    known = isinstance(buffer, np.ndarray) or (
        is_holder(buffer) and (type(buffer) is not memoryview or len(buffer.format) < _FORMAT_NLETTERS)
    )
    if not known or (buffer is not spec and type(spec) not in (list, tuple)):
        return None
    try:
        array = buffer if isinstance(buffer, np.ndarray) else np.asarray(memoryview(buffer))
    except ValueError:  # NumPy has no such elements
        return None
    flags = array.flags
    whole = flags.forc if array is buffer else flags.c_contiguous
    return array if whole and flags.aligned and (flags.writeable or not writable) else None


def _form(spec: Any) -> tuple[int, int, Any]:
    """Return the number of a spec's items, the position of the datatype or -1, and the datatype."""
    if type(spec) not in (list, tuple):
        return 0, -1, None
    last = len(spec) - 1
    typed = last > 1 or isinstance(spec[last], MPI.Datatype | str)
    return len(spec), last if typed else -1, spec[last] if typed else None
