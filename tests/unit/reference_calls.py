"""Inputs of the reference engine: programs with their memories, the setting of a run, and where an operation reads and writes."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from reference_memory import Memory

from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import STAGING, Code, Program

SCRATCH = 2


class Operator(NamedTuple):
    """A reduction operator: bytes of an element, and a function of the bytes of two runs of elements."""

    itemsize: int
    combine: Callable[[np.ndarray, np.ndarray], np.ndarray]


class Reach(NamedTuple):
    """The peers and copies that reach the GPU memory of a rank.

    Attributes:
        readers: Ranks of its node that map it.
        mpi_takes_gpu: Whether its MPI library takes addresses of GPU memory.
        exported: Whether INPUT and OUTPUT may be mapped, too; SCRATCH always may.
        puts: Readers may write there when they are let, and all ranks know.
    """

    readers: frozenset[int]
    mpi_takes_gpu: bool
    exported: tuple[bool, bool]
    puts: bool = False


class Call(NamedTuple):
    """A call of all ranks: their programs and memories, in rank order, and what reaches their memory where programs are for GPUs."""

    programs: Sequence[Program]
    memories: Sequence[Memory]
    operator: Operator
    reach: Sequence[Reach] = ()


class Setting(NamedTuple):
    """The setting of a run.

    Attributes:
        seed: Of its order.
        eager_nbytes: The largest MPI message that a send does not wait for.
        nodes: On which node each rank is; empty: each on its own.
        room: Lanes of the greediest program that fit one staging slot.
    """

    seed: int
    eager_nbytes: int = 0
    nodes: tuple[int, ...] = ()
    room: int = 1


Places = list[tuple[int, int]]  # buffer and displacement of each


def operands_of(program: Program, row: Sequence[int]) -> tuple[Places, Places]:
    """Return where a COPY, REDUCE or STAGE writes, and where it reads."""
    code, source, destination = (
        row[f.CODE],
        (row[f.BUFFER], row[f.DISPL]),
        (row[f.TO_BUFFER], row[f.TO_DISPL]),
    )
    if code != Code.REDUCE:
        return [destination if code == Code.COPY else (STAGING, row[f.STAGED_DISPL])], [source]
    first, last = row[f.FIRST_SOURCE], row[f.FIRST_SOURCE] + row[f.NSOURCES]
    places = [(buffer, displ) for buffer, displ in program.sources[first : last + row[f.NFURTHER]].tolist()]
    return [destination, *places[last - first :]], places[: last - first]
