"""Which frames of an error are to be seen."""

import contextlib
from types import TracebackType
from typing import Any

import pytest

from hpcoll.base.errors import ArgumentError, TransportError
from hpcoll.comm.status import uncaught


def function(module: str, source: str, **names: Any) -> Any:
    """Return the function ``f`` of a module of that name."""
    found: dict[str, Any] = {"__name__": module, **names}
    exec(source, found)
    return found["f"]


def raising(error: BaseException, *modules: str) -> TracebackType:
    """Return the traceback of an error that the last of some modules raises, which call each other."""
    call = function(modules[-1], "def f():\n    raise error", error=error)
    for one in reversed(modules[:-1]):
        call = function(one, "def f():\n    call()", call=call)
    with contextlib.suppress(type(error)):
        call()
    assert error.__traceback__ is not None
    return error.__traceback__.tb_next  # type: ignore[return-value]


def modules(trace: TracebackType | None) -> list[str]:
    found = []
    while trace is not None:
        found.append(trace.tb_frame.f_globals["__name__"])
        trace = trace.tb_next
    return found


@pytest.mark.parametrize(
    ("error", "called", "seen"),
    [
        (
            ArgumentError("no"),
            "__main__ hpcoll.comm.methods.blocking contextlib hpcoll.comm.x".split(),
            ["__main__"],
        ),
        (
            ArgumentError("no"),
            "runpy mpi4py.run __main__ lib hpcoll.comm.x".split(),
            ["__main__", "lib"],
        ),
        (
            ValueError("no"),
            "__main__ hpcoll.x copyreg mine numpy".split(),
            ["__main__", "mine", "numpy"],
        ),
        (ValueError("no"), ["__main__", "hpcoll.x", "numpy"], ["__main__", "hpcoll.x", "numpy"]),
        (AssertionError(), ["__main__", "hpcoll.x"], ["__main__", "hpcoll.x"]),
        (ValueError("no"), ["__main__", "hpcollected"], ["__main__", "hpcollected"]),
        (ArgumentError("no"), ["hpcoll.comm.x"], []),
    ],
)
def test_frames(error: Exception, called: list[str], seen: list[str]) -> None:
    """All of the program's are seen, whoever called them; all of hpcoll's where it did not mean to raise the error."""
    trace = raising(error, *called)
    error.__traceback__ = trace
    with uncaught._shortened(error, trace):
        assert modules(error.__traceback__) == seen
    assert modules(error.__traceback__) == called


def test_an_error_without_a_table_has_no_rows() -> None:
    error = TransportError("lost", code=3)
    assert (str(error), error.code, error.rank, error.rows) == ("lost", 3, -1, ())
