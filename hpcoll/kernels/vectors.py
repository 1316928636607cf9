"""Vectors, lanes and conversions for GPU kernels, as Numba CUDA intrinsics.

Memory in vectors of 4 to 16 bytes (`access`), a function applied lane by lane (`lanewise`), items of any size (`copier`), and
numbers as the hardware converts them.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.cuda import libdevice
from numba.cuda.extending import intrinsic

_WORD = ir.IntType(32)
_BYTES = ir.IntType(8).as_pointer()


def _at(builder: Any, pointer: Any, offset: Any, target: Any) -> Any:
    return builder.bitcast(builder.gep(builder.bitcast(pointer, _BYTES), [offset]), target.as_pointer())


def _gather(builder: Any, elements: list[Any], target: Any) -> Any:
    vector = ir.Constant(ir.VectorType(elements[0].type, len(elements)), ir.Undefined)
    for index, element in enumerate(elements):
        vector = builder.insert_element(vector, element, _WORD(index))
    return builder.bitcast(vector, target)


def _tuple(builder: Any, elements: list[Any]) -> Any:
    return _aggregate(builder, elements, ir.ArrayType(elements[0].type, len(elements)))


def _aggregate(builder: Any, elements: Sequence[Any], kind: Any) -> Any:
    aggregate = ir.Constant(kind, ir.Undefined)
    for index, element in enumerate(elements):
        aggregate = builder.insert_value(aggregate, element, index)
    return aggregate


def _elements(builder: Any, vector: Any) -> list[Any]:
    return [builder.extract_element(vector, _WORD(index)) for index in range(vector.type.count)]


def _members(builder: Any, aggregate: Any, count: int) -> list[Any]:
    return [builder.extract_value(aggregate, index) for index in range(count)]


def _move(
    builder: Any, text: str, constraints: str, result: Any, pointer: Any, index: Any, values: list[Any]
) -> Any:
    """Emit the instruction itself: an ordinary vector load is split again by the compiler where elements are short."""
    place = builder.addrspacecast(_at(builder, pointer, index, ir.IntType(8)), _BYTES.pointee.as_pointer(1))
    function = ir.FunctionType(result, [ir.IntType(64), *(value.type for value in values)])
    return builder.asm(function, text, constraints, [builder.ptrtoint(place, ir.IntType(64)), *values], True)


def _moves(words: types.UniTuple) -> tuple[Any, Any]:
    count, kind = words.count, {1: "u32", 2: "v2.u32", 4: "v4.u32"}[words.count]
    inputs = [f"${index}" for index in range(1, count + 1)]
    outputs = [f"${index}" for index in range(count)]

    @intrinsic
    def load(typingctx, pointer, index):  # type: ignore[no-untyped-def]
        def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            offset = builder.mul(arguments[1], arguments[1].type(4 * count))
            text, result = (
                f"ld.global.{kind} {{{', '.join(outputs)}}}, [${count}];",
                ir.LiteralStructType([_WORD] * count),
            )
            found = _move(builder, text, ",".join(["=r"] * count + ["l"]), result, arguments[0], offset, [])
            return _tuple(builder, _members(builder, found, count))

        return words(pointer, types.int64), emit

    @intrinsic
    def store(typingctx, pointer, index, value):  # type: ignore[no-untyped-def]
        def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            offset = builder.mul(arguments[1], arguments[1].type(4 * count))
            text, values = (
                f"st.global.{kind} [$0], {{{', '.join(inputs)}}};",
                _members(builder, arguments[2], count),
            )
            _move(
                builder,
                text,
                ",".join(["l"] + ["r"] * count + ["~{memory}"]),
                ir.VoidType(),
                arguments[0],
                offset,
                values,
            )
            return context.get_dummy_value()

        return types.void(pointer, types.int64, words), emit

    return load, store


def access(element: Any, nlanes: int) -> tuple[Any, Any, Any, Any]:
    """Functions on vectors of ``nlanes`` elements, 4, 8 or 16 bytes together, where memory is aligned to that.

    A vector is 32-bit words in registers. The functions are load, ``(pointer, index) -> words``; store, ``(pointer, index, words)``; split,
    ``words -> tuple of elements``; and join, which undoes it.

    Args:
        element: Numba type of an integer, floating or complex number.
        nlanes: Elements in a vector.
    """
    part = getattr(element, "underlying_float", element)  # complex numbers are two lanes of LLVM's vector
    nparts = nlanes * (1 if part is element else 2)
    words, lanes = types.UniTuple(types.uint32, nparts * part.bitwidth // 32), types.UniTuple(element, nlanes)

    @intrinsic
    def split(typingctx, value):  # type: ignore[no-untyped-def]
        def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            vector = ir.VectorType(context.get_value_type(part), nparts)
            elements = _elements(
                builder, _gather(builder, _members(builder, arguments[0], words.count), vector)
            )
            if part is not element:
                pairs = zip(elements[::2], elements[1::2], strict=True)
                elements = [_aggregate(builder, pair, context.get_value_type(element)) for pair in pairs]
            return _tuple(builder, elements)

        return lanes(words), emit

    @intrinsic
    def join(typingctx, value):  # type: ignore[no-untyped-def]
        def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            members = _members(builder, arguments[0], nlanes)
            if part is not element:
                members = [member for pair in members for member in _members(builder, pair, 2)]
            return _tuple(
                builder, _elements(builder, _gather(builder, members, ir.VectorType(_WORD, words.count)))
            )

        return words(lanes), emit

    return *_moves(words), split, join


def calls(function: Callable[..., Any], signature: Any) -> Any:
    """A plain Python function of scalars, compiled with its caller; needs no GPU, as a device function of Numba's own would.

    Args:
        function: Takes scalars, and gives one.
        signature: Numba's signature to compile it for; the result is cast to its return type.
    """

    @intrinsic
    def call(typingctx, *values: Any):  # type: ignore[no-untyped-def]
        def emit(context, builder, found, arguments):  # type: ignore[no-untyped-def]
            return context.compile_internal(
                builder, function, signature, _members(builder, arguments[0], len(values))
            )

        return signature.return_type(types.StarArgTuple.from_types(signature.args)), emit

    return call


def lanewise(function: Callable[..., Any], signature: Any, nlanes: int) -> Any:
    """`calls` for each lane of tuples of ``nlanes`` elements; gives a tuple. A scalar argument is the same for all lanes."""

    @intrinsic
    def call(typingctx, *given: Any):  # type: ignore[no-untyped-def]
        wide = [isinstance(argument, types.BaseTuple) for argument in given]

        def emit(context, builder, found, arguments):  # type: ignore[no-untyped-def]
            values = _members(builder, arguments[0], len(given))
            columns = [
                _members(builder, value, nlanes) if many else [value] * nlanes
                for value, many in zip(values, wide, strict=True)
            ]
            lanes = zip(*columns, strict=True)
            return _tuple(
                builder, [context.compile_internal(builder, function, signature, lane) for lane in lanes]
            )

        expected = [
            types.UniTuple(arg, nlanes) if many else arg
            for arg, many in zip(signature.args, wide, strict=True)
        ]
        return types.UniTuple(signature.return_type, nlanes)(
            types.StarArgTuple.from_types(tuple(expected))
        ), emit

    return call


@intrinsic
def address(typingctx: Any, pointer: Any) -> Any:
    """The number behind a pointer."""

    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.ptrtoint(arguments[0], ir.IntType(64))

    return types.uint64(pointer), emit


@intrinsic
def ahead(typingctx: Any, pointer: Any, count: Any) -> Any:
    """A pointer to the element that is so many further on."""

    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.gep(arguments[0], [arguments[1]])

    return pointer(pointer, types.int64), emit


@intrinsic
def load_acquire(typingctx: Any, place: Any) -> Any:
    """The 64-bit word at an address, which any GPU or the host may store; what follows sees all that was stored before it."""

    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        function = ir.FunctionType(ir.IntType(64), [ir.IntType(64)])
        return builder.asm(function, "ld.acquire.sys.global.u64 $0, [$1];", "=l,l,~{memory}", arguments, True)

    return types.int64(types.int64), emit


@intrinsic
def store_release(typingctx: Any, place: Any, value: Any) -> Any:
    """Store a 64-bit word at an address, for all GPUs and the host, behind all that this thread has stored or seen before."""

    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        function = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 2)
        builder.asm(function, "st.release.sys.global.u64 [$0], $1;", "l,l,~{memory}", arguments, True)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


def pointer_to(element: Any) -> Any:
    """A function that gives the pointer to elements of a type at an address."""

    @intrinsic
    def pointer(typingctx, place):  # type: ignore[no-untyped-def]
        kind = types.CPointer(element)

        def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return builder.inttoptr(arguments[0], context.get_value_type(kind))

        return kind(types.int64), emit

    return pointer


def copier(itemsize: int) -> Callable[..., Any]:
    """A function ``(dst, dst_offset, src, src_offset)`` that copies one item; pointers to bytes, offsets in bytes.

    Args:
        itemsize: 1, 2, 4, 8 or 16 bytes. Memory is aligned to the item, or to 8 bytes for items of 16.
    """
    align = min(itemsize, 8)
    item = ir.VectorType(ir.IntType(64), 2) if itemsize == 16 else ir.IntType(8 * itemsize)

    @intrinsic
    def copy(typingctx, dst, dst_offset, src, src_offset):  # type: ignore[no-untyped-def]
        def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            value = builder.load(_at(builder, arguments[2], arguments[3], item), align=align)
            builder.store(value, _at(builder, arguments[0], arguments[1], item), align=align)
            return context.get_dummy_value()

        return types.void(dst, types.int64, src, types.int64), emit

    return copy


float_bits = libdevice.float_as_int
float_of_bits = libdevice.int_as_float
float_of_half = libdevice.half2float
half_of_float = libdevice.float2half_rn
