"""Stretches: consecutive chunks that no step of a lane tells apart, so that lowering handles them as one."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from hpcoll.schedules.ir import Buffer, Chunk, Step


class Stretches:
    """The stretches of each buffer.

    Args:
        steps: Steps of the lane.
        counts: Chunks of INPUT, OUTPUT and SCRATCH.
        single: Buffers whose chunks are stretches of their own, since there may be gaps between them.
        aliases: Chunks of INPUT that are chunks of OUTPUT: all, each with its own number, or a few, which become stretches of their own.
    """

    def __init__(
        self, steps: Sequence[Step], counts: Sequence[int], single: Iterable[int], aliases: dict[int, int]
    ) -> None:
        self.counts = counts
        cuts = [np.zeros(count + 1, bool) for count in counts]  # whether a stretch begins at a chunk
        if len(aliases) == counts[0] == counts[1] and all(i == o for i, o in aliases.items()):
            cuts[Buffer.INPUT] = cuts[Buffer.OUTPUT]
        else:
            for pair in aliases.items():
                for buffer, index in enumerate(pair):
                    cuts[buffer][index : index + 2] = True
        for buffer in single:
            cuts[buffer][:] = True
        alike: list[list[np.ndarray]] = []  # insides of runs that one step reads and writes, chunk by chunk
        ends: list[list[int]] = [[], [], []]  # of runs, by buffer
        for step in steps:
            runs = step.runs
            for buffer, index, n in runs:
                ends[buffer] += (index, index + n)
            if len(runs) > 1 and runs[0].n > 1:
                alike.append([cuts[buffer][index + 1 : index + n] for buffer, index, n in runs])
        for cut, places in zip(cuts, ends, strict=True):
            cut[places] = True
        changed = True
        while changed:
            changed = False
            for insides in alike:
                every = np.logical_or.reduce(insides)
                for inside in insides:
                    if (inside != every).any():
                        inside[:] = every
                        changed = True
        self._firsts = [np.flatnonzero(cut).tolist() for cut in cuts]

    def of(self, run: Chunk) -> list[tuple[int, int]]:
        """Return the stretches of a step's run: the first chunk, and the number of chunks."""
        buffer, first, n = run
        if n == 1:
            return [(first, 1)]
        firsts = self._firsts[buffer]
        lo = bisect_left(firsts, first)
        return [
            (start, end - start)
            for start, end in pairwise(firsts[lo : bisect_left(firsts, first + n, lo) + 1])
        ]

    def all(self, buffer: Buffer) -> list[tuple[int, int]]:
        """Return all stretches of a buffer, and what is behind its last one or before its first."""
        bounds = sorted({0, *self._firsts[buffer], self.counts[buffer]})
        return [(start, end - start) for start, end in pairwise(bounds)]
