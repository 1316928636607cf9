"""Host reduction kernels: ``dst = srcs[0] op srcs[1] op ...``, compiled by Numba; imports `hpcoll.base` and this package only.

A kernel is an address with the C signature ``void(T *dst, T **srcs, int64 nsrcs, int64 count)``; the engine calls it
through that address, so that one compiled engine serves every operator and element type. Kernels are compiled when first
asked for and kept on disk. Rules that every kernel keeps:

- integers wrap; bool is one byte, 0 or 1; logical operators give 0 or 1;
- NaN propagates through min and max, and both give +0.0 for zeros of either sign, so that ``a op b`` and ``b op a``
  have the same bits;
- ``dst`` may be any one of the sources, but may not overlap one partly.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hpcoll.base.ops import EXACT_SUM, EXACT_SUM_ODD, ReduceOp
from hpcoll.kernels.machine_code import load

_BODIES = Path(__file__).with_name("host_bodies.py")
_EXACT = [Path(__file__).with_name(f"{name}.py") for name in ("exact_bodies", "digit_bodies", "digit_form")]


@lru_cache(maxsize=256)
def _built_in(name: str, dtype: np.dtype) -> int:
    def make(symbol: str) -> bytes:
        from hpcoll.kernels.host_bodies import kernel_file

        return kernel_file(name, dtype, symbol)

    return load(f"{name}_{dtype}", [_BODIES], make)


@lru_cache(maxsize=16)
def _exact(name: str) -> int:
    def make(symbol: str) -> bytes:
        from hpcoll.kernels.exact_bodies import kernel_file

        return kernel_file(name, symbol)

    return load(name, _EXACT, make)


@lru_cache(maxsize=256)
def _user(name: str, function: Callable[[Any, Any], Any], dtype: np.dtype) -> Any:
    from hpcoll.kernels.host_bodies import user_kernel

    return user_kernel(name, function, dtype)


def kernel_address(op: ReduceOp, dtype: np.dtype) -> int:
    """Return the address of the compiled fold of an operator for one element type.

    Args:
        op: Operator; average and premultiplied sum are sums here (their factors are applied outside the fold).
        dtype: Native NumPy type; not float16, bfloat16 or long double.

    Raises:
        KernelError: the operator's function does not compile for this type.
    """
    if op.function is not None:
        return int(_user(op.name, op.function, dtype).address)
    if op is EXACT_SUM_ODD:
        return _exact(f"exact_sum_odd_{dtype}")
    if op is EXACT_SUM and dtype.kind in "fc":
        return _exact(f"exact_sum_{dtype}")
    name = "sum" if op is EXACT_SUM or op.average or op.premultiplier is not None else op.name
    return _built_in(name + "_real" if dtype.kind == "f" and name in ("min", "max") else name, dtype)
