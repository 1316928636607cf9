"""MPI datatypes: their layouts, read from what the program has made them of, and duplicates for calls in flight."""

import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from itertools import chain, cycle
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.runtime.program.layouts import Layout, Map, Words, joined

_Old = Sequence[tuple[Layout, int]]  # layouts and extents of the datatypes of which one is made
_MOST = 1024  # layouts that are remembered
_FEW = 64  # numbers and datatypes of which a layout that is remembered is made


@contextmanager
def made_of(datatype: MPI.Datatype) -> Iterator[tuple[list[int], list[MPI.Datatype]]]:
    """Give the numbers and datatypes of which a datatype is made; numbers are in the order of the constructor's arguments."""
    integers, addresses, *counts, datatypes = datatype.Get_contents()
    large = counts[0] if counts else []  # those of constructors for large counts, since MPI 4
    where = {MPI.COMBINER_SUBARRAY: 1, MPI.COMBINER_DARRAY: 3}.get(datatype.combiner, len(integers))
    try:
        yield [*integers[:where], *addresses, *large, *integers[where:]], datatypes
    finally:
        for one in datatypes:
            if not one.is_predefined:  # a handle of our own
                one.Free()


def layout_of_datatype(datatype: MPI.Datatype) -> Layout | None:
    """Return the layout of one element of a datatype; None for a constructor that is not known here."""
    if datatype.is_predefined:
        return _predefined(datatype)
    with made_of(datatype) as (numbers, datatypes):
        old = tuple(
            (layout, one.extent) for one in datatypes if (layout := layout_of_datatype(one)) is not None
        )
        if datatype.combiner not in _LAYOUTS or len(old) < len(datatypes):
            return None
        make = _remembered if len(numbers) + len(old) <= _FEW else _made
        return make(datatype.combiner, old, tuple(numbers))


def _made(combiner: int, old: _Old, numbers: Sequence[int]) -> Layout:
    return _LAYOUTS[combiner](old, numbers)


# programs that make their datatypes for each call make the same ones again
_remembered = lru_cache(_MOST)(_made)


@lru_cache(_MOST)
def table_of(layout: Layout, extent: int) -> tuple[Words, Map] | tuple[None, None]:
    """Return the table of a layout and the map of a buffer of such elements; None where these are contiguous, or none."""
    if not layout.size or layout.is_plain(extent):
        return None, None
    table = layout.table(extent)
    return table, Map([(0, 0, table)])


def _predefined(datatype: MPI.Datatype) -> Layout:
    """Return the layout of a predefined datatype. Of a pair with gaps the library packs bytes that tell where they were."""
    if datatype.size == datatype.extent:
        return _of_run(datatype.size)
    places, packed = np.arange(datatype.extent, dtype=np.uint8), np.empty(datatype.size, np.uint8)
    datatype.Pack(places, packed, 0, MPI.COMM_SELF)
    return Layout.of_runs(packed, np.ones(packed.size, np.int64))


_of_run = lru_cache(_MOST)(Layout.of_run)


def _vector(old: _Old, count: int, length: int, stride: int) -> Layout:
    layout, extent = old[0]
    return layout.repeated(length, extent).repeated(count, stride)


def _indexed(old: _Old, lengths: Sequence[int], displs: Any) -> Layout:
    """Return blocks of one datatype, or of one each, at displacements in bytes."""
    if len(old) == 1 and old[0][0].is_plain(old[0][1]):
        return Layout.of_runs(displs, np.multiply(lengths, old[0][1]))
    return joined(
        (int(displ), one.repeated(n, extent))
        for n, displ, (one, extent) in zip(lengths, displs, cycle(old), strict=False)
    )


def _boxes(
    old: _Old, sizes: Sequence[int], ranges: Sequence[Sequence[tuple[int, int]]], order: int
) -> Layout:
    layout, extent = old[0]
    axes = list(zip(sizes, ranges, strict=True))
    return layout.boxes(extent, axes if order == MPI.ORDER_FORTRAN else axes[::-1])


def _subarray(old: _Old, numbers: Sequence[int]) -> Layout:
    n = numbers[0]
    sizes, lengths, firsts = (numbers[1 + i * n : 1 + (i + 1) * n] for i in range(3))
    return _boxes(old, sizes, [[one] for one in zip(firsts, lengths, strict=True)], numbers[-1])


def _darray(old: _Old, numbers: Sequence[int]) -> Layout:
    rank, n = numbers[1:3]
    sizes, kinds, arguments, processes = (numbers[3 + i * n : 3 + (i + 1) * n] for i in range(4))
    places = map(int, np.unravel_index(rank, processes))
    return _boxes(
        old,
        sizes,
        [list(_ranges(*one)) for one in zip(sizes, kinds, arguments, processes, places, strict=True)],
        numbers[-1],
    )


def _ranges(size: int, kind: int, argument: int, nprocesses: int, place: int) -> Iterator[tuple[int, int]]:
    """Yield first element and length of each range of an axis that a process has."""
    if kind == MPI.DISTRIBUTE_NONE:
        block = size
    elif argument != MPI.DISTRIBUTE_DFLT_DARG:
        block = argument
    else:
        block = -(-size // nprocesses) if kind == MPI.DISTRIBUTE_BLOCK else 1
    for first in range(place * block, size, nprocesses * block):
        yield first, min(block, size - first)


def _scaled(old: _Old, displs: Sequence[int]) -> Any:
    """Return displacements in bytes of ones in elements."""
    return np.multiply(displs, old[0][1])


_LAYOUTS: dict[int, Callable[[_Old, Sequence[int]], Layout]] = {
    MPI.COMBINER_DUP: lambda old, n: old[0][0],
    MPI.COMBINER_RESIZED: lambda old, n: old[0][0],
    MPI.COMBINER_CONTIGUOUS: lambda old, n: old[0][0].repeated(n[0], old[0][1]),
    MPI.COMBINER_VECTOR: lambda old, n: _vector(old, n[0], n[1], n[2] * old[0][1]),
    MPI.COMBINER_HVECTOR: lambda old, n: _vector(old, *n),
    MPI.COMBINER_INDEXED: lambda old, n: _indexed(old, n[1 : 1 + n[0]], _scaled(old, n[1 + n[0] :])),
    MPI.COMBINER_HINDEXED: lambda old, n: _indexed(old, n[1 : 1 + n[0]], n[1 + n[0] :]),
    MPI.COMBINER_INDEXED_BLOCK: lambda old, n: _indexed(old, [n[1]] * n[0], _scaled(old, n[2:])),
    MPI.COMBINER_HINDEXED_BLOCK: lambda old, n: _indexed(old, [n[1]] * n[0], n[2:]),
    MPI.COMBINER_STRUCT: lambda old, n: _indexed(old, n[1 : 1 + n[0]], n[1 + n[0] :]),
    MPI.COMBINER_SUBARRAY: _subarray,
    MPI.COMBINER_DARRAY: _darray,
}


class _Retained(MPI.Datatype):
    """A datatype that is freed with its last reference, while there is an interpreter that could be told of its attributes."""

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ends() and self != MPI.DATATYPE_NULL and not MPI.Is_finalized():
            self.Free()


def retain_datatypes(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a call's arguments with a duplicate of each derived datatype, which the program may free while the call is in flight.

    A datatype that both buffers have stays one: mpi4py refuses to reduce two. The MPI library gets the program's own, of which it takes
    care itself: Open MPI 5 reads those of persistent collectives when they are started, freed or not.
    """
    if not any(map(_datatypes, arguments[:2])):
        return arguments
    copies: dict[int, _Retained] = {}
    return tuple(_retained(one, copies) for one in arguments)


def _retained(item: Any, copies: dict[int, _Retained]) -> Any:
    """Return an item of a spec, or one with duplicates in place of the datatypes in it."""
    if not isinstance(item, list | tuple):
        return _copy(item, copies) if _may_be_freed(item) else item
    kept = [_retained(one, copies) for one in item]
    return item if all(map(operator.is_, kept, item)) else kept


def _may_be_freed(item: Any) -> bool:
    """Say whether the program may free an item: a derived datatype that is not one of ours."""
    ours = not isinstance(item, MPI.Datatype) or isinstance(item, _Retained)
    return not (ours or item == MPI.DATATYPE_NULL or item.is_predefined)


def _copy(datatype: MPI.Datatype, copies: dict[int, _Retained]) -> MPI.Datatype:
    """Return the duplicate of a datatype; ``copies`` has those of the call, by the handles of the program's."""
    handle = MPI._handleof(datatype)
    if handle not in copies:
        copies[handle] = _duplicate(datatype)
    return copies[handle]


def _duplicate(datatype: MPI.Datatype) -> _Retained:
    copy = _Retained(datatype.Dup())
    copy.name = datatype.name
    return copy


_firsts: dict[tuple[Any, ...], _Retained] = {}  # duplicates of the first datatypes of their kinds, by `_key`
_TIMES = 64  # that an earlier datatype stands for one; what is used more often is known by itself


def with_known_datatypes(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a call with earlier datatypes in place of derived ones that are new and equal to them.

    So a program that makes its datatypes for each call does not have them read again. Where one is like none before, all stay.
    """
    given = [_datatypes(spec) for spec in arguments[:2]]
    if not any(given):
        return arguments
    new: dict[tuple[Any, ...], MPI.Datatype] = {}
    known = [[_known(one, new) for one in each] for each in given]
    for key, one in new.items():
        if len(_firsts) == _MOST:
            _firsts.clear()
        _firsts[key] = _duplicate(one)
        _firsts[key].Commit()  # it may stand for one that is
    if new or all(map(operator.is_, chain(*known), chain(*given))):
        return arguments
    return *map(_with_datatypes, arguments, known), *arguments[2:]


def _datatypes(spec: Any) -> Sequence[MPI.Datatype]:
    """Return the datatypes in a spec, but no lone one that is predefined."""
    last = spec[-1] if isinstance(spec, (list, tuple)) and len(spec) > 1 else None
    if isinstance(last, MPI.Datatype):
        return () if last.is_predefined else (last,)
    if isinstance(last, (list, tuple)) and all(isinstance(one, MPI.Datatype) for one in last):
        return last
    return ()


def _with_datatypes(spec: Any, known: Sequence[MPI.Datatype]) -> Any:
    if not known:
        return spec
    return [*spec[:-1], known[0] if isinstance(spec[-1], MPI.Datatype) else known]


def _known(datatype: MPI.Datatype, new: dict[tuple[Any, ...], MPI.Datatype]) -> MPI.Datatype:
    """Return the earlier datatype that stands for one, or that itself; one that is like none before is added to ``new``."""
    if datatype == MPI.DATATYPE_NULL or datatype.is_predefined or isinstance(datatype, _Retained):
        return datatype
    seen: Any = datatype.Get_attr(_seen())
    if seen is None:
        key = _key(datatype)
        seen = [None if key is None else _firsts.get(key), _TIMES]
        datatype.Set_attr(_seen(), seen)
        if key is not None and seen[0] is None:
            new[key] = datatype
    if seen[1] == 0:
        seen[0] = None
    seen[1] -= 1
    return seen[0] or datatype


@cache
def _seen() -> int:
    return MPI.Datatype.Create_keyval()


def _key(datatype: MPI.Datatype) -> tuple[Any, ...] | None:
    """Return the name of a derived datatype and what it is made of, which tell it from others; None where that is much."""
    *lengths, combiner = datatype.Get_envelope()
    if sum(lengths) > _FEW:
        return None
    *numbers, datatypes = datatype.Get_contents()
    old = [MPI._handleof(one) if one.is_predefined else _key(one) for one in datatypes]
    for one in datatypes:
        if not one.is_predefined:  # a handle of our own
            one.Free()
    return None if None in old else (combiner, datatype.name, *map(tuple, numbers), *old)
