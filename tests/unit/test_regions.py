"""Regions of the program: their names by nesting, and how compiled code and Python enter and leave them."""

import copy
import pickle
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hpcoll.comm.status.blocked_call import call_parts, call_text
from hpcoll.comm.status.names import region_text
from hpcoll.comm.status.regions import Region, regions
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.telemetry.call_log import PROCESS

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
    assert found == 2 * "step step/halo step/halo/halo step/halo step halo".split()


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


def test_texts() -> None:
    """Calls in words come apart again, whatever the names are."""
    for parts in (("Barrier()", "a.py:7", "step/halo"), ("Bcast(x, root=0)", "/at ) ways/a.py:7", "")):
        assert call_parts(call_text(*parts)) == parts
