"""The budget of a file that a stranger may have written: memory and work are counted before they are spent.

A file of two kilobytes can ask for four billion turns of a loop. Whoever reads, proves or merges what a file says counts each step, chunk,
clock and turn here first. Memory counts in bytes, and work as the bytes that could be filled in that time.
"""

from collections.abc import Callable
from typing import NamedTuple

from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import format_nbytes

NBYTES = 1 << 29


class Cost(NamedTuple):
    """Something that a file may have many of, and the bytes that count for each."""

    noun: str
    nbytes: int


STEPS = Cost("steps, counting all turns of loops", 2048)
CHANNELS = Cost("thread blocks and channels", 1024)
WAITS = Cost("waits for other steps", 512)
CELLS = Cost("chunks of buffers", 160)
NAMED = Cost("chunks that steps name", 64)
TURNS = Cost("turns of a loop", 64)
CLOCKS = Cost("messages and waits for so many thread blocks", 1)


class Budget:
    """The memory and work that are left for a file.

    Args:
        refused: Makes the error of a file that needs more, of a text.
    """

    def __init__(self, refused: Callable[[str], Exception] = ArgumentError) -> None:
        self._refused, self._left = refused, NBYTES

    def spend(self, number: int, cost: Cost) -> None:
        """Count so many of something, before they are made; raise the error where that is too much."""
        self._left -= number * cost.nbytes
        if self._left < 0:
            most = f"{format_nbytes(NBYTES)}, or the time to fill these"
            raise self._refused(
                f"expected a file that takes at most {most}, got one with too many {cost.noun}"
            )

    def free(self, number: int, cost: Cost) -> None:
        """Count what is not needed any more."""
        self._left += number * cost.nbytes
