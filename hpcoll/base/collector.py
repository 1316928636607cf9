"""The collector of cycles, which would look again and again at the many tuples that planning makes."""

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")


def uncollected(function: Callable[P, Result]) -> Callable[P, Result]:
    """Let a function run without the collector."""

    @wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> Result:
        enabled = gc.isenabled()
        gc.disable()
        try:
            return function(*args, **options)
        finally:
            if enabled:
                gc.enable()

    return run
