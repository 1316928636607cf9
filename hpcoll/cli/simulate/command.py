"""``hpcoll simulate``: simulates algorithms on many nodes, or many cores of one, for a table, a file or a picture; needs no MPI."""

import argparse
import json
import math
import time
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from hpcoll.analysis.cost import NEVER, Levels, Network
from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import MAX_SIMULATED, format_nbytes, is_count, one_of, parse_nbytes, quoted, table
from hpcoll.cli import output, plot, programs
from hpcoll.cli.grids import configure_grid, grid_in_words, grid_of
from hpcoll.cli.options import add_ranks_per_node, option
from hpcoll.cli.plot import Curve, Panel
from hpcoll.cli.simulate import arrivals
from hpcoll.cli.simulate.cells import PATIENCE_S, Cell, SimulateRequest, comes_of, place_of, predict_cells
from hpcoll.cli.simulate.predict import compiled_loop
from hpcoll.formats.reading import is_program
from hpcoll.registry.proof import refusal
from hpcoll.registry.sources import read_all
from hpcoll.schedules.catalogue import algorithms, find
from hpcoll.schedules.row import Algorithm

NRANKS, BYTES, COUNT, NETWORK = 64, "8:1G", 6, "fast"
WIDTH = 120  # columns of the table, which goes on below itself where there are more sizes
NODE = Network(alpha=0.5e-6, beta=1 / 50e9, gamma=1 / 100e9, overhead=0.25e-6)
FAST = NODE._replace(alpha=2e-6, beta=1 / 12.5e9, overhead=1e-6)
NETWORKS = {
    "fast": Levels(NODE, FAST),  # 100 Gbit/s and 2 us
    # 1 Gbit/s
    "ethernet": Levels(
        NODE, FAST._replace(alpha=30e-6, beta=1 / 125e6, overhead=5e-6, eager=64 << 10, handshake=60e-6)
    ),
    # a launch and a flush per hop
    "gpus": Levels(NODE._replace(alpha=2e-6, overhead=1e-6), FAST._replace(alpha=12e-6, overhead=3e-6)),
}
_CONSTANTS = {  # of a level, with the least and the most that each may be
    "alpha": (1e-15, 1e3),
    "beta": (0.0, 1e3),
    "gamma": (0.0, 1e3),
    "overhead": (0.0, 1e3),
    "eager": (0, NEVER),
    "handshake": (0.0, 1e3),
    "streams": (1, 1e9),
}
MAX_SIZES = 1000
# fields of `Levels`, by what is before a constant
_LEVELS = {
    "": "network",
    "node": "node",
    "domains": "domains",
}


class Result(NamedTuple):
    """All cells, and why algorithms are left out, by name."""

    cells: list[Cell]
    left_out: dict[str, str]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = partial(option, parser)
    constants = ", ".join(_CONSTANTS)
    parser.epilog = (
        f"Networks: {', '.join(NETWORKS)}. Constants are in seconds and bytes. Between nodes: {constants}. On a node: node.alpha, ...; "
        "between cache domains of a node: domains.alpha, ... alpha: latency; overhead: CPU time of a message; beta, gamma: to send, "
        "to combine a byte; eager: longest message without the time of a handshake; streams: ranks that send at full rate at once."
    )
    what = "allreduce, bcast, ...; or a file, simulated beside other algorithms"
    parser.add_argument("collective", nargs="?", metavar="COLLECTIVE|FILE", help=what)
    add("-n --nranks N", f"number of ranks; default {NRANKS}")
    sizes = f"64K, 8,64K,1M or FROM:TO[:COUNT]; default {BYTES}, {COUNT} sizes"
    add("--bytes SIZES", sizes).default = BYTES
    add("--algorithms LIST", f"all, or names with commas; default: as many as {PATIENCE_S:.0f} s suffice for")
    add_ranks_per_node(parser, "ranks per node, 3+1+4, or 2:cyclic; default 1; of a trace: as it was")
    add("--domains PLACEMENT", "ranks of each node per cache domain, in the same way; default: one domain")
    configure_grid(parser)
    programs.add_conditions(parser)
    add("--root R", "root of a rooted collective", 0)
    add("--order", 'rank: only algorithms that combine as order="rank" asks', choices=("rank",))
    add("--segment SIZE", "bytes per segment; default: the best by the closed-form model").default = "auto"
    add("--network NAME[,CONSTANT=VALUE...]", f"cost of messages; default {NETWORK}")
    add("--tuning FILE", "take the constants from a file that hpcoll tune wrote")
    late = "a rank comes late by a time, such as 3:2ms; predict from when the last comes"
    add("--late RANK:TIME", late, action="append").default = []
    add("--exact", "simulate every rank and every segment")
    add("--json FILE", "also write the result to FILE")
    drawn = "also draw time against size and against number of ranks; needs matplotlib"
    add("--plot FILE", drawn)
    arrivals.configure(parser)


def run(arguments: argparse.Namespace) -> int:
    """Simulate, and print the table."""
    if arguments.arrivals:
        levels = _levels(arguments)
        return arrivals.replay_arrivals(
            arguments, here=NETWORKS[NETWORK] if arguments.network else levels, there=levels
        )
    if arguments.collective is None:
        raise ArgumentError("simulate needs a collective, a file or --arrivals, got none of them")
    arguments.network = arguments.network or NETWORK
    read_all()
    of_file = []
    if is_program(arguments.collective):
        of_file = [programs.row_of_file(arguments, arguments.collective)]
        arguments.collective = of_file[0].collective
    named = arguments.algorithms not in (None, "all")
    names = tuple(arguments.algorithms.split(",")) if named else algorithms(arguments.collective)
    arguments.nranks, graph = grid_of(arguments, arguments.collective, NRANKS, MAX_SIMULATED)
    rows = of_file + [find(arguments.collective, name)._replace(graph=graph) for name in names]
    if not 2 <= arguments.nranks <= MAX_SIMULATED or not 0 <= arguments.root < arguments.nranks:
        expected = f"2 to {MAX_SIMULATED} ranks and a root among them"
        raise ArgumentError(f"simulate needs {expected}, got {arguments.nranks} ranks, root {arguments.root}")
    place = place_of(arguments.ranks_per_node or "1", arguments.domains, arguments.nranks)
    request = SimulateRequest(
        arguments,
        place,
        _levels(arguments),
        _sizes(arguments.bytes),
        comes_of(arguments.late, arguments.nranks),
    )
    if arguments.json:
        output.check(arguments.json)
    if arguments.plot:
        plot.check(arguments.plot)
    compiled_loop()  # before the clock runs
    start, result = time.perf_counter(), Result([], {})
    end = math.inf if arguments.algorithms else start + PATIENCE_S
    for number, row in enumerate(rows, 1):
        cells = refusal(row, arguments.nranks, arguments.root, place.nodes) or predict_cells(
            row, request, end, partial(_progress, f"algorithm {number} of {len(rows)}, {row.name}")
        )
        if isinstance(cells, str):
            result.left_out[row.name] = cells
        else:
            result.cells.extend(cells)
    output.progress("")
    _print(request, result, time.perf_counter() - start)
    if arguments.json:
        output.write(arguments.json, json.dumps(_document(request, result), indent=1) + "\n")
    if arguments.plot:
        title = (
            f"{arguments.collective}, {arguments.nranks} ranks, {request.place}, network {arguments.network}"
        )
        title += f", constants from {arguments.tuning}" if arguments.tuning else ""
        plot.draw(
            arguments.plot,
            title,
            [*_panels(result.cells, [row for row in rows if row.name not in result.left_out], request)],
        )
    return 0


def _progress(what: str, how_far: str) -> None:
    output.progress(f"{what}: {how_far}")


def _sizes(text: str) -> list[int]:
    """Return the sizes of ``64K``, ``8,64K``, ``8:1G`` or ``8:1G:12``; of a range, geometric ones of whole elements of 8 bytes."""
    first, *rest = text.split(":")
    if not rest:
        listed = sorted({parse_nbytes(size) for size in text.split(",")})
        if listed[0] < 1:
            raise ArgumentError(f"bytes must be at least 1, got {quoted(text)}")
        return listed
    last, number = (*rest, str(COUNT))[:2]
    if len(rest) > 2 or not is_count(number) or int(number) > MAX_SIZES:
        raise ArgumentError(
            f"bytes must look like 64K, 8,64K,1M, 8:1G or 8:1G:12, at most {MAX_SIZES} sizes, got {quoted(text)}"
        )
    low, high, count = parse_nbytes(first), parse_nbytes(last), int(number)
    if not 1 <= low <= high:
        raise ArgumentError(f"bytes need 1 <= FROM <= TO, got {quoted(text)}")
    exact = [low * (high / low) ** (i / max(1, count - 1)) for i in range(count)]
    return sorted({low, high, *(max(low, round(nbytes / 8) * 8) for nbytes in exact[1:-1])})


def _levels(arguments: argparse.Namespace) -> Levels:
    """Return the costs of messages."""
    name, *changes = (arguments.network or NETWORK).split(",")
    if name not in NETWORKS:
        raise ArgumentError(f"network must be {one_of(NETWORKS, name)}")
    levels = NETWORKS[name]
    if arguments.tuning:
        from hpcoll.selection.tuning import read

        measured = {one.level: one.network for one in read(arguments.tuning).constants}
        if not measured:
            raise ArgumentError(
                f"tuning file {arguments.tuning} has no constants: hpcoll tune --model measures them"
            )
        levels = levels._replace(**measured)
    changed: dict[str, dict[str, Any]] = {}
    for change in changes:
        key, _, value = change.partition("=")
        level, _, constant = key.rpartition(".")
        if constant not in _CONSTANTS or level not in _LEVELS:
            raise ArgumentError(
                f"network constant, which may begin with node. or domains., must be {one_of(_CONSTANTS, key)}"
            )
        try:
            number, (least, most) = float(value), _CONSTANTS[constant]
            if not least <= number <= most:
                raise ValueError
        except ValueError:
            expected = "a number from {:g} to {:g}".format(*_CONSTANTS[constant])
            raise ArgumentError(f"network constant {key} must be {expected}, got {quoted(value)}") from None
        changed.setdefault(_LEVELS[level], {})[constant] = number
    levels = levels._replace(
        **{level: getattr(levels, level)._replace(**changed.get(level, {})) for level in ("node", "network")}
    )
    return levels._replace(domains=levels.across()._replace(**changed.get("domains", {})))


def _panels(cells: list[Cell], rows: list[Algorithm], request: SimulateRequest) -> Iterator[Panel]:
    """Return time against size, and at the smallest size against the number of ranks."""
    by_size: dict[str, list[tuple[int, float]]] = {}
    for cell in cells:
        by_size.setdefault(cell.algorithm, []).append((cell.nbytes, cell.seconds))
    smallest = f"ranks, at {format_nbytes(request.sizes[0])}"
    for label, found in (("bytes", by_size), (smallest, _against_nranks(rows, request))):
        # thinner and thinner: a curve that covers others lets them be seen
        curves = [
            Curve(name, [(x, 1e6 * seconds) for x, seconds in points], 1.0 + 3.0 * (1 - i / len(found)))
            for i, (name, points) in enumerate(found.items())
        ]
        yield Panel(label, "predicted time (µs)", curves, in_bytes=label == "bytes")


def _against_nranks(rows: list[Algorithm], request: SimulateRequest) -> dict[str, list[tuple[int, float]]]:
    """Return the seconds of the smallest size by algorithm and number of ranks."""
    by_name: dict[str, list[tuple[int, float]]] = {}
    arguments = argparse.Namespace(**{**vars(request.arguments), "exact": False})
    per_node = arguments.ranks_per_node or "1"
    per_node = per_node if is_count(per_node.partition(":")[0]) else "1"
    fewer = () if arguments.grid else (2, *(1 << k for k in range(2, math.ceil(math.log2(arguments.nranks)))))
    counts = sorted({*fewer, arguments.nranks})
    for row in rows:
        for nranks in row.serves or counts:
            place = place_of(per_node, arguments.domains, nranks)
            cells = predict_cells(row, SimulateRequest(arguments, place, request.levels, request.sizes[:1]))
            if not isinstance(cells, str):
                by_name.setdefault(row.name, []).append((nranks, cells[0].seconds))
    return by_name


def _print(request: SimulateRequest, result: Result, took: float) -> None:
    (arguments, place, _, sizes, _), (cells, left_out) = request, result
    graph = f", {found}" if (found := grid_in_words(arguments, arguments.collective)) else ""
    what = "predicted microseconds since the last rank came" if arguments.late else "predicted microseconds"
    title = f"{arguments.collective} on {len(place.nodes)} ranks{graph}, {place}: {what}, * marks the best"
    output.print_lines(output.wrapped(title, width=WIDTH))
    names = list(dict.fromkeys(cell.algorithm for cell in cells))
    by = {(cell.algorithm, cell.nbytes): cell for cell in cells}
    columns = [["algorithm", *names]]
    for nbytes in sizes:
        best = min((by[name, nbytes].seconds for name in names), default=0.0)
        columns.append([format_nbytes(nbytes), *(_text(by[name, nbytes], best) for name in names)])
    print("\n\n".join("\n".join(lines) for lines in _tables(columns)))
    for name, level in _used(request).items():
        output.print_lines(output.wrapped(f"{name}: {_in_words(level)}", width=WIDTH))
    if any(cell.extrapolated for cell in cells):
        print("~: the first segments were simulated, the others follow at their pace (--exact simulates all)")
    for name, why in left_out.items():
        output.print_lines(output.wrapped(f"left out: {name}: {why}", width=WIDTH))
    print(f"{sum(cell.simulated for cell in cells):,} messages simulated in {took:.1f} s, building included")


def _tables(columns: list[list[str]]) -> Iterator[list[str]]:
    """Yield the lines of tables: the first column in each, and as many of the others as fit."""
    first, *rest = columns
    while True:
        widths = accumulate((2 + max(map(len, column)) for column in rest), initial=max(map(len, first)))
        fitting = max(1, sum(width <= WIDTH for width in widths) - 1)
        header, *rows = zip(first, *rest[:fitting])
        yield table(header, rows, WIDTH, numbers=range(1, len(header)))
        rest = rest[fitting:]
        if not rest:
            return


def _in_words(level: Network) -> str:
    """Return the constants of a level with their units."""
    words = [f"{name} {_us(getattr(level, name))}" for name in ("alpha", "overhead")]
    words += [f"{name} {1e9 * getattr(level, name):.4g} ns/byte" for name in ("beta", "gamma")]
    words += (
        [f"eager to {format_nbytes(level.eager)}, else handshake {_us(level.handshake)}"]
        if level.eager < NEVER
        else ["always eager"]
    )
    return ", ".join([*words, *[f"streams {level.streams:g}"] * (level.streams != 1)])


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.4g} us"


def _used(request: SimulateRequest) -> dict[str, Network]:
    """Return the constants by level, without cache domains where there are none."""
    several = request.place.domains != request.place.nodes
    return {name: level for name, level in request.levels._asdict().items() if name != "domains" or several}


def _text(cell: Cell, best: float) -> str:
    us = cell.seconds * 1e6
    number = f"{us:.4g}" if us < 9999.5 else f"{us:,.0f}"
    return number + "~" * cell.extrapolated + "*" * (cell.seconds <= best * 1.0000001)


def _document(request: SimulateRequest, result: Result) -> dict[str, Any]:
    return {
        "collective": request.arguments.collective,
        "nranks": len(request.place.nodes),
        "placement": str(request.place),
        "grid": request.arguments.grid,
        "periodic": request.arguments.periodic,
        "levels": {name: level._asdict() for name, level in _used(request).items()},
        "exact": request.arguments.exact,
        "cells": [cell._asdict() for cell in result.cells],
        "left_out": result.left_out,
    }
