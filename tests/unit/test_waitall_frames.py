"""Requests for which a program waits in `MPI.Request.Waitall`, found by the line at which its thread stands.

In the place of the library `select.select`, which takes a list first, too, and is left once there is something in a socket.
"""

import linecache
import select
import socket
import sys
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from slowness import slowed

from hpcoll.comm.requests.waitall_frames import waited_for

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="the source of what a frame executes is known from Python 3.11 on")

LIMIT_S = slowed(60)
Request = SimpleNamespace(Waitall=select.select, waitall=select.select, Waitany=select.select)


def named(one: Any) -> None:
    requests = [one]
    Request.Waitall(requests, [], [])


def listed(one: Any) -> None:
    Request.waitall([one], [], [])


def attribute(one: Any) -> None:
    me = SimpleNamespace(requests=[one])
    Request.Waitall(
        me.requests,
        [], [],
    )  # fmt: skip


def computed(one: Any) -> None:
    Request.Waitall([one] * 1, [], [])


def another(one: Any) -> None:
    requests = [one]
    Request.Waitany(requests, [], [])


def beside(one: Any) -> None:
    Waitall = [one]  # noqa: N806
    select.select(Waitall, [], [])


@pytest.mark.parametrize(
    ("program", "seen"), [(named, True), (listed, True), (attribute, True), (computed, False), (another, False), (beside, False)]
)
def test_what_is_seen(program: Any, *, seen: bool) -> None:
    """Requests of that function alone, where they are to be had without running anything of the program's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(target=program, args=(ours,))
        thread.start()
        while sys._current_frames()[thread.ident or 0].f_code is not program.__code__:
            pass
        found = until_seen() if seen else [waited_for() for _ in range(100)][-1]
        theirs.send(b"1")
        thread.join(LIMIT_S)
    assert found == [ours] * seen


def until_seen() -> list[Any]:
    """A thread that has entered a function has not come to its last line yet."""
    found: list[Any] = []
    while not found:
        found = waited_for()
    return found


class Large:
    """Whose end is seen."""


@pytest.mark.parametrize("kept", [False, True])
def test_nothing_is_kept_and_nothing_taken(*, kept: bool) -> None:
    """What a program lets go of after that is gone, and what it has from ``locals()`` stays as it was."""
    ours, theirs = socket.socketpair()
    found, gone, names = list[Any](), list[bool](), list[set[str]]()

    def program() -> None:
        requests, large = [ours], Large()
        reference, variables = weakref.ref(large), locals() if kept else {}
        Request.Waitall(requests, [], [])
        del large
        gone.append(reference() is None)
        names.append(set(variables))

    def look() -> None:
        found.extend(until_seen())
        theirs.send(b"1")

    thread = threading.Thread(target=look)
    with ours, theirs:
        thread.start()
        program()
        thread.join(LIMIT_S)
    assert found == [ours]
    assert gone == [not kept]
    assert names[0] >= ({"requests", "large"} if kept else set())


def test_nobody_elses_variables_are_kept_while_sources_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a function that does not wait so has ends with it, even where reading a source takes long."""
    ours, theirs = socket.socketpair()
    entered, leave, gone = threading.Event(), threading.Event(), list[bool]()

    def elsewhere() -> weakref.ref[Large]:
        large = Large()
        entered.set()
        leave.wait()
        return weakref.ref(large)

    def read(*_: Any) -> list[str]:
        leave.set()
        thread.join(LIMIT_S)
        return []

    thread = threading.Thread(target=lambda: gone.append(elsewhere()() is None))
    waiting = threading.Thread(target=named, args=(ours,))
    with ours, theirs:
        waiting.start()
        until_seen()
        monkeypatch.setattr(linecache, "getlines", read)
        thread.start()
        entered.wait(LIMIT_S)
        waited_for()
        theirs.send(b"1")
        waiting.join(LIMIT_S)
    assert gone == [True]
