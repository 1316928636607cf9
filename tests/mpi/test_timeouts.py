"""``timeout=`` of one call: all ranks raise when one comes late, a generous one changes nothing, a bad one is refused."""

import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from failed_calls import not_refused
from mpi4py import MPI
from reference import SOON_S, agreed, ensure_none, fresh, raised, unless

import hpcoll
from hpcoll import ArgumentError, CollectiveTimeout
from hpcoll.comm.team.team import IN_FLIGHT

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.once]

LIMIT_S = 0.3
TEXT = r"rank \d+: .*\) at \S+:\d+, (blocking call \d+ |call \d+ in flight |)on .*, did not end in 0\.3 s:"
TEXT += r"(\n  rank \d+ waits for ranks? [\d, -]+)+\n  rank \d+ .+"
LATE = MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1


def x(count: int = 8) -> np.ndarray:
    return np.ones(count)


class Wrong(Exception):
    """A call gave what it must not: raised where callers look for errors of calls."""


def blocking(comm: hpcoll.Communicator, timeout: Any) -> None:
    total = np.zeros(8)
    comm.Allreduce(x(), total, timeout=timeout)
    if (total != comm.size).any():
        raise Wrong(total)


def in_flight(comm: hpcoll.Communicator, timeout: Any) -> None:
    comm.Iallreduce(x(), np.zeros(8), timeout=timeout).Wait()


def queued(comm: hpcoll.Communicator, timeout: Any) -> None:
    """The limit of a call that has to wait for others, which have none."""
    before = [comm.Iallreduce(x(), np.zeros(8)) for _ in range(IN_FLIGHT)]
    comm.Iallgather(x(), x(8 * comm.size), timeout=timeout).Wait()
    MPI.Request.Waitall(before)


def together(comm: hpcoll.Communicator, timeout: Any) -> None:
    try:
        MPI.Request.Waitall(
            [comm.Iallreduce(x(), np.zeros(8), timeout=timeout), comm.Ibarrier(timeout=timeout)]
        )
    except MPI.Exception as error:
        refused = raised(comm.Barrier)
        raise (
            CollectiveTimeout("told by a code alone") if "cannot be used" in str(refused) else error
        ) from None


def persistent(comm: hpcoll.Communicator, timeout: Any) -> None:
    """The last rank is late for the third start; whatever it has met before, it comes to where the others wait for it then."""
    try:
        request = comm.Allreduce_init(x(), np.zeros(8), timeout=timeout)
        for _ in range(2):
            request.Start()
            request.Wait()
    finally:
        if LATE and timeout == LIMIT_S:
            MPI.COMM_WORLD.Barrier()
    request.Start()
    request.Wait()


FORMS = [blocking, in_flight, queued, together, persistent]


def given_up(
    form: Callable[..., None], comm: hpcoll.Communicator, timeout: Any, *, late: bool, times: int = 1
) -> tuple[BaseException | None, float]:
    """Return what a call raises for which some ranks come late, and after how long.

    Collective: who is late comes when the others have given up, and calls so many times: messages may all be there, and not the news.
    """
    if late and form is not persistent:
        MPI.COMM_WORLD.Barrier()
    begun = time.monotonic()
    error = raised(lambda: [form(comm, timeout) for _ in range(times if late else 1)])
    seconds = time.monotonic() - begun
    if not late:
        MPI.COMM_WORLD.Barrier()
    return error, seconds


def wrong(error: BaseException | None, seconds: float, text: str, *, late: bool) -> list[Any]:
    """Return what `given_up` says, of ranks on which that is not what it must be; collective.

    Who began later than the others is told before its own limit is over.
    """
    waited = MPI.COMM_WORLD.allreduce(0.0 if late else seconds, MPI.MAX)
    right = (
        isinstance(error, CollectiveTimeout)
        and re.fullmatch(text, str(error))
        and waited >= LIMIT_S
        and seconds < SOON_S
    )
    return agreed(unless(right, (repr(error), seconds, waited)))


@pytest.mark.parametrize("form", FORMS)
def test_a_rank_comes_late(form: Callable[..., None], way: str) -> None:
    """All raise, in the call's time and with one text; the rank that comes when the others have given up, too. They go on together."""
    if way == "messages" and form not in (blocking, in_flight):
        pytest.skip("two are enough: they wait for messages in the same way")
    comm = fresh()
    errors = [raised(lambda: form(comm, 60)) for _ in range(3)]
    comm.Allreduce(x(), np.zeros(8))
    ensure_none([repr(one) for one in errors if one])
    error, seconds = given_up(form, comm, LIMIT_S, late=LATE, times=4 if way == "messages" else 1)
    assert wrong(error, seconds, ".*" if form is together else TEXT, late=LATE) == []
    chains = MPI.COMM_WORLD.allgather(str(error).partition("0.3 s: ")[2])
    assert form is together or len({*chains}) == 1, chains
    ensure_none(not_refused(raised(comm.Barrier)))
    comm.recover()
    error = raised(lambda: [again(comm, 60) for again in (blocking, in_flight)])
    ensure_none([repr(error)] if error else [])


def test_the_call_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that is later than ``HPCOLL_TIMEOUT`` is waited for where the call says so, and only there."""
    fresh()  # what a group needs is made without a limit
    monkeypatch.setenv("HPCOLL_TIMEOUT", "300ms")
    MPI.COMM_WORLD.Barrier()
    comm, late, errors = fresh(), MPI.COMM_WORLD.rank == 0, list[BaseException | None]()
    for turn in range(2):
        if late and turn:
            time.sleep(3 * LIMIT_S)
        flying = comm.Iallreduce(x(), np.zeros(8), timeout="1m")
        errors += [raised(lambda: blocking(comm, "1m")), raised(flying.Wait)]
    ensure_none([repr(one) for one in errors if one])
    error, seconds = given_up(blocking, comm, None, late=late)
    assert wrong(error, seconds, TEXT, late=late) == []


def test_where_calls_are_compared_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message that compares has the limit, too."""
    monkeypatch.setenv("HPCOLL_CHECK", "all")
    comm, late = fresh(), MPI.COMM_WORLD.rank == 0
    blocking(comm, 60)
    MPI.COMM_WORLD.Barrier()
    error, seconds = given_up(blocking, comm, LIMIT_S, late=late)
    assert wrong(error, seconds, r"(?s).* in 0\.3 s.*", late=late) == []


@pytest.mark.parametrize("timeout", [60, "5m", 0.5e3])
def test_a_generous_one_costs_no_entry(timeout: Any, described: list[str]) -> None:
    """The call is found where the one without is."""
    comm, found = fresh(), list[Any]()
    send, recv = x(), np.zeros(8)

    def run(**more: Any) -> None:
        for method in ("Allreduce", "Bcast", "Barrier"):
            arguments = {"Allreduce": (send, recv), "Bcast": (send,), "Barrier": ()}[method]
            recv[:] = 0
            getattr(comm, method)(*arguments, **more)
            [getattr(comm, f"I{method.lower()}")(*arguments, **more).Wait() for _ in range(IN_FLIGHT)]
            request = getattr(comm, f"{method}_init")(*arguments, **more)
            request.Start()
            request.Wait()
            request.Free()
            found.extend([] if method != "Allreduce" or (recv == comm.size).all() else [recv.copy()])

    for _ in range(2):
        run()
    described.clear()
    run(timeout=timeout)
    ensure_none(found + described)


@pytest.mark.parametrize("bad", ["x", pytest.param(-1, marks=pytest.mark.full)])
def test_bad_ones_are_refused(bad: Any) -> None:
    """On the rank that gives it, before any message leaves: others wait for its next call, which is right."""
    comm, found = fresh(), []
    expected = rf"rank {comm.rank}: timeout must be a number of seconds above 0, or text such as .*, got {re.escape(repr(bad))}$"
    for culprit in (0, comm.size - 1):
        for form in (one for one in FORMS if one is not queued):  # which begins with calls that are right
            if comm.rank == culprit:
                refused = raised(lambda form=form: form(comm, bad))
                right = isinstance(refused, ArgumentError) and re.search(expected, str(refused))
                found += unless(right, (form.__name__, repr(refused)))
                if refused is None:  # it has called
                    continue
            error = raised(lambda form=form: form(comm, None))
            found += [(form.__name__, repr(error))] if error else []
    ensure_none(found)
