"""The functions of `hpcoll.analysis.event_loop`, compiled by Numba; what is compiled is kept on disk."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

from numba import njit

from hpcoll.analysis import event_loop


def _compiled(name: str, helpers: dict[str, Callable[..., Any]], **options: Any) -> Any:
    """A function of the event loop, compiled, that calls helpers instead of the plain functions of the same names."""
    code = getattr(event_loop, name).__code__
    return njit(nogil=True, cache=True, **options)(FunctionType(code, vars(event_loop) | helpers))


_helpers: dict[str, Callable[..., Any]] = {}
for _name in ("record", "execute", "first_byte", "occupy"):
    _helpers[_name] = _compiled(_name, _helpers, inline="always")
simulate = _compiled("simulate", _helpers)
simulate_in_lockstep = _compiled("simulate_in_lockstep", _helpers)
