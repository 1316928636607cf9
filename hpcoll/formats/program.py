"""A program that a file describes: the schedules of all its ranks, what they must do, and where each step stands in the file."""

from typing import NamedTuple

from hpcoll.schedules.collectives import Collective
from hpcoll.schedules.ir import Schedule


class FilePlace(NamedTuple):
    """The place of a step in a file; -1: unknown, or not of a thread block."""

    line: int
    gpu: int
    block: int = -1
    step: int = -1

    def __str__(self) -> str:
        names = ("line", self.line), ("gpu", self.gpu), ("thread block", self.block), ("step", self.step)
        return ", ".join(f"{name} {number}" for name, number in names if number >= 0)


class FileProgram(NamedTuple):
    """A program of a file.

    Attributes:
        path: The file.
        name: Name of the algorithm, as the file has it.
        collective: Name of the collective in hpcoll's words; ``"custom"``: one that only ``meaning`` describes.
        meaning: Pre- and postcondition. In place, ``aliases`` names the chunks of INPUT that are chunks of OUTPUT.
        nranks: Number of ranks, as many as ``schedules``.
        root: Rank of the root; 0 for collectives without one.
        schedules: A schedule for each rank. A thread block is a channel, and its number in the file is the channel's link.
        places: The place of each step: by rank, channel and step.
        in_place: The program is for calls in place. If it is for no others, chunks of INPUT that are chunks of OUTPUT are named as OUTPUT.
        out_of_place: The program is for calls out of place.
        uniform: All blocks must be of one size. Programs with links have chunks of one size, until they are put in lanes.
        min_bytes: Smallest message that the file is meant for; ``max_bytes``: the largest, 0: any.
        slots: Messages that may wait between two ranks on a link, where the file says so; 0: it does not.
    """

    path: str
    name: str
    collective: str
    meaning: Collective
    nranks: int
    root: int
    schedules: tuple[Schedule, ...]
    places: tuple[tuple[tuple[FilePlace, ...], ...], ...]
    in_place: bool
    out_of_place: bool
    uniform: bool = False
    min_bytes: int = 0
    max_bytes: int = 0
    slots: int = 0

    @property
    def modes(self) -> tuple[bool, ...]:
        """The values of ``in_place`` for which the program is meant."""
        return (False,) * self.out_of_place + (True,) * self.in_place

    def where(self, rank: int, channel: int, step: int) -> str:
        """Return the place of a step in words."""
        return str(self.places[rank][channel][step])
