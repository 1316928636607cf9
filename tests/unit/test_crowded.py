"""More ranks than cores: what ranks do while they wait leaves the cores to those that work."""

from types import SimpleNamespace
from typing import Any

import pytest

from hpcoll.comm.diagnosis import failure_handling
from hpcoll.comm.diagnosis.watchdog import Watchdog
from hpcoll.comm.requests.call_hooks import StalledCall
from hpcoll.runtime.engine.wait_policy import crowd, pause_s

NRANKS, NCORES = 128, 2


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that has started many ranks on a host of two cores."""
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", str(NRANKS))
    monkeypatch.setattr("os.cpu_count", lambda: NCORES)


@pytest.mark.usefixtures("crowded")
def test_looks_take_a_twentieth_of_the_cores() -> None:
    """All ranks look for some CPU seconds and pause; with a core for each the pause is that much shorter."""
    spent_s = 0.002
    share = NRANKS * spent_s / pause_s(spent_s) / NCORES
    assert share == pytest.approx(1 / 20)
    assert crowd() == NRANKS / NCORES
    assert crowd(2 * NRANKS) == 2 * NRANKS / NCORES


def test_ranks_with_a_core_each_are_no_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do cores without a rank make a pause shorter than the look is long."""
    monkeypatch.delenv("OMPI_COMM_WORLD_LOCAL_SIZE", raising=False)
    assert crowd(4, 8) == crowd(8, 8) == 1.0


def test_a_look_is_at_few_ranks_and_in_turn_at_all() -> None:
    """The first look is at the ranks behind this one, so that all together look at all; in doubt at the same ones again."""
    rank, awaited = 30, 3
    watch = SimpleNamespace(
        _known=SimpleNamespace(known_ranks=lambda: [*range(40)]), _doubts=False, _turn=rank + 1 - 16
    )
    looks = [Watchdog._some(watch, [awaited]) for _ in range(3)]  # type: ignore[arg-type]
    assert [len(look) for look in looks] == [17] * 3
    assert all(awaited in look for look in looks)
    assert looks[0][1:] == [*range(31, 40), *range(7)]
    assert {*looks[0], *looks[1], *looks[2]} == {*range(40)}
    watch._doubts = True
    assert Watchdog._some(watch, [awaited]) == looks[2]  # type: ignore[arg-type]


@pytest.mark.usefixtures("crowded")
def test_a_call_is_not_looked_at_as_soon_as_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where many share a core, most calls wait for a while: no watchdog is made, nor its modules imported, before 2 s."""
    made: list[Any] = []
    watchdog = SimpleNamespace(look=lambda held: made.append(held))
    monkeypatch.setattr(failure_handling, "_watchdog_over", lambda call, owner: watchdog)
    monkeypatch.setattr(failure_handling, "CommunicatorCalls", SimpleNamespace)
    owner = SimpleNamespace(resources=SimpleNamespace(near=range(NRANKS)))
    call = StalledCall(owner, None, since=100.0)  # type: ignore[arg-type]
    for now in (100.5, 101.9, 102.0):
        monkeypatch.setattr("time.monotonic", lambda now=now: now)
        failure_handling.Diagnosis().stalls(call, True)
        assert len(made) == (now > 101.92)
