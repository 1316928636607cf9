"""``hpcoll show``: lists the catalogue, or draws structure and timeline, or writes the schedule for other tools."""

import argparse
import textwrap
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.base.text import MAX_BUILT, parse_nbytes, quoted, table
from hpcoll.cli import output, programs
from hpcoll.cli.grids import configure_grid, grid_in_words, grid_of
from hpcoll.cli.options import add_ranks_per_node, option
from hpcoll.cli.output import print_lines
from hpcoll.formats.program import FileProgram
from hpcoll.formats.reading import is_program
from hpcoll.registry.sources import read_all
from hpcoll.schedules.catalogue import CATALOGUE, algorithms, find
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.placement import parse_nodes
from hpcoll.schedules.row import Algorithm

if TYPE_CHECKING:  # it needs NumPy, which the list of algorithms does not
    from hpcoll.analysis.render import Drawing

CHUNKS = 4  # of algorithms that take any number
NRANKS, NBYTES, CALC = 8, "1M", 0.01
NODES = "4"  # ranks of each
SHAPE = "1000x800"
DERIVED = "by its steps"  # in place of a formula of a registered row
MAX_FORMULA = 20  # columns; `show KEY` shows it whole
MIN_SUMMARY = 60  # columns; with fewer, a summary has lines of its own
KEY = (
    "p ranks, q = ceil(log2 p), f = largest power of two <= p, n chunks, m = bytes of the message (of all blocks together); "
    "bytes are those that the busiest rank sends",
    "h nodes, r = ceil(log2 h), g = largest power of two <= h, l and c ranks of the smallest and the largest node, t ranks per stripe, "
    "k blocks that a rank passes on for its node; of gpu_leaders, GPUs in place of nodes",
    "with neighbours: d blocks of m, the most that a rank sends or receives, b blocks that the busiest rank sends, in all messages",
    'a: any operator, also one that is not commutative; b: the same bits on all ranks; c: combines as order="rank" asks, for some '
    "numbers of ranks or all; e: equal blocks only",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = partial(option, parser)
    parser.add_argument(
        "pattern",
        nargs="?",
        default="",
        metavar="COLLECTIVE[/ALGORITHM]|FILE",
        help="list, or draw; default: list all",
    )
    add("-n --nranks NRANKS", f"number of ranks; default {NRANKS}")
    add("--root R", "root of a rooted collective", 0)
    add("--chunks N", f"chunks of an algorithm that takes any number; default {CHUNKS}")
    add_ranks_per_node(parser, f"ranks per node (gpu_leaders: per GPU), 3+1+4, or 2:cyclic; default {NODES}")
    configure_grid(parser)
    programs.add_conditions(parser)
    add("--svg FILE", "write the drawing to FILE instead")
    add("--write FILE", "write the schedule to FILE instead: .xml for MSCCL, or .goal")
    add("--bytes SIZE", "bytes of the message in FILE.goal", NBYTES)
    add("--calc TIME", "time to combine a byte in FILE.goal, in ns", CALC)
    add("--shape SHAPE", "shape of the array of redistribute", SHAPE)
    add(
        "--from DISTRIBUTION",
        "of redistribute: who has what, as split=0, or grid=(2, 2), block=64",
        dest="source",
    )
    add("--to DISTRIBUTION", "of redistribute: who gets what", dest="target")


def run(arguments: argparse.Namespace) -> int:
    """Print the table, or the drawing."""
    read_all()
    if is_program(arguments.pattern):
        if arguments.write:
            program, _ = programs.read_proven(arguments, arguments.pattern)
            write(program, arguments.write, arguments.bytes, arguments.calc)
            return 0
        _show(programs.row_of_file(arguments, arguments.pattern), arguments)
        return 0
    if arguments.pattern == "redistribute":
        _redistribution(arguments)
        return 0
    collective, _, algorithm = arguments.pattern.partition("/")
    if algorithm:
        _show(find(collective, algorithm), arguments)
        return 0
    drawn = (
        arguments.svg,
        arguments.write,
        arguments.ranks_per_node,
        arguments.root,
        arguments.grid,
        arguments.periodic,
    )
    if any(drawn) or arguments.nranks is not None or arguments.chunks is not None:
        raise ArgumentError(f"show needs COLLECTIVE/ALGORITHM to draw, got {quoted(arguments.pattern)}")
    keys = [f"{collective}/{name}" for name in algorithms(collective)] if collective else CATALOGUE
    print_lines(_catalogue([CATALOGUE[key] for key in keys], output.columns()))
    return 0


def _show(row: Algorithm, arguments: argparse.Namespace) -> None:
    from hpcoll.analysis.render import draw  # these need NumPy, which the list of algorithms does not
    from hpcoll.analysis.render_svg import render_svg
    from hpcoll.formats.write import program_of
    from hpcoll.registry.proof import refusal

    if arguments.chunks is not None and not row.chunked:
        raise ArgumentError(f"{row.key} chooses its number of chunks itself, got --chunks {arguments.chunks}")
    nchunks = CHUNKS if arguments.chunks is None else arguments.chunks
    if arguments.ranks_per_node and not row.placed:
        raise ArgumentError(
            f"{row.key} does not look at nodes, got --ranks-per-node {quoted(arguments.ranks_per_node)}"
        )
    nranks, graph = grid_of(arguments, row.collective, NRANKS, MAX_BUILT)
    nodes = (
        parse_nodes(arguments.ranks_per_node or NODES, nranks)
        if row.placed and 0 < nranks <= MAX_BUILT
        else ()
    )
    on_graph, words = row._replace(graph=graph or row.graph), grid_in_words(arguments, row.collective)
    drawing = draw(on_graph, nranks, arguments.root, nchunks, nodes, words)
    wrong = refusal(on_graph, nranks, arguments.root, nodes)
    if wrong and (arguments.svg or arguments.write):
        raise ScheduleError(wrong)
    if arguments.svg:
        output.write(arguments.svg, render_svg(drawing))
    if arguments.write:
        write(program_of(row, drawing.schedules), arguments.write, arguments.bytes, arguments.calc)
    if not arguments.svg and not arguments.write:
        print_drawing(drawing)
        print_lines(["", f"refused: {wrong}"] if wrong else [])


def _redistribution(arguments: argparse.Namespace) -> None:
    from hpcoll.cli.moved_boxes import distribution_of, lines, picture  # it needs NumPy

    try:
        shape = tuple(int(n) for n in arguments.shape.split("x"))
    except ValueError:
        raise ArgumentError(
            f"--shape needs numbers such as 1000x800, got {quoted(arguments.shape)}"
        ) from None
    nranks = NRANKS if arguments.nranks is None else arguments.nranks
    sides = ("from", arguments.source), ("to", arguments.target)
    source, target = (distribution_of(name, text, shape, nranks) for name, text in sides)
    title = f"{source} to {target}".replace("hpcoll.", "")
    if arguments.svg:
        output.write(arguments.svg, picture(title, source, target))
    else:
        print_lines([title, *lines(source, target)])


def print_drawing(drawing: "Drawing") -> None:
    """Print a drawing as text, as wide as the terminal."""
    from hpcoll.analysis.render_text import render_text

    print(render_text(drawing, max(40, output.columns(output.WIDTH))))


def write(program: FileProgram, path: Path, nbytes: str = NBYTES, calc: float = CALC) -> None:
    """Write a program for other tools, in the format of the file's suffix."""
    from hpcoll.formats.write import written_for

    written = written_for(path.suffix, program, parse_nbytes(nbytes), calc)
    output.write(path, written.text)
    print_lines([written.note] * bool(written.note))


def _catalogue(rows: Sequence[Algorithm], width: int) -> Iterable[str]:
    most = MAX_FORMULA if width < output.UNCUT else width
    texts = [
        [row.key, _promises(row), _cut(row.rounds or DERIVED, most), _cut(row.sent or DERIVED, most)]
        for row in rows
    ]
    lines = table(["algorithm", "abce", "rounds", "bytes / m"], texts, width)
    left = max(len(line) for line in lines) + 2
    if width - left >= MIN_SUMMARY:
        yield from (
            f"{line:{left}}{text}"[:width]
            for line, text in zip(lines, ("summary", *(row.summary for row in rows)))
        )
    else:
        yield lines[0]
        for line, row in zip(lines[1:], rows):
            yield from (
                line,
                *textwrap.wrap(row.summary, width, initial_indent="    ", subsequent_indent="    "),
            )
    for text in KEY:
        yield from ("", *textwrap.wrap(text, min(width, output.WIDTH)))


def _cut(formula: str, most: int) -> str:
    return formula if len(formula) <= most else formula[: most - 1] + "…"


def _promises(row: Algorithm) -> str:
    collective = COLLECTIVES[row.collective]
    reduces = collective.reduces and not collective.idempotent
    flags = {
        "a": reduces and (row.ordered or collective.ordered),
        "b": reduces and row.reproducible,
        "c": reduces and row.canonical != "",
        "e": row.uniform,
    }
    return "".join(letter for letter, holds in flags.items() if holds)
