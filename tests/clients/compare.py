"""The difference that hpcoll makes to a client's tests: outcomes and times with it beside those without it."""

from fnmatch import fnmatch
from pathlib import Path

import outcomes
from clients.table import Client
from outcomes import FAILED, SKIPPED, Case

FLOOR_S = 5.0  # by which hpcoll may take longer whatever the ratio: other programs may use the cores
NOWHERE = Case(FAILED, 0.0, "did not run")
Cases = dict[str, Case]
Seconds = dict[str, float]


def _module(name: str) -> str:
    return name.split("::")[0]


def seconds(folder: Path, nranks: int) -> Seconds:
    """Return how long each module took, on the rank on which it took longest."""
    longest: Seconds = {}
    for rank in range(nranks):
        own: Seconds = {}
        for name, case in outcomes.read(folder, rank).cases.items():
            own[_module(name)] = own.get(_module(name), 0.0) + case.seconds
        longest |= {module: max(longest.get(module, 0.0), taken) for module, taken in own.items()}
    return longest


def judged(client: Client, plain: Cases, ours: Cases) -> Cases:
    """Return what became of every case: all that is wrong with hpcoll only has failed."""
    return {
        name: _judged(client, name, plain.get(name, NOWHERE), ours.get(name, NOWHERE))
        for name in plain | ours
    }


def _judged(client: Client, name: str, plain: Case, ours: Case) -> Case:
    allowed = [reason for pattern, reason in client.differs.items() if fnmatch(name, pattern)]
    if "::" not in name:  # a rank that left no result, or a module that cannot be imported
        return Case(FAILED, 0.0, ours.note if plain == NOWHERE else f"without hpcoll: {plain.note}")
    if plain.outcome == FAILED and plain != NOWHERE:
        return Case(SKIPPED, plain.seconds, "fails without hpcoll too")
    if ours.outcome == FAILED:
        return Case(SKIPPED, ours.seconds, allowed[0]) if allowed and ours != NOWHERE else ours
    if ours.outcome != plain.outcome:
        return Case(FAILED, ours.seconds, f"{plain.outcome} without hpcoll, {ours.outcome} with it")
    return Case(SKIPPED, ours.seconds, "its own tests skip it here") if ours.outcome == SKIPPED else ours


def too_long(client: Client, plain: Seconds, ours: Seconds) -> bool:
    """Say whether all modules together take longer with hpcoll than the client's bar allows."""
    return sum(ours.values()) > client.most * sum(plain.values()) + FLOOR_S


def table(client: Client, plain: Seconds, ours: Seconds) -> str:
    """The seconds of every module and of all, without hpcoll and with it; what takes longer than the bar is marked."""
    rows = [(module, plain.get(module, 0.0), ours.get(module, 0.0)) for module in plain | ours]
    rows.append(("all", sum(plain.values()), sum(ours.values())))
    lines = [f"{'seconds':32} {'without':>8} {'with':>8}"]
    for module, without, with_it in rows:
        mark = f"  over {client.most} times" if with_it > client.most * without else ""
        lines.append(f"{module:32} {without:8.2f} {with_it:8.2f}{mark}")
    return "\n".join(lines)
