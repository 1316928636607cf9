"""``hpcoll inspect --live``: who waits for whom now, of the ranks that run on this node, as a table and in words."""

import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcoll.base.errors import ArgumentError
from hpcoll.base.processes import GONE, RUNNING
from hpcoll.base.text import printable
from hpcoll.cli.inspect.ranks_here import Found, Job, LiveWait, Rank, look
from hpcoll.cli.inspect.wording import MAX_ROWS, duration, names, ordinal
from hpcoll.cli.table import grid, print_lines, wrapped

FORMAT = 1
_EVERY_S, _FIRST_S = 1.0, 0.25  # between two tables, and before the first, for shares of a core
_WIDTH = 120  # columns of what is no terminal's
_CLEAR = "\033[H\033[2J"
_MOST_STORIES = 8
_COLUMN = "waits in"
_NOTHING = "waits in no collective"
_NARROW, _LEFT_OUT = 110, ("at", "row", "communicator")  # columns of terminals below which the table does without these

Used = Mapping[int, float]  # shares of a core by process
Key = tuple[str, int, int]  # what a call and those of other ranks that belong to it have in common


def watch_ranks(*, once: bool, as_json: bool) -> int:
    """Print what the ranks of this node wait for, once or each second; 1 where there are none."""
    if as_json and not once:
        raise ArgumentError("--json goes with --live --once")
    found, then = look(), time.monotonic()
    if not found.jobs:
        print_lines([_json(found, {})] if as_json else wrapped(_nobody(found), width=_WIDTH))
        return 1
    try:
        time.sleep(_FIRST_S)
        while True:
            before, found = found, look()
            elapsed, then = time.monotonic() - then, time.monotonic()
            shares = _shares(before, found, elapsed)
            if as_json:
                print(_json(found, shares))
            else:
                _print(found, shares, once)
            if once or not found.jobs:
                return 0
            time.sleep(_EVERY_S)
    except KeyboardInterrupt:
        return 0


def _print(found: Found, shares: Used, once: bool) -> None:
    terminal = sys.stdout.isatty()
    print(_CLEAR if terminal and not once else "", end="")
    width = shutil.get_terminal_size().columns if terminal else _WIDTH
    print_lines(lines(found, shares, time.monotonic(), width) if found.jobs else ["no rank runs here any more"])
    if not once:
        print(flush=True)


def _nobody(found: Found) -> str:
    """Why there is nothing to show."""
    texts = ["no rank of a program with an hpcoll communicator is seen on this node"]
    if found.closed:
        texts.append(f"processes of other users, or protected ones, which may not be looked into: {found.closed}")
    return "; ".join([*texts, *found.unclear[:MAX_ROWS]])


def _shares(before: Found, now: Found, elapsed: float) -> dict[int, float]:
    """Of a core, by process."""
    used = {rank.pid: rank.used_s for job in before.jobs for rank in job.ranks.values()}
    shares = {}
    for rank in (rank for job in now.jobs for rank in job.ranks.values()):
        earlier = used.get(rank.pid)
        if rank.used_s is not None and earlier is not None and elapsed > 0:
            shares[rank.pid] = max(0.0, rank.used_s - earlier) / elapsed
    return shares


def lines(found: Found, shares: Used, now: float, width: int = _WIDTH) -> Iterator[str]:
    """What to print.

    Args:
        found: On this node.
        shares: Of a core, by process.
        now: Monotonic, in seconds.
        width: Columns.
    """
    for i, job in enumerate(found.jobs):
        if i:
            yield ""
        yield from wrapped(_head(job), width=width)
        yield from _table(job, shares, now, width)
        for text in stories(job, now):
            yield from wrapped(text, width=width)
    if found.unclear:
        yield ""
    for text in found.unclear[:MAX_ROWS]:
        yield from wrapped(f"not shown: {text}", width=width)


def _head(job: Job) -> str:
    who, here = job.who, len(job.ranks)
    nranks = f"{who.nranks} rank{'s' * (who.nranks > 1)}"
    several = nranks if here == who.nranks else f"{here} of {nranks}"
    begun = time.strftime("%H:%M:%S", time.localtime(who.started))
    program, host = printable(" ".join(who.program)) or "a program", printable(who.host)
    return f"{program}: {several} on {host}, since {begun}, seen at {time.strftime('%H:%M:%S')}"


def _table(job: Job, shares: Used, now: float, width: int) -> list[str]:
    """A line for each wait, and one for each rank that waits in nothing: what it does instead goes across the columns."""
    rows, instead = [["rank", "process", "state", _COLUMN, "at", "for", "waits for", "row", "communicator"]], dict[int, str]()
    for number, rank in job.ranks.items():
        core = f" {100 * shares[rank.pid]:.0f} %" if rank.pid in shares and rank.state == RUNNING else ""
        first = [str(number), str(rank.pid), f"{rank.state}{core}"]
        for wait in rank.waits:
            call, ends, place = wait.what.partition(") at ")
            step = wait.step.removeprefix("row ")
            rows.append([*first, f"{call}{ends[:1]}", Path(place).name, duration(now - wait.since), names(wait.awaits), step, wait.on])
            first = [""] * len(first)
        if not rank.waits:
            instead[len(rows)] = "" if rank.state not in (RUNNING, GONE) else doing(job, number).removeprefix("is ")
            rows.append([*first, *[""] * (len(rows[0]) - len(first))])
    kept = [i for i, name in enumerate(rows[0]) if width >= _NARROW or name not in _LEFT_OUT]
    found = grid([[row[i] for i in kept] for row in rows], width)
    column = found[0].find(_COLUMN)
    column = column if column >= 0 else max(map(len, found)) + 2
    texts = [f"{line:{column}}{instead.get(i, '')}".rstrip() for i, line in enumerate(found)]
    return [text if len(text) <= width else f"{text[: width - 1]}…" for text in texts]


def _call(wait: LiveWait) -> str:
    return f"{wait.what or 'a call'} on {wait.on or 'a communicator'}, {ordinal(wait.key[2])} call"


def doing(job: Job, number: int, key: Key | None = None) -> str:
    """What a rank does that waits in no call, in words that follow its name; as ranks see it that wait in one call, if some do."""
    rank = job.ranks.get(number)
    if rank is None:
        return "is not seen on this node"
    if rank.left or rank.state == GONE:
        return rank.left or "has ended"
    if rank.state != RUNNING:
        return f"is {rank.state}"
    if not rank.has_page:
        return "shows nothing of itself"
    failed = [one for one in rank.failed if key is None or one.key[0] == key[0]]
    raised = [f"has raised {one.failed}" + (f" in {one.what}" if one.what else "") for one in failed[-1:]]
    waits = [wait for one in job.ranks.values() for wait in one.waits if number in wait.sees]
    last = max([one for one in waits if one.key == key] or waits, key=lambda one: one.sees[number].since, default=None)
    return f"{last.sees[number].text} on {last.on}" if last is not None else raised[0] if raised else _NOTHING


def stories(job: Job, now: float) -> list[str]:
    """A sentence for each call in which ranks wait, the oldest first: who waits for whom, down to the rank at the root of it."""
    calls: dict[Key, list[tuple[float, int, LiveWait]]] = {}
    for number, rank in job.ranks.items():
        for wait in rank.waits:
            calls.setdefault(wait.key, []).append((wait.since, number, wait))
    texts = []
    for theirs in sorted(calls.values(), key=lambda one: min(since for since, _, _ in one)):
        _, number, wait = min(theirs, key=lambda one: one[1])
        waited = duration(now - min(since for since, _, _ in theirs))
        who = "; ".join(_chain(job, number, wait))
        texts.append(f"{wait.what or 'a call'} on {wait.on or 'a communicator'} waits for {waited}: {who}")
    return texts[:_MOST_STORIES] + [f"and {len(texts) - _MOST_STORIES} more calls"] * (len(texts) > _MOST_STORIES)


def _chain(job: Job, number: int, wait: LiveWait) -> Iterator[str]:
    """Who waits for whom, from a rank on, until one waits for nobody, or for one that was named before."""
    seen, key = list[int](), wait.key
    while True:
        seen.append(number)
        what = "waits" if wait.key == key else f"waits in {_call(wait)}"
        yield f"rank {number} {what} for {names(wait.awaits) or 'nobody that is known'}"
        unseen = [rank for rank in wait.awaits if rank not in seen]
        if not unseen:
            return
        number = next((rank for rank in unseen if _wait_of(job, rank, key) is None), unseen[0])
        found = _wait_of(job, number, key)
        if found is None:
            yield f"rank {number} {doing(job, number, key)}" if number >= 0 else "that one is of another program"
            return
        wait = found


def _wait_of(job: Job, number: int, key: Key) -> LiveWait | None:
    """In what a rank waits, if it does: in that call, or else in another."""
    rank = job.ranks.get(number)
    if rank is None or rank.state != RUNNING:
        return None
    return next((wait for wait in rank.waits if wait.key == key), rank.waits[-1] if rank.waits else None)


def _json(found: Found, shares: Used) -> str:
    return json.dumps(document(found, shares), indent=1)


def document(found: Found, shares: Used) -> dict[str, Any]:
    """What there is to show, for programs."""
    now, here = time.monotonic(), time.time()
    jobs = [_job(job, shares, now) for job in found.jobs]
    return {"format": FORMAT, "seen": here, "jobs": jobs, "closed": found.closed, "unclear": list(found.unclear)}


def _job(job: Job, shares: Used, now: float) -> dict[str, Any]:
    who = job.who
    return {
        "program": list(who.program), "world_size": who.nranks, "host": who.host, "since": who.started,
        "ranks": [_of_rank(job, rank, shares, now) for rank in job.ranks.values()], "stories": stories(job, now),
    }  # fmt: skip


def _of_rank(job: Job, rank: Rank, shares: Used, now: float) -> dict[str, Any]:
    number = rank.who.rank
    waits = [
        {
            "what": wait.what, "communicator": wait.on, "call": wait.key[2], "step": wait.step, "seconds": now - wait.since,
            "awaits": list(wait.awaits),
        }
        for wait in rank.waits
    ]  # fmt: skip
    return {
        "rank": number, "pid": rank.pid, "state": rank.state, "core": shares.get(rank.pid), "waits": waits,
        "doing": "" if rank.waits else doing(job, number),
    }  # fmt: skip
