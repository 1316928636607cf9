"""Signatures: the parts of a call that must be alike on all ranks, packed into a word that travels with every message on a node.

Compiled code makes the fingerprint of a call of signature and counts (`hpcoll.runtime.engine.compiled.checks.sign_messages`). Neither has
the parts that may differ between ranks: buffers, in place or not, kinds of memory, and counts that only some ranks know.
"""

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hpcoll.base.ops import AVG, BUILTIN, EXACT_SUM, ReduceOp
from hpcoll.base.text import format_nbytes
from hpcoll.comm.arguments.buffer_specs import Derived, Element
from hpcoll.comm.arguments.call import Call
from hpcoll.comm.arguments.cells import OBJECTS, REDUCTIONS
from hpcoll.runtime.program.fields import ELEMENT_BITS, ONE_BYTE, OP_AT, OP_BITS
from hpcoll.schedules.catalogue import CATALOGUE, PACKAGE, registered
from hpcoll.schedules.collectives import COLLECTIVES

_ELEMENTS = (
    "uint8",
    "int8",
    "bool",
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "uint64",
    "uint32",
    "uint16",
    "complex128",
    "complex64",
    "float128",
    "complex256",
    "object",
)
OBJECT_OPS = (
    "SUM",
    "PROD",
    "MIN",
    "MAX",
    "LAND",
    "LOR",
    "LXOR",
    "BAND",
    "BOR",
    "BXOR",
    "MINLOC",
    "MAXLOC",
    "REPLACE",
    "NO_OP",
)
# the first number of functions among the operators of calls on objects, and of their digests
OBJECT_FUNCTIONS = 1 << 11
_METHOD_BITS = (
    4  # of an operator's field: position of the method for objects; the rest is the operator's number
)
OPERATOR_AT, OPERATOR_END = OP_AT + _METHOD_BITS, OP_AT + OP_BITS  # bits of a signature's word
_ROOTED = ("bcast", "scatter", "gather", "reduce")  # methods for objects
_OBJECT = len(_ELEMENTS)
_OPS = (*BUILTIN, AVG.name, "premul_sum", EXACT_SUM.name)
_COLLECTIVES = tuple(COLLECTIVES)
_ALGORITHMS = {
    name: sorted(CATALOGUE[key].name for key in PACKAGE if CATALOGUE[key].collective == name)
    for name in COLLECTIVES
}
_OTHERS = (1 << 5) - 1  # number of all registered algorithms for which the field has no room
_BITS = (5, 1, ELEMENT_BITS, OP_BITS, 5, 10, 20)  # of a signature's fields, in their order
_GOLDEN = 2654435769  # of 2**32: products whose highest bits differ where the factors do a little
_ORDERED = 1 << ELEMENT_BITS - 1  # of an element's field: every result must be the canonical expression
_DIGITS = 1 << 5  # of a segment: numbers of binary digits; the rest of the field is of its digest
_USERS = 1 << 15  # of an operator's field: the rest is of its digest
# whose varying counts not all ranks know
PARTLY_KNOWN = (
    "gather",
    "scatter",
    "alltoall",
    "neighbor_allgather",
    "neighbor_alltoall",
)


_PURPOSES = (
    "",
    "a persistent request",
    "each rank's count",
    "sizes of blocks",
    "an array",
    "arrays on the GPU",
    "a comparison",
    "schedules of an algorithm",
    "when each rank came",
    "who came late",
    "the clocks of hosts",
)


class Purpose(IntEnum):
    """The purpose of a service collective (`hpcoll.comm.team.service_collectives`); NONE: a call of the program's."""

    NONE = 0
    PERSISTENT = 1
    COUNTS = 2
    SIZES = 3
    ARRAY = 4
    GPU = 5
    COMPARISON = 6
    SCHEDULES = 7
    ARRIVALS = 8
    WAITS = 9
    CLOCKS = 10

    @property
    def text(self) -> str:
        """The purpose in words."""
        return _PURPOSES[self]


class Signature(NamedTuple):
    """Fields of a signature, as numbers.

    Attributes:
        collective: Position among the collectives.
        varies: Blocks have sizes of their own.
        element: Position among `_ELEMENTS`, from 1 on; 0: another type, or several.
        op: Position among `_OPS`, from 1 on; 0: none. Of calls on objects, position among `OBJECTS`, from 1 on, and the operator's
            number (`hpcoll.comm.objects.operators`).
        algorithm: Position among the collective's algorithms, the registered ones last.
        segment: Number of binary digits of the segment's size, and a digest of that.
        root: Root; where there is none, the `Purpose`.
        ordered: The program asks for the canonical expression; the highest bit of the element's field.
    """

    collective: int
    varies: int
    element: int
    op: int
    algorithm: int
    segment: int
    root: int
    ordered: int = 0

    @classmethod
    def of(cls, call: Call, algorithm: str | None = None, segment: int = 0) -> "Signature":
        """Return the signature of a call; where no algorithm is named, that of the first."""
        return cls(
            _COLLECTIVES.index(call.collective),
            int(call.blocks is not None),
            _position(_name(call.element), _ELEMENTS),
            _position(call.objects, OBJECTS) + (call.operator << _METHOD_BITS)
            if call.objects
            else _op(call.op),
            0 if algorithm is None else min(_algorithms(call.collective).index(algorithm), _OTHERS),
            _segment(segment),
            call.root or call.purpose,
            int(call.canonical),
        )

    @classmethod
    def unpacked(cls, word: int) -> "Signature":
        """Return the signature in a word."""
        fields = []
        for bits in _BITS:
            fields.append(word & ((1 << bits) - 1))
            word >>= bits
        ordered, fields[2] = divmod(fields[2], _ORDERED)
        return cls(*fields)._replace(ordered=ordered)

    @property
    def word(self) -> int:
        """All fields in a number below 2**63; never 0, which is no signature."""
        word = 0
        for bits, field in zip(reversed(_BITS), reversed(self[:-1]), strict=True):
            word = (word << bits) + field
        return word + (_ORDERED * self.ordered << sum(_BITS[:2]))

    @property
    def compared(self) -> "Signature":
        """The signature by which calls are compared, as `hpcoll.runtime.engine.compiled.checks` does.

        Types of one byte count as one where nothing is combined.
        """
        return self if self.op or self.element > ONE_BYTE else self._replace(element=0)

    def text(self, count: int) -> str:
        """Return the call as a program writes it; the engine counts in bytes where nothing is combined."""
        if self.purpose:
            return self.purpose.text
        collective = _COLLECTIVES[self.collective]
        if self.element == _OBJECT:
            op = f", op={self._operator}" if self.op >> _METHOD_BITS else ""
            return (
                f"{self._objects}(obj{op}, root={self.root})"
                if self._objects in _ROOTED
                else f"{self._objects}(obj{op})"
            )
        given = (
            []
            if collective == "barrier"
            else [f"{self._element}[{self._elements(count) if self.counts else '...'}]"]
        )
        if self.op and collective != "barrier":
            given.append(f"op={self._operator}")
        if COLLECTIVES[collective].rooted:
            given.append(f"root={self.root}")
        given += ["order='rank'"] if self.ordered else []
        return f"{method(collective, varies=bool(self.varies))}({', '.join(given)})"

    def record(self, count: int) -> dict[str, object]:
        """Return the call as flight records have it; ``count`` as in `text`."""
        collective, moves = _COLLECTIVES[self.collective], self.collective != _COLLECTIVES.index("barrier")
        objects = self.element == _OBJECT
        rooted = self._objects in _ROOTED if objects else COLLECTIVES[collective].rooted
        return {
            "collective": self._objects if objects else method(collective, varies=bool(self.varies)).lower(),
            "count": self._elements(count) if self.counts and moves and not objects else None,
            "element": self._element if moves else "",
            "op": self._operator if (self._objects in REDUCTIONS if objects else moves) else "",
            "root": self.root if rooted else None,
            "algorithm": self.algorithm_name,
        }

    def nbytes(self, count: int) -> int | None:
        """Return the bytes of a count, which is as in `text`; None where ranks count differently, or the type is not known."""
        if self.record(count)["count"] is None:
            return None
        if not COLLECTIVES[_COLLECTIVES[self.collective]].reduces:
            return count
        return count * _size(self._element) if self.element else None

    @property
    def purpose(self) -> Purpose:
        """The purpose of a service collective."""
        rooted = self.element == _OBJECT or COLLECTIVES[_COLLECTIVES[self.collective]].rooted
        return Purpose.NONE if rooted else Purpose(self.root)

    @property
    def _objects(self) -> str:
        """The method of a call on objects."""
        return OBJECTS[self.op % (1 << _METHOD_BITS) - 1]

    @property
    def _operator(self) -> str:
        if self.element == _OBJECT:
            number = self.op >> _METHOD_BITS
            return (
                OBJECT_OPS[number]
                if number < len(OBJECT_OPS)
                else f"a function ({number % OBJECT_FUNCTIONS:03x})"
            )
        if self.op >= _USERS:
            return f"a function ({self.op - _USERS:04x})"  # two of them are told apart by that
        return _OPS[self.op - 1].upper() if self.op else ""

    @property
    def _element(self) -> str:
        return _ELEMENTS[self.element - 1] if self.element else "bytes"

    @property
    def per_element(self) -> int:
        """The part of a count that is one element: its bytes where nothing is combined, else 1; 0 where ranks count differently."""
        if self.record(0)["count"] is None:
            return 0
        return self._per_element

    @property
    def _per_element(self) -> int:
        moved = not COLLECTIVES[_COLLECTIVES[self.collective]].reduces and self.element > ONE_BYTE
        return _size(self._element) if moved else 1

    def _elements(self, count: int) -> int:
        """Return the elements of a count, which is of bytes where nothing is combined."""
        return count // self._per_element

    @property
    def counts(self) -> bool:
        """Say whether ranks must have the same counts."""
        return not (self.varies and _COLLECTIVES[self.collective] in PARTLY_KNOWN)

    def how(self, counted: int) -> tuple[str, ...]:
        """Return the parts in which calls that are written alike may differ, in words; digests tell two of them apart."""
        digest, digits = divmod(self.segment, _DIGITS)
        segments = f"segments of {format_nbytes(1 << digits >> 1)} or more ({digest:02x})"
        return f"algorithm {self.algorithm_name}", segments, f"blocks of other sizes ({counted % 2**16:04x})"

    @property
    def algorithm_name(self) -> str:
        """The algorithm's name in the catalogue."""
        names = _algorithms(_COLLECTIVES[self.collective])
        return (
            names[self.algorithm]
            if self.algorithm < min(len(names), _OTHERS)
            else "registered by the program"
        )


NO_CALL = Signature(0, 0, 0, 0, 0, 0, 0)


def signed_nbytes(call: Call) -> int:
    """Return the weight of an element in the fingerprint: its bytes, or 0 where ranks need not know the same counts."""
    return 0 if call.blocks is not None and call.collective in PARTLY_KNOWN else call.dtype.itemsize


def counted(call: Call) -> Any:
    """Return the number by which ranks compare a call's counts: the count, or the weighted sum of blocks that all ranks know."""
    if call.blocks is None or not call.blocks[2]:
        return call.count
    return sum(_weight(rank) * size for rank, size in enumerate(call.blocks[2]))


def method(collective: str, *, varies: bool) -> str:
    """Return mpi4py's name of a collective."""
    if collective == "reduce_scatter":
        return "Reduce_scatter" if varies else "Reduce_scatter_block"
    return collective.capitalize() + ("v" if varies else "")


def differing(every: Sequence[Sequence[str] | None]) -> list[list[str]]:
    """Return, for each rank, the parts of its call that are not the same everywhere; nothing for ranks whose call is unknown."""
    known = [one for one in every if one is not None]
    parts = [at for at, found in enumerate(zip(*known, strict=True)) if len(set(found)) > 1]
    return [[one[at] for at in parts] if one is not None else [] for one in every]


def _algorithms(collective: str) -> list[str]:
    return _ALGORITHMS[collective] + [row.name for row in registered(collective)]


@lru_cache(maxsize=256)  # NumPy takes longer to name a type than a short message does
def _name(element: Element) -> str:
    return (
        element if isinstance(element, str) else element.of if isinstance(element, Derived) else element.name
    )


def _size(element: str) -> int:
    return 2 if element == "bfloat16" else np.dtype(element).itemsize


def _op(op: ReduceOp | None) -> int:
    if op is None:
        return 0
    return _position(op.name, _OPS) if op.function is None else _USERS + op.digest % _USERS


def _weight(rank: int) -> int:
    """Return an odd number below 2**16."""
    return rank * _GOLDEN % 2**32 >> 16 | 1


def _segment(nbytes: int) -> int:
    """Return the field of a segment, which tells most sizes apart."""
    return min(nbytes.bit_length(), _DIGITS - 1) + _DIGITS * (nbytes * _GOLDEN % 2**32 >> 27)


def _position(name: str, names: tuple[str, ...]) -> int:
    return names.index(name) + 1 if name in names else 0
