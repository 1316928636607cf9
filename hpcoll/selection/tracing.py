"""The value of ``HPCOLL_TRACE``: where traces are written, and what is in them."""

from typing import NamedTuple

from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import quoted

_STEPS = ":steps"


class Tracing(NamedTuple):
    """The folder of traces, and whether they have the steps of calls."""

    folder: str
    steps: bool = False

    def __repr__(self) -> str:
        return repr(self.folder + _STEPS * self.steps)


def tracing(value: str) -> Tracing:
    """Return what a value asks for: a folder, or one with ``:steps`` behind it; ArgumentError for another word behind a colon.

    >>> tracing("traces"), tracing("/scratch/traces:steps").steps, tracing("run:1/")
    ('traces', True, 'run:1/')
    """
    folder = value.removesuffix(_STEPS)
    if not folder or ":" in folder.rpartition("/")[2]:
        raise ArgumentError(
            f"expected a folder, or folder{_STEPS}, got {quoted(value)}; behind a name with a colon write /"
        )
    return Tracing(folder, folder != value)
