"""Regions and ``tag=``: calls of every form are named in the ledger, in records and in errors, whatever communicator they are made on."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forms import COLLECTIVE, Case
from internals import resources
from mpi4py import MPI
from reference import ensure, ensure_none, fresh, raised, unless

import hpcoll
from hpcoll.comm.diagnosis.flight_recorder import write_record
from hpcoll.comm.status.names import REGIONS, region_text
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.telemetry.call_log import PROCESS

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a rank alone awaits nobody"),
]
LATE_S = 1.5


def named(comm: hpcoll.Communicator) -> dict[str, int]:
    return {row.region: row.calls for row in comm.ledger.regions()}


def begun_and_waited(made: Any) -> None:
    if isinstance(made, MPI.Prequest):
        made.Start()
    made.Wait()


OBJECTS = (
    "bcast",
    "scatter",
    "gather",
    "allgather",
    "alltoall",
    "reduce",
    "allreduce",
    "scan",
    "exscan",
    "barrier",
)
METHODS = (
    *COLLECTIVE,
    *(f"I{name.lower()}" for name in COLLECTIVE),
    *(f"{name}_init" for name in COLLECTIVE),
    *OBJECTS,
)


def arguments(name: str, comm: hpcoll.Communicator) -> tuple[Any, ...]:
    """Return arguments of a method."""
    if name in OBJECTS:
        every = list(range(comm.size))
        return {"barrier": (), "scatter": (every,), "alltoall": (every,)}.get(name, (1,))
    method = name.removesuffix("_init")
    return Case(comm, method[1:].capitalize() if name.startswith("I") else method).arguments


def test_every_method_takes_a_tag() -> None:
    """It names that call alone, inside of the region around it, and leaves the program where it was; results are as without it."""
    comm, wrong = fresh(), list[object]()
    for name in METHODS:
        before = named(comm).get(f"methods/{name}", 0)
        with comm.region("methods"):
            made = getattr(comm, name)(*arguments(name, comm), tag=name)
            if isinstance(made, MPI.Request):
                begun_and_waited(made)
            if region_text(int(PROCESS[f.REGION])) != "methods":
                wrong.append((name, "is still in its region"))
        calls = named(comm).get(f"methods/{name}", 0) - before
        if calls < 1:
            wrong.append((name, calls))
        if name == "allgather" and made != [1] * comm.size:
            wrong.append((name, made))
    ensure_none(wrong)
    comm.Free()


def counted(name: str, calls: list[str]) -> Any:
    """Return a subclass's method that names each call after itself."""

    def method(self: hpcoll.Communicator, *given: Any) -> Any:
        calls.append(name)
        return getattr(hpcoll.Communicator, name)(self, *given, tag=name)

    return method


def test_methods_of_a_subclass_may_tag() -> None:
    """Each is entered once for a call, and not again by the method that it extends, nor by another one."""
    calls = list[str]()
    kind = type("Tagging", (hpcoll.Communicator,), {name: counted(name, calls) for name in METHODS})
    comm = kind(MPI.COMM_WORLD)
    for name in METHODS:
        made = getattr(comm, name)(*arguments(name, comm))
        if isinstance(made, MPI.Request):
            begun_and_waited(made)
    ensure_none([] if calls == [*METHODS] else calls)


@pytest.mark.parametrize("name", [3, "", " \t"])
def test_no_name(name: Any) -> None:
    """It is refused before any message leaves, in each form."""
    comm, x = fresh(), np.ones(1)
    calls = (
        lambda: comm.region(name),
        lambda: comm.Allreduce(x, x.copy(), tag=name),
        lambda: comm.Ibarrier(tag=name),
        lambda: comm.Barrier_init(tag=name),
        lambda: comm.bcast(1, tag=name),
    )
    expected = f"rank {comm.rank}: region or tag must be a text that is not empty, got {name!r}"
    errors = [raised(call) for call in calls]
    ensure_none(
        [error for error in errors if not isinstance(error, hpcoll.ArgumentError) or str(error) != expected]
    )
    comm.Free()


@pytest.mark.once
def test_where_a_call_is_named(tmp_path: Path) -> None:
    """Ledger, record and the error of a call that does not end say in which region it was made, on a communicator made before that."""
    comm, last, halo = fresh(), MPI.COMM_WORLD.size - 1, hpcoll.Communicator(MPI.COMM_WORLD).region("halo")
    x, y = np.ones(4), np.zeros(4)

    def late() -> None:
        time.sleep(LATE_S if comm.rank == last else 0)
        comm.Allreduce(x, y, timeout=0.5)

    comm.Allreduce(x, y)
    with comm.region("step"):
        for _ in range(3):
            with halo:
                comm.Allreduce(x, y)
        comm.Allreduce(x, y, tag="norm")
        ledger = named(comm)
        with halo:
            error = raised(late)
    write_record(str(tmp_path), "")
    (found,) = tmp_path.iterdir()
    key = resources(comm).key
    calls = next(one["calls"] for one in json.loads(found.read_text())["communicators"] if one["id"] == key)
    recorded = [
        call["region"] for call in calls if call["collective"] == "allreduce" and call["lane"] == "blocking"
    ][-6:]
    wrong: list[object] = unless(ledger == {"step/halo": 3, "step/norm": 1}, ledger)
    wrong += unless(
        recorded == ["", "step/halo", "step/halo", "step/halo", "step/norm", "step/halo"], recorded
    )
    text = "test_regions.py:"
    right = (
        isinstance(error, hpcoll.CollectiveTimeout)
        and text in str(error)
        and ", in region step/halo, blocking call 6 on" in str(error)
    )
    ensure_none(wrong + unless(right, repr(error)))


@pytest.mark.parametrize("run", [lambda comm: comm.Barrier(), lambda comm: comm.Ibarrier().Wait()])
def test_each_rank_has_its_own(run: Callable[[hpcoll.Communicator], None]) -> None:
    """Ranks whose regions differ call the same. Names of one rank are not those of others, nor are their numbers."""
    comm = fresh()
    REGIONS.number(object())  # so that numbers differ, too
    with comm.region(f"rank{comm.rank}"):
        run(comm)
    ensure(named(comm) == {f"rank{comm.rank}": 1}, named(comm))
    comm.Free()
