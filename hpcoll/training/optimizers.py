"""Optimisers of a parameter server: they change a parameter in place by its gradient. NumPy alone; no MPI.

Any callable ``optimizer(parameter, gradient, state, step)`` is one. It is called with a slice of a parameter, so it must work element by
element. ``parameter`` and ``gradient`` are arrays of one shape ``(count,)`` and element type; ``state`` is the slice's own dict, empty at
first; ``step`` counts from 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcoll.base.errors import ArgumentError

Array = NDArray[Any]
Optimizer = Callable[[Array, Array, dict[str, Any], int], None]


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum: ``v = momentum v - rate g``, then ``parameter += v``.

    Args:
        rate: Learning rate, ``> 0``.
        momentum: Share of the last change that is added again, ``0 <= momentum < 1``.

    Raises:
        ArgumentError: a value outside its range.
    """

    rate: float
    momentum: float = 0.0

    def __post_init__(self) -> None:
        _check("SGD", "rate", self.rate, self.rate > 0, "> 0")
        _check("SGD", "momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")

    def __call__(self, parameter: Array, gradient: Array, state: dict[str, Any], step: int) -> None:
        """Change a slice of a parameter."""
        if not self.momentum:
            parameter -= parameter.dtype.type(self.rate) * gradient
            return
        velocity = state.setdefault("velocity", np.zeros_like(parameter))
        velocity *= parameter.dtype.type(self.momentum)
        velocity -= parameter.dtype.type(self.rate) * gradient
        parameter += velocity


@dataclass(frozen=True)
class Adam:
    """Adam: the step is the mean gradient over the root of its mean square, both corrected for their start at zero.

    Args:
        rate: Learning rate, ``> 0``.
        beta1: Weight of the old mean, in ``[0, 1)``.
        beta2: Weight of the old mean square, in ``[0, 1)``.
        epsilon: Added to the root, ``> 0``.

    Raises:
        ArgumentError: a value outside its range.

    Source:
        Kingma and Ba, ICLR 2015, algorithm 1.
    """

    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        for name in ("rate", "epsilon"):
            _check("Adam", name, getattr(self, name), getattr(self, name) > 0, "> 0")
        for name in ("beta1", "beta2"):
            _check("Adam", name, getattr(self, name), 0 <= getattr(self, name) < 1, "in [0, 1)")

    def __call__(self, parameter: Array, gradient: Array, state: dict[str, Any], step: int) -> None:
        """Change a slice of a parameter."""
        real = parameter.dtype.type
        mean = state.setdefault("mean", np.zeros_like(parameter))
        square = state.setdefault("square", np.zeros_like(parameter))
        mean *= real(self.beta1)
        mean += real(1 - self.beta1) * gradient
        square *= real(self.beta2)
        square += real(1 - self.beta2) * gradient * gradient
        root = np.sqrt(square / real(1 - self.beta2**step))
        parameter -= real(self.rate / (1 - self.beta1**step)) * mean / (root + real(self.epsilon))


def _check(owner: str, name: str, value: float, good: bool, expected: str) -> None:
    if not good:
        raise ArgumentError(f"{owner}: {name} must be {expected}, got {value}")
