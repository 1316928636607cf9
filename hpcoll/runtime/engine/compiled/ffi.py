"""Calls of C functions, raw memory and atomic accesses, for compiled code."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

INT, LONG, VOID = ir.IntType(32), ir.IntType(64), ir.VoidType()
_LINE = ir.VectorType(LONG, 8)


def c_function(result: ir.Type, *parameters: ir.Type) -> Any:
    """Return a call of a C function through its address; arguments are int64, narrowed where the C type is int, and so is the result."""

    @intrinsic
    def call(typingctx, address, arguments):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
            function = builder.inttoptr(values[0], ir.FunctionType(result, parameters).as_pointer())
            return _called(context, builder, function, values[1])

        return _kind(result)(address, arguments), codegen

    return call


def capi_function(name: str, result: ir.Type, *parameters: ir.Type) -> Any:
    """Return a call of a function of CPython's C API, by its name; arguments as in `c_function`. The caller of most of them has the GIL."""

    @intrinsic
    def call(typingctx, arguments):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(result, parameters), name
            )
            return _called(context, builder, function, values[0])

        return _kind(result)(arguments), codegen

    return call


def _kind(result: ir.Type) -> Any:
    return types.int64 if result is LONG else types.int32


def _called(context: Any, builder: Any, function: Any, arguments: Any) -> Any:
    kind = function.type.pointee
    unpacked = cgutils.unpack_tuple(builder, arguments)
    narrowed = [builder.trunc(v, t) if t is INT else v for v, t in zip(unpacked, kind.args, strict=True)]
    returned = builder.call(function, narrowed)
    return context.get_constant(types.int32, 0) if kind.return_type is VOID else returned


def _pointer(element: Any) -> Any:
    @intrinsic
    def pointer(typingctx, address):  # type: ignore[no-untyped-def]
        """Return the numbers at an address."""

        def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
            return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.int64), codegen

    return pointer


pointer, byte_pointer = _pointer(types.int64), _pointer(types.uint8)


def _instructions(result: Any, nparameters: int) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes an intrinsic of int64s from a function that emits its instructions; without a result it gives 0."""

    def made(emit: Callable[..., Any]) -> Any:
        """Return the intrinsic of a function that emits its instructions."""

        @intrinsic
        def call(typingctx, *given: Any):  # type: ignore[no-untyped-def]
            def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
                emitted = emit(builder, *cgutils.unpack_tuple(builder, values[0]))
                return context.get_constant(types.int32, 0) if result is None else emitted

            return (result or types.int32)(
                types.StarArgTuple.from_types((types.int64,) * nparameters)
            ), codegen

        return call

    return made


def _word(builder: Any, address: Any, kind: ir.Type = LONG) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


@_instructions(types.int64, 1)
def load_acquire(builder: Any, address: Any) -> Any:
    """Return the int64 at an address that another thread or process writes; nothing after it is read before it."""
    return builder.load_atomic(_word(builder, address), "acquire", 8)


@_instructions(types.int64, 1)
def load_int32(builder: Any, address: Any) -> Any:
    """Return the int32 at an address."""
    return builder.sext(builder.load(_word(builder, address, INT)), LONG)


@_instructions(None, 2)
def store_release(builder: Any, address: Any, value: Any) -> None:
    """Write an int64 that another thread or process reads; nothing before it is written after it."""
    builder.store_atomic(value, _word(builder, address), "release", 8)


@_instructions(types.boolean, 3)
def exchange(builder: Any, address: Any, expected: Any, value: Any) -> Any:
    """Replace ``expected`` by ``value`` at once, if it is there; return whether it was."""
    return builder.extract_value(
        builder.cmpxchg(_word(builder, address), expected, value, "acq_rel", "acquire"), 1
    )


@_instructions(None, 2)
def add(builder: Any, address: Any, value: Any) -> None:
    """Add to an int64 at once, whatever other threads add to it meanwhile."""
    builder.atomic_rmw("add", _word(builder, address), value, "acq_rel")


@_instructions(None, 0)
def fence(builder: Any) -> None:
    """Keep all writes before it, past the caches too, ahead of all that follow."""
    builder.fence("seq_cst")


def _copied(kind: ir.Type) -> Any:
    """Return an intrinsic that copies a value of a type, aligned or not, from the second address to the first."""

    def emit(builder: Any, destination: Any, source: Any) -> None:
        builder.store(
            builder.load(_word(builder, source, kind), align=1), _word(builder, destination, kind), align=1
        )

    return _instructions(None, 2)(emit)


copy_byte, copy_int32, copy_word, copy_pair, copy_line = map(
    _copied, (ir.IntType(8), INT, LONG, ir.VectorType(LONG, 2), _LINE)
)


@_instructions(None, 2)
def store_uncached(builder: Any, destination: Any, source: Any) -> None:
    """Copy 64 bytes past the caches, to where a cache line starts; `fence` before anybody is told."""
    stored = builder.store(
        builder.load(_word(builder, source, _LINE), align=1), _word(builder, destination, _LINE), align=64
    )
    stored.set_metadata("nontemporal", builder.module.add_metadata([INT(1)]))


release_gil = capi_function("PyEval_SaveThread", LONG)  # what `take_gil` is to be given
take_gil = capi_function("PyEval_RestoreThread", VOID, LONG)
memcpy = c_function(VOID, LONG, LONG, LONG)
sched_yield = c_function(INT)
usleep = c_function(INT, INT)
madvise = c_function(INT, LONG, LONG, INT)
clock_gettime = c_function(INT, INT, LONG)
process_vm_readv = c_function(LONG, INT, LONG, LONG, LONG, LONG, LONG)
errno_location = c_function(LONG)
call_with_address = c_function(INT, LONG)  # whatever takes an address, or a handle, and answers with an int
