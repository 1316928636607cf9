"""Grids of ranks on the command line: the neighbours of neighbourhood collectives that are drawn or simulated."""

import argparse
from math import prod

from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import quoted
from hpcoll.cli.options import option
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.graph import Graph, grid, parse_dims


def configure_grid(parser: argparse.ArgumentParser) -> None:
    """Declare ``--grid`` and ``--periodic``, which `grid_of` reads."""
    option(
        parser,
        "--grid DIMS",
        "neighbours on a grid of ranks, such as 4x2 or 2x2x2; default: a ring of all ranks",
    )
    option(parser, "--periodic", "the first and the last rank of each row of the grid are neighbours, too")


def grid_of(
    arguments: argparse.Namespace, collective: str, default: int, most: int
) -> tuple[int, Graph | None]:
    """Return the number of ranks, and the graph of the grid that was asked for, or None.

    The grid says the number of ranks where ``--nranks`` does not; without a grid it is ``default``. A grid of more than ``most`` ranks
    gets no graph. ArgumentError: there are no neighbours, or other ranks than asked for.
    """
    if arguments.grid is None:
        if arguments.periodic:
            raise ArgumentError("--periodic says that a grid is periodic, and needs one, such as --grid 4x2")
        return default if arguments.nranks is None else arguments.nranks, None
    if not COLLECTIVES[collective].neighbours:
        raise ArgumentError(f"{collective} has no neighbours, got --grid {quoted(arguments.grid)}")
    dims = parse_dims(arguments.grid, arguments.nranks)
    nranks = prod(dims)
    return nranks, grid(dims, [arguments.periodic] * len(dims)) if nranks <= most else None


def grid_in_words(arguments: argparse.Namespace, collective: str) -> str:
    """Name the graph of a neighbourhood collective; the empty string of others."""
    if arguments.grid is None:
        return "ring" * COLLECTIVES[collective].neighbours
    return f"{'periodic ' * arguments.periodic}grid {arguments.grid}"
