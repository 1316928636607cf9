"""Regions of the program: their names by nesting, how compiled code and Python enter and leave them, and what a ledger counts by them."""

import copy
import pickle
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hpcoll.comm.plans.ledger import Ledger, RegionRow
from hpcoll.comm.plans.signature import Purpose, Signature
from hpcoll.comm.status.blocked_call import call_parts, call_text
from hpcoll.comm.status.names import region_text
from hpcoll.comm.status.regions import Region, regions
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.telemetry.call_log import PROCESS, CallLog
from hpcoll.schedules.collectives import COLLECTIVES

STEP, HALO = regions["step"], regions["halo"]


def here() -> str:
    return region_text(int(PROCESS[f.REGION]))


@pytest.fixture(autouse=True)
def outside() -> Iterator[None]:
    """Each test ends where it began: outside of all regions."""
    yield
    left, PROCESS[f.REGION] = here(), 0
    assert left == ""


def test_nesting() -> None:
    """A region has the name of those around it, also when it is entered at other places, and inside of itself; each way is taken twice."""
    found = []
    for _ in range(2):
        with STEP:
            found.append(here())
            with HALO:
                found.append(here())
                with HALO:
                    found.append(here())
                found.append(here())
            found.append(here())
        with HALO:
            found.append(here())
    assert found == 2 * ["step", "step/halo", "step/halo/halo", "step/halo", "step", "halo"]


def test_an_error_leaves_regions() -> None:
    """And goes on: no region swallows it."""
    with pytest.raises(ZeroDivisionError), STEP, HALO:
        1 / 0  # noqa: B018
    assert here() == ""


def test_order_of_threads() -> None:
    """Where threads leave regions in another order than one would, none is left over."""
    STEP.__enter__()
    HALO.__enter__()
    STEP.__exit__(None, None, None)
    assert here() == "step"
    HALO.__exit__(None, None, None)


def test_other_ways_to_enter() -> None:
    """As an exit stack does, and of copies, which are the region itself."""
    with ExitStack() as stack:
        stack.enter_context(STEP)
        stack.enter_context(pickle.loads(pickle.dumps(HALO)))
        with copy.copy(HALO):
            assert here() == "step/halo/halo"
    assert copy.copy(HALO) is HALO
    with regions[" a\tb\x1b "]:
        assert here() == "a b?"


def test_compiled_and_python_alike() -> None:
    """What compiled code does not know Python does: entering in a new place, and leaving what was entered elsewhere."""
    region = Region("x")
    for enter, leave in (
        (region.__enter__, region.leave),
        (region.enter, region.__exit__),
        (region.__enter__, region.__exit__),
    ):
        with STEP:
            enter()
            assert here() == "step/x"
            leave(None, None, None)
            assert here() == "step"


def test_the_ledger() -> None:
    """Counts each ended call once by its region, however often it is asked; none of those that no program makes."""
    log, ledger = CallLog(), Ledger()
    collective = list(COLLECTIVES).index("allreduce")
    own, other = (
        Signature(collective, 0, 1, 1, 0, 0, purpose).word for purpose in (Purpose.NONE, Purpose.COMPARISON)
    )

    def call(word: int, took_ns: int) -> None:
        number = log.ncalls + 1
        log.fields[f.CALLS] = number
        record = log._records[0, number % f.RECORDS_HOT]
        record[[0, f.ITS_BEGIN, f.ITS_END, f.ITS_NAMES]] = word, 100, 100 + took_ns, PROCESS[f.REGION]
        log._own[f.BEGUN] = log._own[f.CALLS_ENDED] = number

    call(own, 7)
    ledger.watch(lambda: [log])
    with STEP:
        call(own, 1000)
        with HALO:
            call(own, 5000)
            call(other, 5000)
        call(own, 2000)
        assert (
            ledger.regions()
            == ledger.regions()
            == [("step/halo", 1, pytest.approx(5e-6), 1), ("step", 2, pytest.approx(3e-6), 2)]
        )
        call(own, 4000)
    call(own, 9)
    assert ledger.regions()[0] == RegionRow("step", 3, pytest.approx(7e-6), 3)
    assert [line.split() for line in str(ledger).splitlines()[-2:]] == [
        ["step", "3", "0.000", "2.3"],
        ["step/halo", "1", "0.000", "5.0"],
    ]
    ledger.account("allreduce", "ring", "float64").note(8)  # in flight, and ended as it began
    with HALO:
        call(own, 0)
    lines = [line.split() for line in str(ledger).splitlines()]
    assert lines[0][:5] == ["operation", "algorithm", "calls", "timed", "bytes"]
    assert lines[1] == ["allreduce", "ring", "1", "0", "8", "B", "-", "-", "float64"]
    assert lines[-4:-2] == [
        ["region", "calls", "timed", "seconds", "us/call"],
        ["step", "3", "3", "0.000", "2.3"],
    ]
    assert lines[-1] == ["halo", "1", "0", "-", "-"]
    ledger.clear()
    assert ledger.regions() == []
    assert "region" not in str(ledger)


def test_texts() -> None:
    """Calls in words come apart again, whatever the names are."""
    for parts in (("Barrier()", "a.py:7", "step/halo"), ("Bcast(x, root=0)", "/at ) ways/a.py:7", "")):
        assert call_parts(call_text(*parts)) == parts
