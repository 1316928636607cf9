"""Which frames of an error are to be seen, and which number of the program's a call has."""

import contextlib
import io
import sys
from types import SimpleNamespace, TracebackType
from typing import Any

import pytest

from hpcoll.base.errors import ArgumentError, KernelError, MismatchError, TransportError
from hpcoll.comm.status import uncaught
from hpcoll.comm.team.resources import Resources
from hpcoll.runtime.program import fields
from hpcoll.runtime.telemetry.call_log import EVERY, CallLog


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
            ["__main__", "hpcoll.comm.methods.blocking", "contextlib", "hpcoll.comm.x"],
            ["__main__"],
        ),
        (
            ArgumentError("no"),
            ["runpy", "mpi4py.run", "__main__", "lib", "hpcoll.comm.x"],
            ["__main__", "lib"],
        ),
        (
            ValueError("no"),
            ["__main__", "hpcoll.x", "copyreg", "mine", "numpy"],
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


def test_errors_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cause is told by its text; a bug that it came of while that was handled keeps all frames; a variable brings back all."""
    error, cause, bug = KernelError("no"), TypeError("typing"), AssertionError("bug")
    cause.__traceback__, bug.__traceback__ = (
        raising(cause, "hpcoll.kernels", "numba"),
        raising(bug, "hpcoll.x"),
    )
    error.__cause__, cause.__context__ = cause, bug
    trace = raising(error, "__main__", "hpcoll.x")
    with uncaught._shortened(error, trace):
        assert [modules(one.__traceback__) for one in (cause, bug)] == [[], ["hpcoll.x"]]
    monkeypatch.setenv("HPCOLL_TRACEBACK", "full")
    with uncaught._shortened(error, trace) as shorter:
        assert not shorter
        assert modules(cause.__traceback__) == ["hpcoll.kernels", "numba"]


@pytest.mark.parametrize("first", [True, False])
def test_the_table_is_printed_by_one_rank(first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one piece; the error has it before and after, as attributes and in its text."""
    error = MismatchError("calls differ:\n  rank 0: a\n  rank 1: b", rank=1, call="b")
    monkeypatch.setattr(uncaught, "first_of_node", lambda what: first)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    uncaught._print_once(error)
    shown = (
        "rank 1: calls differ:\n  rank 0: a\n  rank 1: b\n"
        if first
        else "rank 1: calls differ; another rank of this node shows more\n"
    )
    assert sys.stderr.getvalue() == f"hpcoll.MismatchError: {shown}"
    assert str(error) == "rank 1: calls differ:\n  rank 0: a\n  rank 1: b"
    assert (error.rank, error.call, error.rows) == (1, "b", ("rank 0: a", "rank 1: b"))


def test_an_error_without_a_table_has_no_rows() -> None:
    error = TransportError("lost", code=3)
    assert (str(error), error.code, error.rank, error.rows) == ("lost", 3, -1, ())


def communicator() -> tuple[Resources, list[CallLog]]:
    """Resources with message contexts for blocking calls, and two for calls in flight."""
    logs = [CallLog() for _ in range(3)]
    on = Resources.__new__(Resources)
    contexts = [SimpleNamespace(index=10 + place, log=log) for place, log in enumerate(logs)]
    on.__dict__.update(message_contexts=contexts, _persistent=[], has_gpus=False, counts_in_flight=True)
    return on, logs


def call(log: CallLog) -> int:
    log._words[fields.CALLS] += 1
    return log.ncalls


def test_blocking_calls_are_counted_without_service_collectives() -> None:
    """And with those that the library served; a service collective is of the call after it."""
    on, (log, *_) = communicator()
    assert on.numbered(10, call(log)) == "blocking call 1"
    log.note_service()
    service = call(log)
    assert (on.numbered(10, service), on.numbered(10, service, after=True)) == (
        "blocking call 2",
        "blocking call 1",
    )
    latest = call(log)
    assert (on.numbered(10, 1), on.numbered(10, latest)) == ("blocking call 1", "blocking call 2")
    log.begin_library(1)
    log.end_library()
    following = call(log)
    assert on.numbered(10, following) == "blocking call 4"
    assert on.numbered(10, latest) == ""  # nobody knows how many the library had served by then
    log.serve()  # another communicator's from now on
    assert on.numbered(10, call(log)) == "blocking call 1"


def test_calls_in_flight_are_counted_over_their_message_contexts() -> None:
    """Without the exchange of arrivals that follows on many of them."""
    on, (_, *lanes) = communicator()
    seen, counted = 0, []
    for issued in range(2 * EVERY + 5):
        lane = issued % 2
        number = call(lanes[lane])
        if issued and not issued % EVERY:
            continue
        seen += 1
        counted.append(on.counted(11 + lane, number) == seen)
    assert all(counted)
    on.counts_in_flight = False
    assert on.numbered(11, 1) == on.numbered(99, 1) == ""
