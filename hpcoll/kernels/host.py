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
from typing import Any

import numpy as np

from hpcoll.base.ops import EXACT_SUM, EXACT_SUM_ODD, ReduceOp
from hpcoll.kernels.machine_code import kernel

_BODIES = "host_bodies", "operators"
_EXACT = "exact_bodies", *_BODIES, "float_bits", "digit_bodies", "digit_form"


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
    if op is EXACT_SUM_ODD or (op is EXACT_SUM and dtype.kind in "fc"):
        name = f"{op.name}_odd_{dtype}" if op is EXACT_SUM_ODD else f"{op.name}_{dtype}"
        return kernel(name, _EXACT, name)
    name = "sum" if op is EXACT_SUM or op.average or op.premultiplier is not None else op.name
    name += "_real" if dtype.kind == "f" and name in ("min", "max") else ""
    return kernel(f"{name}_{dtype}", _BODIES, name, dtype)
