"""Compiled: floating-point numbers as the integers of their bits."""

from typing import Any

from numba import types
from numba.extending import intrinsic


def _as(source: Any, target: Any) -> Any:
    """Return the function that gives the bits of one type as a number of another."""

    @intrinsic
    def cast(typingctx, value):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
            return builder.bitcast(values[0], context.get_value_type(target))

        return target(source), codegen

    return cast


bits_of, float_of = _as(types.float64, types.int64), _as(types.int64, types.float64)
float32_of = _as(types.uint32, types.float32)
