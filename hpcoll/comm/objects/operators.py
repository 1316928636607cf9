"""Operators of reductions of objects: the number by which ranks compare them, and the objects that they combine alike in every process.

A function is known by its name, a lambda by its code: the two branches of a program may each write theirs. What a function refers to is
not compared, since it may be the rank's own.

In what order a set is iterated, what `id` and a random generator give, differs between processes. So it is known of few operators that
ranks which combine the same objects, each by itself, get the same.
"""

import operator
import zlib
from collections.abc import Callable
from dis import get_instructions
from functools import lru_cache
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_VARARGS, CO_VARKEYWORDS
from types import CodeType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

from hpcoll.base.ops import parts_of
from hpcoll.base.text import text_of
from hpcoll.comm.plans.signature import OBJECT_FUNCTIONS, OBJECT_OPS
from hpcoll.runtime.engine.object_layout import SUPPORTED
from hpcoll.runtime.program.fields import ANY_KIND, PLAIN, SEQUENCE
from hpcoll.runtime.program.object_fields import LENGTH, UNKNOWN

Op: TypeAlias = MPI.Op | Callable[[Any, Any], Any]

_OPS: tuple[MPI.Op, ...] = tuple(getattr(MPI, name) for name in OBJECT_OPS)
_IN_PYTHON = (max, min, operator.mul, operator.or_, operator.and_, operator.xor)
_BUILTIN = {*map(id, (*_IN_PYTHON, np.add, np.multiply, np.maximum, np.minimum))}
_SUM = (lambda a, b: a + b).__code__.co_code
# order of a set, and identity, which differ between processes
_VARYING = {"BUILD_SET", "SET_ADD", "SET_UPDATE", "IS_OP"}
_UNLIKE_FUNCTIONS = CO_VARARGS | CO_VARKEYWORDS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_NUMPY = [np.dtype(code) for code in "?bhilqBHILQefd"]
# An array's element type or another object's type, and the kinds of its objects; a pickle tells the others.
_SCALARS = [
    float,
    int,
    str,
    bytes,
    bool,
    type(None),
    *(form for dtype in _NUMPY for form in (dtype, dtype.type)),
]
_KINDS = [*((id(scalar), PLAIN) for scalar in _SCALARS), (id(list), SEQUENCE), (id(tuple), SEQUENCE)]
TYPES = np.array(_KINDS if SUPPORTED else [], np.int64)


class Operator(NamedTuple):
    """An operator as ranks know it.

    Attributes:
        number: Position among `OBJECT_OPS`; of functions a digest, from `OBJECT_FUNCTIONS` on.
        kinds: Kinds of objects of which it makes the same in every process (`hpcoll.runtime.program.fields`).
    """

    number: int
    kinds: int


def operator_of(op: Op) -> Operator:
    """Return what ranks know of an operator; what cannot be called raises where it is called."""
    code = code_of(op)
    if code is not None:
        return _of_code(code)
    for number, theirs in enumerate(_OPS):
        if op is theirs or (isinstance(op, MPI.Op) and op == theirs):
            return Operator(number, ANY_KIND if theirs == MPI.SUM else PLAIN)
    kinds = ANY_KIND if op is operator.add else PLAIN if id(op) in _BUILTIN else 0
    return Operator(_digest(text_of(op, read=_name)), kinds)


def code_of(op: Op) -> CodeType | None:
    """Return the code of a function of Python; None for all else."""
    code = getattr(op, "__code__", None)
    return code if type(code) is CodeType else None


@lru_cache(maxsize=256)
def _of_code(code: CodeType) -> Operator:
    own = code.co_code
    kinds = ANY_KIND if own == _SUM else PLAIN if _is_pure(code) else 0
    if code.co_name != "<lambda>":
        return Operator(_digest(code.co_name), kinds)
    constants = [const for const in code.co_consts if not isinstance(const, CodeType)]
    return Operator(_digest(" ".join((own.hex(), *code.co_names, *parts_of(constants)))), kinds)


def _is_pure(code: CodeType) -> bool:
    """Say whether code works with nothing but two arguments and constants, so that plain objects give the same in every process."""
    if code.co_names or code.co_freevars or code.co_cellvars or code.co_flags & _UNLIKE_FUNCTIONS:
        return False
    if (
        code.co_argcount != 2
        or code.co_kwonlyargcount
        or any(isinstance(const, frozenset | CodeType) for const in code.co_consts)
    ):
        return False
    return _VARYING.isdisjoint(instruction.opname for instruction in get_instructions(code))


def _name(op: Any) -> str:
    return str(getattr(op, "__name__", None) or type(op).__name__)


def _digest(text: str) -> int:
    return OBJECT_FUNCTIONS + zlib.crc32(text.encode()) % OBJECT_FUNCTIONS


def _opcodes() -> np.ndarray:
    """Return what follows each opcode of a pickle, as `hpcoll.runtime.program.object_fields` says."""
    follows = np.full(256, UNKNOWN, np.uint8)
    plain = {0: b"N\x88\x89]ae)t\x85\x86\x87}su(\x940.1", 1: b"\x80Kqh", 2: b"M", 4: b"Jrj", 8: b"G\x95"}
    for nbytes, opcodes in plain.items():
        follows[[*opcodes]] = nbytes
    for nbytes, opcodes in {1: b"\x8a\x8cC", 4: b"\x8bXB", 8: b"\x8d\x8e\x96"}.items():
        follows[[*opcodes]] = LENGTH + nbytes
    return follows


OPCODES = _opcodes()
