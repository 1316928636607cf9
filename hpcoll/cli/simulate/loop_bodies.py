"""The loop of `hpcoll.analysis.event_loop`, compiled by Numba. Imported only where it has to be compiled."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

from numba import carray, njit
from numba.types import CPointer, float64, int32, int64

from hpcoll.analysis import event_loop
from hpcoll.analysis.event_loop import PROCESSOR, STREAMS
from hpcoll.analysis.event_table import NCOLUMNS
from hpcoll.kernels.object_code import object_file

_HELPERS = ("push", "pop", "record", "execute", "first_byte", "occupy", "send")
# arrays, with their lengths
_REALS, _INTEGERS, _SHORT_INTEGERS = ((CPointer(element), int64) for element in (float64, int64, int32))


def _compiled(name: str, helpers: dict[str, Callable[..., Any]], inline: str = "never") -> Any:
    """Compile a function of the event loop, with compiled helpers in place of the plain functions of the same names."""
    code = getattr(event_loop, name).__code__
    return njit(error_model="numpy", inline=inline)(FunctionType(code, vars(event_loop) | helpers))


_helpers: dict[str, Callable[..., Any]] = {}
for _name in _HELPERS:
    _helpers[_name] = _compiled(_name, _helpers, "always")
_run = _compiled("simulate", _helpers)


def _simulate(  # type: ignore[no-untyped-def]
    rows,
    nrows,
    first,
    nfirst,
    costs,
    ncosts,
    clocks,
    nranks,
    links,
    nlinks,
    calls,
    ncalls,
    times,
    nsegments,
    spans,
    nspans,
    active,
    nactive,
    heap,
    nheap,
    chunk,
    nchannels,
    window,
):
    return _run(
        (
            carray(rows, (nrows, NCOLUMNS)),
            carray(first, (nfirst,)),
            carray(costs, (ncosts, STREAMS + 1)),
            carray(clocks, (nranks, PROCESSOR + 1)),
            carray(links, (nlinks, 2)),
            carray(calls, (ncalls, 2)),
            carray(times, (nsegments, nrows)),
            carray(spans, (nspans, 4)),
            carray(active, (nactive, 3)),
            carray(heap, (nheap, 3)),
            chunk,
            nchannels,
            window,
        )
    )


_PARAMETERS = (
    *(_SHORT_INTEGERS, _SHORT_INTEGERS, *[_REALS] * 6, _INTEGERS, _REALS),
    *(float64, int64, int64),
)


def loop_file(symbol: str) -> bytes:
    """Return the object file of the loop."""
    words = [word for kind in _PARAMETERS for word in (kind if isinstance(kind, tuple) else (kind,))]
    return object_file(_simulate, float64(*words), symbol)
