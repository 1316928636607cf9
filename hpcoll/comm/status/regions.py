"""Regions of the program, which name the calls that are made in them: see `hpcoll.Communicator.region`."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentTypeError
from hpcoll.base.hooks import Hook
from hpcoll.base.text import printable, quoted
from hpcoll.comm.status.names import REGIONS, RegionName
from hpcoll.kernels.machine_code import python_function
from hpcoll.runtime.engine.entry import region_address
from hpcoll.runtime.engine.object_layout import SUPPORTED
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program import object_fields as o
from hpcoll.runtime.telemetry.call_log import PROCESS

_process = memoryview(PROCESS)  # type: ignore[arg-type]  # the same numbers, at a third of the price
_kept: list["Region"] = []  # all there are, for good: compiled code has their addresses


class _RegionType(type):
    """The class of `Region`: of that, ``__enter__`` and ``__exit__`` are functions, as `contextlib.ExitStack` wants them."""

    __enter__ = property(lambda cls: cls.enter)
    __exit__ = property(lambda cls: cls.leave)


class Region(metaclass=_RegionType):
    """A region of the program: a context manager that may be entered again and again, also inside of itself.

    A region has its own ``__enter__`` and ``__exit__``, which are compiled: a third of what methods of Python cost. They call these where
    the region around it is not that of the last time.

    Attributes:
        name: Its name, without those of the regions around it.
    """

    __slots__ = ("__enter__", "__exit__", "_begun", "_cross", "_words", "name")
    if TYPE_CHECKING:

        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...

    def __init__(self, name: str) -> None:
        self.name = name
        self._begun: tuple[int, ...] = ()  # when it was entered, while somebody is told
        fields = {
            o.NUMBER_AT: PROCESS[f.REGION :].ctypes.data,
            o.OUTER: -1,
            o.INNER: -1,
            o.ENTERS: id(Region.enter),
            o.LEAVES: id(Region.leave),
            o.REGION: id(self),
            o.NOTHING: id(None),
        }
        self._words = np.array([fields[field] for field in range(o.REGION_NFIELDS)], np.int64)
        self._cross = python_function("cross", region_address, self._words) if SUPPORTED else None
        self.cross()
        _kept.append(self)

    def cross(self) -> None:
        """Let ``with`` call compiled code; methods of Python while somebody is told."""
        cross = None if region_left.functions else self._cross
        setattr(self, "__enter__", cross or self.enter)  # noqa: B010  # it has a type of its own
        setattr(self, "__exit__", cross or self.leave)  # noqa: B010

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self.name,)

    def __repr__(self) -> str:
        return f"<hpcoll region {self.name!r}>"

    def enter(self) -> None:
        """Name the calls of this process from now on, inside of the region in which it is."""
        outer = _process[f.REGION]
        _process[f.REGION] = inner = REGIONS.number(RegionName(outer, self.name))
        self._words[[o.OUTER, o.INNER]] = outer, inner
        if region_left.functions:
            self._begun += (time.monotonic_ns(),)

    def leave(self, *error: object) -> None:
        """Leave the innermost region: where threads leave theirs in another order, none is left over in the end."""
        number = _process[f.REGION]
        if begun := self._begun:  # another thread may forget it
            self._begun = begun[:-1]
            region_left(number, begun[-1], time.monotonic_ns())
        if number:
            _process[f.REGION] = REGIONS.name(number).outer  # type: ignore[attr-defined]


class _Regions(dict[str, Region]):
    """The regions of this process by name; each is made when it is first asked for."""

    def __missing__(self, name: str) -> Region:
        if not isinstance(name, str) or not printable(name):
            raise ArgumentTypeError(
                f"rank {MPI.COMM_WORLD.rank}: region or tag must be a text that is not empty, got {quoted(name)}"
            )
        return self.setdefault(name, Region(printable(name)))


def _cross_all() -> None:
    for region in _kept:
        region._begun = ()
        region.cross()


regions = _Regions()
# a region's number, its begin and end as of `time.monotonic_ns`
region_left = Hook[[int, int, int]](_cross_all)


def _named(name: str) -> Region:
    return regions[name]


def tagged(method: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Return the result of a communicator's method, called without its ``tag=`` in the region of that name.

    Args:
        method: The function itself: by its name a subclass's own method would be found, and called a second time.
        given: All its arguments by their names, ``self`` and ``tag`` among them.
    """
    with regions[given.pop("tag")]:
        return method(**given)
