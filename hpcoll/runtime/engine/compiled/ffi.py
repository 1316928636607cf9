"""What compiled code needs beyond Numba: calls of C functions by address, raw memory, atomic accesses."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

INT, LONG, VOID = ir.IntType(32), ir.IntType(64), ir.VoidType()


def c_function(result: ir.Type, *parameters: ir.Type) -> Any:
    """A call of a C function through its address; arguments are int64, narrowed where the C type is int, and so is the result."""

    @intrinsic
    def call(typingctx, address, arguments):  # type: ignore[no-untyped-def]
        """Call the function at an address with a tuple of arguments; 0 where it returns nothing."""

        def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
            function = builder.inttoptr(values[0], ir.FunctionType(result, parameters).as_pointer())
            return _called(context, builder, function, values[1])

        return _kind(result)(address, arguments), codegen

    return call


def capi_function(name: str, result: ir.Type, *parameters: ir.Type) -> Any:
    """A call of a function of CPython's C API, by its name; arguments as in `c_function`. Whoever calls most of them has the GIL."""

    @intrinsic
    def call(typingctx, arguments):  # type: ignore[no-untyped-def]
        """Call the function with a tuple of arguments; 0 where it returns nothing."""

        def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
            function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, parameters), name)
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


@intrinsic
def pointer(typingctx, address):  # type: ignore[no-untyped-def]
    """The int64s at an address."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int64)(types.int64), codegen


@intrinsic
def load_acquire(typingctx, address):  # type: ignore[no-untyped-def]
    """The int64 at an address that another thread or process writes; nothing after it is read before it."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.load_atomic(builder.inttoptr(values[0], LONG.as_pointer()), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def load_int32(typingctx, address):  # type: ignore[no-untyped-def]
    """The int32 at an address."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.sext(builder.load(builder.inttoptr(values[0], INT.as_pointer())), LONG)

    return types.int64(types.int64), codegen


@intrinsic
def store_release(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Write an int64 that another thread or process reads; nothing before it is written after it."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        builder.store_atomic(values[1], builder.inttoptr(values[0], LONG.as_pointer()), "release", 8)
        return context.get_constant(types.int32, 0)

    return types.int32(types.int64, types.int64), codegen


@intrinsic
def exchange(typingctx, address, expected, value):  # type: ignore[no-untyped-def]
    """Replace ``expected`` by ``value`` at once, if it is there; returns whether it was."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        at = builder.inttoptr(values[0], LONG.as_pointer())
        return builder.extract_value(builder.cmpxchg(at, values[1], values[2], "acq_rel", "acquire"), 1)

    return types.boolean(types.int64, types.int64, types.int64), codegen


@intrinsic
def add(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Add to an int64 at once, whatever other threads add to it meanwhile."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        builder.atomic_rmw("add", builder.inttoptr(values[0], LONG.as_pointer()), values[1], "acq_rel")
        return context.get_constant(types.int32, 0)

    return types.int32(types.int64, types.int64), codegen


def _line_copier(aligned: bool) -> Any:
    @intrinsic
    def copy(typingctx, destination, source):  # type: ignore[no-untyped-def]
        """Copy 64 bytes."""

        def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
            line = ir.VectorType(LONG, 8)
            loaded = builder.load(builder.inttoptr(values[1], line.as_pointer()), align=1)
            stored = builder.store(loaded, builder.inttoptr(values[0], line.as_pointer()), align=64 if aligned else 1)
            if aligned:
                stored.set_metadata("nontemporal", builder.module.add_metadata([INT(1)]))
            return context.get_constant(types.int32, 0)

        return types.int32(types.int64, types.int64), codegen

    return copy


copy_line = _line_copier(aligned=False)  # 64 bytes
store_uncached = _line_copier(aligned=True)  # 64 bytes past the caches, to where a cache line starts; `fence` before anybody is told


@intrinsic
def fence(typingctx):  # type: ignore[no-untyped-def]
    """What was written before is seen before what is written after, also what went past the caches."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        builder.fence("seq_cst")
        return context.get_constant(types.int32, 0)

    return types.int32(), codegen


release_gil = capi_function("PyEval_SaveThread", LONG)  # what `take_gil` is to be given
take_gil = capi_function("PyEval_RestoreThread", VOID, LONG)
memcpy = c_function(VOID, LONG, LONG, LONG)
sched_yield = c_function(INT)
usleep = c_function(INT, INT)
madvise = c_function(INT, LONG, LONG, INT)
clock_gettime = c_function(INT, INT, LONG)
process_vm_readv = c_function(LONG, INT, LONG, LONG, LONG, LONG, LONG)
errno_location = c_function(LONG)
