"""``hpcoll simulate --arrivals``: replays a trace on another network, or with ranks made on time, and says what that gains."""

import argparse
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from hpcoll.analysis.cost import Levels
from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import counted, duration, quoted, ranks_in_words, table
from hpcoll.cli import output
from hpcoll.cli.options import option
from hpcoll.cli.simulate.cells import Place, place_of
from hpcoll.cli.simulate.predict import compiled_loop
from hpcoll.cli.simulate.replay import ReplayNetwork, corrected, gaps_of, replay
from hpcoll.cli.simulate.traced import ReplayTimes, TracedProgram, program_of
from hpcoll.cli.trace.reading import read
from hpcoll.schedules.placement import describe

STEP = "step"  # region that divides a program, unless another is named
DOUBTFUL = 0.1  # share of a step by which the simulation may miss the measured one
# arguments that have no meaning here
_FROM_TRACE = (
    "collective",
    "nranks",
    "algorithms",
    "plot",
    "grid",
    "late",
    "order",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of replays."""
    add = partial(option, parser.add_argument_group("replays"))
    add("--arrivals TRACE", "replay the trace of a run, on its own network unless one is named", nargs="+")
    on_time = "these ranks compute as long as the others; all; several allowed"
    add("--on-time RANKS", on_time, action="append").default = []
    add("--region NAME", "region of the program that is a step", STEP)
    add("--choose", "choose algorithms for the network, instead of those in the trace")


def replay_arrivals(arguments: argparse.Namespace, *, here: Levels, there: Levels) -> int:
    """Replay, and print a table.

    Args:
        arguments: The command line.
        here: Costs of messages where the trace was made.
        there: Costs where it is replayed.
    """
    for name in _FROM_TRACE:
        if getattr(arguments, name) not in (None, []):
            raise ArgumentError(
                f"simulate --arrivals takes the calls from the trace, got {name} {quoted(str(getattr(arguments, name)))}"
            )
    if arguments.json:
        output.check(arguments.json)
    program = program_of(read(arguments.arrivals), arguments.region)
    on_time = {text: _ranks(text, program.ranks) for text in arguments.on_time}
    compiled_loop()
    place = was = Place(program.nodes, program.nodes)
    if arguments.ranks_per_node:
        place = place_of(arguments.ranks_per_node, arguments.domains, len(program.nodes))
    own = ReplayNetwork(was, here, chooses=False)
    output.progress("replaying")
    times = {"measured": program.measured, "simulated": replay(program, own.leaves, gaps_of(program))}
    leaves, before = corrected(program, own), "measured"
    if arguments.ranks_per_node or arguments.choose or arguments.network:
        leaves, before = ReplayNetwork(place, there, chooses=arguments.choose).leaves, "elsewhere"
        times[before] = replay(program, leaves, gaps_of(program))
    for text, ranks in on_time.items():
        times[_punctual(text)] = replay(program, leaves, gaps_of(program, ranks))
    output.progress("")
    output.print_lines(_report(arguments, program, times, before))
    if arguments.json:
        output.write(arguments.json, json.dumps(_document(program, times), indent=1) + "\n")
    return 0


def _ranks(text: str, ranks: list[int]) -> range | list[int]:
    """Return the positions of the ranks of ``all``, ``7`` or ``3,7``."""
    if text == "all":
        return range(len(ranks))
    try:
        return [ranks.index(int(rank)) for rank in text.split(",")]
    except ValueError:
        raise ArgumentError(
            f"on-time must be all, or some of {ranks_in_words(ranks)} with commas, got {quoted(text)}"
        ) from None


def _punctual(text: str) -> str:
    return "all ranks on time" if text == "all" else f"rank{'s' * (',' in text)} {text} on time"


def _report(
    arguments: argparse.Namespace, program: TracedProgram, times: dict[str, ReplayTimes], before: str
) -> Iterator[str]:
    """Return the lines of a report; ``before``: the replay with which those of ranks on time compare."""
    steps = (
        f"{counted(program.nsteps, 'step')}, region {arguments.region}"
        if program.nsteps
        else f"no region {arguments.region}"
    )
    calls = counted(len(program.calls), "call")
    yield f"{counted(len(program.stops), 'rank')}, {describe(program.nodes)}: {calls} in {duration(program.measured.run)}; {steps}"
    rows = [
        [name, *(duration(float(seconds)) for seconds in (run, np.mean(steps), np.median(steps)))]
        for name, (run, steps) in times.items()
    ]
    yield from table(["", "run", "step", "median step"], rows, output.WIDTH, numbers=[1, 2, 3])
    if program.incomplete:
        yield f"{counted(program.incomplete, 'call')} not known of all ranks: their time counts as computing"
    measured, simulated, there = (times[name].steps for name in ("measured", "simulated", before))
    off = float(np.mean(simulated) / np.mean(measured)) - 1
    yield f"where the trace was made the simulated step is {abs(off):.1%} {'longer' if off > 0 else 'shorter'} than the measured one"
    if before != "measured":
        doubt = (
            "; the trace's own network is not simulated well, so this may not be either"
            if abs(off) > DOUBTFUL
            else ""
        )
        yield f"elsewhere {_instead(there, simulated)}, both simulated{doubt}"
    for text in arguments.on_time:
        whose = "anybody's lateness" if text == "all" else f"the lateness of rank{'s' * (',' in text)} {text}"
        yield f"without {whose} {_instead(times[_punctual(text)].steps, there)}"


def _instead(steps: np.ndarray, before: np.ndarray) -> str:
    mean, median = (
        f"{duration(float(of(steps)))} instead of {duration(float(of(before)))}"
        for of in (np.mean, np.median)
    )
    return f"the step takes {mean}" + f"; the median one {median}" * (len(steps) > 1)


def _document(program: TracedProgram, replayed: dict[str, ReplayTimes]) -> dict[str, Any]:
    return {
        "nranks": len(program.stops),
        "placement": describe(program.nodes),
        "calls": len(program.calls),
        "incomplete": program.incomplete,
        "replays": [
            {"name": name, "run": times.run, "steps": times.steps.tolist()}
            for name, times in replayed.items()
        ],
    }
