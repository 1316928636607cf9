"""The built-in operators as functions of two scalars, for hosts and GPUs alike; `hpcoll.kernels.host` has their rules."""

from collections.abc import Callable
from typing import Any

import numpy as np

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "min": lambda a, b: a if a < b or a != a else b,
    "max": lambda a, b: a if a > b or a != a else b,
    # of floating-point numbers: what is added makes +0.0 of a zero
    "min_real": lambda a, b: (a if a < b or a != a else b) + np.uint8(0),
    "max_real": lambda a, b: (a if a > b or a != a else b) + np.uint8(0),
    "land": lambda a, b: (a != 0) & (b != 0),
    "lor": lambda a, b: (a != 0) | (b != 0),
    "lxor": lambda a, b: (a != 0) ^ (b != 0),
    "band": lambda a, b: a & b,
    "bor": lambda a, b: a | b,
    "bxor": lambda a, b: a ^ b,
}
