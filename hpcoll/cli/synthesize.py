"""``hpcoll synthesize``: searches for the schedule with the fewest rounds on given links, proves it, and draws or writes it."""

import argparse
import math
from collections.abc import Iterable, Sequence
from functools import partial

from hpcoll.analysis.prove import prove
from hpcoll.analysis.render import draw
from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import counted, table
from hpcoll.cli import output
from hpcoll.cli.options import option
from hpcoll.cli.output import columns, print_lines, progress
from hpcoll.cli.show import print_drawing, write
from hpcoll.formats.write import check_suffix, program_of
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.row import Algorithm
from hpcoll.synthesis.hops import SERVED, Task, row
from hpcoll.synthesis.search import Bounds, Outcome, bounds, search
from hpcoll.synthesis.topologies import NAMES, Fabric, topology

NAME, SECONDS = "synthesized", 60


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = partial(option, parser)
    parser.add_argument("collective", choices=SERVED, metavar="COLLECTIVE", help=", ".join(SERVED))
    add("--topology NAME|FILE", f"links between ranks: {NAMES}, or a JSON file", required=True)
    add("--chunks N", "chunks of each rank's block, or of a vector", 1)
    add("--root R", "root of a rooted collective", 0)
    add("--max-rounds N", "rounds that the schedule may have; default: any number")
    add("--max-steps N", "steps that it may have; default: any number")
    add("--seconds S", "time for each number of steps", SECONDS)
    add("--write FILE", "write the schedule to FILE instead: .xml for MSCCL, or .goal")


def run(arguments: argparse.Namespace) -> int:
    """Search, print the table, and draw or write the last schedule; return 1 if it is proven that there is none."""
    task, fabric = _asked(arguments)
    lower = bounds(task, fabric)
    limits = {"max_rounds": arguments.max_rounds, "max_steps": arguments.max_steps}
    outcomes, stopped = list[Outcome](), False
    try:
        for outcome in search(task, fabric, **limits, seconds=arguments.seconds, progress=progress):
            outcomes.append(outcome)
    except KeyboardInterrupt:
        stopped = True
    progress("")
    print_lines(_table(task, fabric, lower, outcomes))
    if not any(outcome.rounds for outcome in outcomes):
        if outcomes or stopped:
            raise ArgumentError(
                f"nothing was found in {arguments.seconds:g} s for each number of steps, which --seconds sets"
            )
        print(f"\n{_none(task)} has at most {_asked_for(arguments)}: proven.")
        return 1
    best = next(outcome for outcome in reversed(outcomes) if outcome.rounds)
    algorithm = _proven(task, fabric, best)
    fewest = not stopped and outcomes[-1] is best and best.least == sum(best.rounds)
    conclusion = _conclusion(task, lower, best, fewest, arguments)
    print_lines(["", *output.wrapped(conclusion, width=columns(output.WIDTH)), ""])
    drawing = draw(algorithm, task.nranks, task.root, task.nchunks)
    if arguments.write:
        write(program_of(algorithm, drawing.schedules), arguments.write)
    else:
        print_drawing(drawing)
    return 0


def _asked(arguments: argparse.Namespace) -> tuple[Task, Fabric]:
    """Return what is to be searched for. ArgumentError: a number is outside its range."""
    fabric = topology(arguments.topology)
    if arguments.write:
        check_suffix(arguments.write.suffix)
        output.check(arguments.write)
    for name, least in (("chunks", 1), ("max_rounds", 1), ("max_steps", 1)):
        number = getattr(arguments, name)
        if number is not None and number < least:
            raise ArgumentError(f"--{name.replace('_', '-')} must be at least {least}, got {number}")
    if not 0 < arguments.seconds < math.inf:
        raise ArgumentError(f"--seconds must be a number above 0, got {arguments.seconds}")
    rooted = COLLECTIVES[arguments.collective].rooted
    if not 0 <= arguments.root < fabric.nranks or (arguments.root and not rooted):
        expected = (
            f"a rank below {fabric.nranks}" if rooted else f"none, because {arguments.collective} has no root"
        )
        raise ArgumentError(f"--root: expected {expected}, got {arguments.root}")
    return Task(arguments.collective, fabric.nranks, arguments.root, arguments.chunks), fabric


def _asked_for(arguments: argparse.Namespace) -> str:
    limits = [(arguments.max_rounds, "round"), (arguments.max_steps, "step")]
    return " and ".join(counted(number, noun) for number, noun in limits if number is not None)


def _table(task: Task, fabric: Fabric, lower: Bounds, outcomes: Sequence[Outcome]) -> Iterable[str]:
    blocks = "block" if task.meaning.blocks or task.collective == "allreduce" else "message"
    what = f"{task.collective} on {fabric.name}: {counted(fabric.nranks, 'rank')}, {counted(len(fabric.links), 'link')}"
    yield f"{what}, {counted(task.chunks, 'chunk')} per {blocks}"
    yield ""
    rows = [
        _cells(
            task,
            outcome.steps,
            sum(outcome.rounds),
            "+".join(map(str, outcome.rounds)),
            outcome.sent,
            _proof(outcome),
        )
        for outcome in outcomes
    ]
    rows.append(_cells(task, lower.steps, lower.rounds, "", lower.sent, "lower bounds"))
    header = ["steps", "rounds", "of the steps", "per chunk", "bytes / m", ""]
    yield from table(header, rows, columns(), numbers=(0, 1, 3, 4))


def _cells(task: Task, steps: int, rounds: int, each: str, sent: int, remark: str) -> list[str]:
    if not rounds:
        return [f"{steps}", "?", "", "", "", remark]
    return [
        f"{steps}",
        f"{rounds}",
        each,
        f"{rounds / task.chunks:.4g}",
        f"{sent / task.nchunks:.4g}",
        remark,
    ]


def _proof(outcome: Outcome) -> str:
    if outcome.least < sum(outcome.rounds) or not outcome.rounds:
        return f"at least {counted(outcome.least, 'round')}"
    return "fewest" if outcome.fewest_sent else "fewest rounds"


def _proven(task: Task, fabric: Fabric, best: Outcome) -> Algorithm:
    """Return what was found as a row of the catalogue's kind, once it is proven; ScheduleError: it is wrong."""
    each = "+".join(map(str, best.rounds))
    summary = f"synthesized for {fabric.name}: {counted(best.steps, 'step')} of {each} rounds, {counted(task.chunks, 'chunk')}"
    algorithm = row(task, best.parts, NAME, summary, "the search of hpcoll synthesize")
    proof = prove(algorithm, task.nranks, task.root)
    sent = str(proof.chunks_sent / task.nchunks)
    return algorithm._replace(
        rounds=str(proof.rounds),
        critical=sent,
        sent=sent,
        ordered=proof.ordered,
        reproducible=proof.reproducible,
        canonical="1" * proof.canonical,
    )


def _none(task: Task) -> str:
    return (
        "No schedule" if task.collective != "allreduce" else "No reduce_scatter with an allgather behind it"
    )


def _conclusion(task: Task, lower: Bounds, best: Outcome, fewest: bool, arguments: argparse.Namespace) -> str:
    rounds = sum(best.rounds)
    text = f"Proven: every rank gets what it must, in {counted(best.steps, 'step')} and {counted(rounds, 'round')}."
    if rounds > lower.rounds and not fewest:
        return (
            f"{text} Whether fewer rounds do is not known: --seconds sets the time for each number of steps."
        )
    limited = (
        f" of at most {counted(arguments.max_steps, 'step')}"
        if arguments.max_steps and rounds > lower.rounds
        else ""
    )
    return f"{text} {_none(task)}{limited} has fewer rounds" + (
        ", or fewer steps." if best.steps == lower.steps else "."
    )
