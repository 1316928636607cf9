"""``hpcoll inspect --live``: the ranks that run on this node, as a table, and in a sentence for each call in which they wait."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcoll.analysis.wait_for_graph import WaitForGraph, chain_text, in_words
from hpcoll.base.errors import ArgumentError
from hpcoll.base.machine import GONE, RUNNING
from hpcoll.base.text import counted, duration, printable
from hpcoll.cli.inspect.ranks_here import Found, Job, LiveWait, Rank, look
from hpcoll.cli.inspect.wording import MAX_ROWS
from hpcoll.cli.output import UNCUT, columns, grid, print_lines, wrapped
from hpcoll.comm.status.blocked_call import call_parts

FORMAT = 1
_EVERY_S, _FIRST_S = 1.0, 0.25  # between two tables, and before the first, for shares of a core
_WIDTH = 120  # columns of sentences, at most
_CLEAR = "\033[H\033[2J"
_MOST_STORIES = 8
_COLUMN = "waits in"
# columns of terminals below which the table does without these
_NARROW, _LEFT_OUT = (
    110,
    ("at", "row", "communicator"),
)

Used = Mapping[int, float]  # shares of a core by process


def watch_ranks(*, once: bool, as_json: bool, looks: Callable[[], Found] = look) -> int:
    """Show the ranks that are found on this node, once or each second; return 1 where there are none."""
    if as_json and not once:
        raise ArgumentError("--json goes with --live --once")
    now, then = looks(), time.monotonic()
    if not now.jobs:
        texts = ["no rank of a program with an hpcoll communicator is seen on this node"]
        texts += [
            f"processes of other users, or protected ones, which may not be looked into: {now.closed}"
        ] * (now.closed > 0)
        text = "; ".join([*texts, *now.unclear[:MAX_ROWS]])
        print_lines([json.dumps(document(now, {}), indent=1)] if as_json else wrapped(text, width=_WIDTH))
        return 1
    try:
        time.sleep(_FIRST_S)
        while True:
            before, now = now, looks()
            elapsed, then = time.monotonic() - then, time.monotonic()
            shares = _shares(before, now, elapsed)
            if as_json:
                print(json.dumps(document(now, shares), indent=1))
            else:
                _print(now, shares, once)
            if once or not now.jobs:
                return 0
            time.sleep(_EVERY_S)
    except KeyboardInterrupt:
        return 0


def _print(seen: Found, shares: Used, once: bool) -> None:
    terminal = sys.stdout.isatty()
    print(_CLEAR if terminal and not once else "", end="")
    width = columns() if terminal else UNCUT
    print_lines(lines(seen, shares, time.monotonic(), width) if seen.jobs else ["no rank runs here any more"])
    if not once:
        print(flush=True)


def _shares(before: Found, now: Found, elapsed: float) -> dict[int, float]:
    """Return the shares of a core that processes have used since an earlier look."""
    used = {rank.pid: rank.used_s for job in before.jobs for rank in job.ranks.values()}
    pairs = [(rank.pid, used.get(rank.pid), rank.used_s) for job in now.jobs for rank in job.ranks.values()]
    return {
        pid: max(0.0, new - old) / elapsed
        for pid, old, new in pairs
        if old is not None and new is not None and elapsed > 0
    }


def lines(seen: Found, shares: Used, now: float, width: int = _WIDTH) -> Iterator[str]:
    """Yield the lines to print at the monotonic time ``now``, of at most ``width`` columns."""
    for i, job in enumerate(seen.jobs):
        if i:
            yield ""
        yield from wrapped(_head(job), width=min(width, _WIDTH))
        yield from _table(job, shares, now, width)
        for text in stories(job, now):
            yield from wrapped(text, width=min(width, _WIDTH))
    if seen.unclear:
        yield ""
    for text in seen.unclear[:MAX_ROWS]:
        yield from wrapped(f"not shown: {text}", width=min(width, _WIDTH))


def _head(job: Job) -> str:
    who, here, nranks = job.who, len(job.ranks), counted(job.who.nranks, "rank")
    several = nranks if here == who.nranks else f"{here} of {nranks}"
    begun = time.strftime("%H:%M:%S", time.localtime(who.started))
    program, host = printable(" ".join(who.program)) or "a program", printable(who.host)
    return f"{program}: {several} on {host}, since {begun}, seen at {time.strftime('%H:%M:%S')}"


def _table(job: Job, shares: Used, now: float, width: int) -> list[str]:
    """Return a line for each wait, and one for each rank that waits in nothing: across its columns, what the rank does instead."""
    rows, instead = (
        [["rank", "process", "state", _COLUMN, "at", "for", "waits for", "row", "communicator"]],
        dict[int, str](),
    )
    for number, rank in job.ranks.items():
        core = f" {100 * shares[rank.pid]:.0f} %" if rank.pid in shares and rank.state == RUNNING else ""
        first = [str(number), str(rank.pid), f"{rank.state}{core}"]
        for wait in rank.waits:
            step = wait.step.removeprefix("row ")
            call, place, region = call_parts(wait.what)
            at = Path(place).name + (f" in {region}" if region else "")
            rows.append([*first, call, at, duration(now - wait.since), in_words(wait.awaits), step, wait.on])
            first = [""] * len(first)
        if not rank.waits:
            instead[len(rows)] = (
                "" if rank.state not in (RUNNING, GONE) else doing(job, number).removeprefix("is ")
            )
            rows.append([*first, *[""] * (len(rows[0]) - len(first))])
    kept = [i for i, name in enumerate(rows[0]) if width >= _NARROW or name not in _LEFT_OUT]
    table = grid([[row[i] for i in kept] for row in rows], width)
    column = table[0].find(_COLUMN)
    column = column if column >= 0 else max(map(len, table)) + 2
    texts = [f"{line:{column}}{instead.get(i, '')}".rstrip() for i, line in enumerate(table)]
    return [text if len(text) <= width else f"{text[: width - 1]}…" for text in texts]


def doing(job: Job, number: int, call: tuple[str, str, int] | None = None) -> str:
    """Say what a rank does that waits in no call, in words that follow its name; as the ranks see it that wait in ``call``, if any."""
    rank = job.ranks.get(number)
    if rank is None:
        return "is not seen on this node"
    if rank.left or rank.state == GONE:
        return rank.left or "has ended"
    if rank.state != RUNNING:
        return f"is {rank.state}"
    if not rank.has_page:
        return "shows nothing of itself"
    failed = [wait for wait in rank.failed if call is None or wait.call[0] == call[0]]
    raised = [f"has raised {wait.failed}" + (f" in {wait.what}" if wait.what else "") for wait in failed[-1:]]
    waits = [wait for peer in job.ranks.values() for wait in peer.waits if number in wait.sees]
    last = max(
        [wait for wait in waits if wait.call == call] or waits,
        key=lambda wait: wait.sees[number].since,
        default=None,
    )
    return (
        f"{last.sees[number].text} on {last.on}"
        if last is not None
        else raised[0]
        if raised
        else "waits in no collective"
    )


def stories(job: Job, now: float) -> list[str]:
    """Return a sentence for each call in which ranks wait, the oldest first: the chain of waits down to the rank at the root of it."""
    graph = WaitForGraph(wait for rank in job.ranks.values() if rank.state == RUNNING for wait in rank.waits)
    calls: dict[tuple[str, str, int], list[LiveWait]] = {}
    for wait in (wait for rank in job.ranks.values() for wait in rank.waits):
        calls.setdefault(wait.call, []).append(wait)
    texts = []
    for waits in sorted(calls.values(), key=lambda waits: min(wait.since for wait in waits)):
        chain, root = graph.chain(waits[0])
        end = (
            ""
            if root is None
            else f"rank {root} {doing(job, root, waits[0].call)}"
            if root >= 0
            else "that one is of another program"
        )
        waited = duration(now - min(wait.since for wait in waits))
        what, comm = waits[0].what or "a call", waits[0].on or "a communicator"
        texts.append(f"{what} on {comm} waits for {waited}: {chain_text(chain, end)}")
    return texts[:_MOST_STORIES] + [f"and {len(texts) - _MOST_STORIES} more calls"] * (
        len(texts) > _MOST_STORIES
    )


def document(seen: Found, shares: Used) -> dict[str, Any]:
    """Return the same for programs, fit for JSON."""
    now, here = time.monotonic(), time.time()
    jobs = [
        {
            "program": list(job.who.program),
            "world_size": job.who.nranks,
            "host": job.who.host,
            "since": job.who.started,
            "ranks": [_of_rank(job, rank, shares, now) for rank in job.ranks.values()],
            "stories": stories(job, now),
        }
        for job in seen.jobs
    ]
    return {
        "format": FORMAT,
        "seen": here,
        "jobs": jobs,
        "closed": seen.closed,
        "unclear": list(seen.unclear),
    }


def _of_rank(job: Job, rank: Rank, shares: Used, now: float) -> dict[str, Any]:
    number = rank.who.rank
    waits = [
        {
            "what": wait.what,
            "communicator": wait.on,
            "step": wait.step,
            "seconds": now - wait.since,
            "awaits": list(wait.awaits),
        }
        for wait in rank.waits
    ]
    return {
        "rank": number,
        "pid": rank.pid,
        "state": rank.state,
        "core": shares.get(rank.pid),
        "waits": waits,
        "doing": "" if rank.waits else doing(job, number),
    }
