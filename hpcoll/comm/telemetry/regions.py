"""Regions of the program, which name the calls that are made in them: see `hpcoll.Communicator.region`."""

from typing import Any

from mpi4py import MPI

from hpcoll.base.errors import ArgumentTypeError
from hpcoll.base.text import printable, quoted
from hpcoll.comm.status.names import REGIONS, RegionName
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.telemetry.call_log import PROCESS

_process = memoryview(PROCESS)  # type: ignore[arg-type]  # the same numbers, at a third of the price


class Region:
    """A region of the program: a context manager that may be entered again and again, also inside of itself.

    Attributes:
        name: Its name, without those of the regions around it.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        """Name the calls of this process from now on, inside of the region in which it is."""
        _process[f.REGION] = REGIONS.number(RegionName(_process[f.REGION], self.name))

    def __exit__(self, *error: object) -> None:
        """Leave the innermost region: where threads leave theirs in another order, none is left over in the end."""
        number = _process[f.REGION]
        if number:
            _process[f.REGION] = REGIONS.name(number).outer


class _Regions(dict[str, Region]):
    """The regions of this process by name; each is made when it is first asked for."""

    def __missing__(self, name: str) -> Region:
        if not isinstance(name, str) or not printable(name):
            raise ArgumentTypeError(f"rank {MPI.COMM_WORLD.rank}: region or tag must be a text that is not empty, got {quoted(name)}")
        return self.setdefault(name, Region(printable(name)))


regions = _Regions()


def tagged(method: str, given: dict[str, Any]) -> Any:
    """Return the result of a communicator's method, called without its ``tag=`` in the region of that name.

    Args:
        method: Its name.
        given: All its arguments by their names, ``self`` and ``tag`` among them.
    """
    comm = given.pop("self")
    with regions[given.pop("tag")]:
        return getattr(comm, method)(**given)
