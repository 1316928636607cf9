"""Ranks that run on this node, as their live pages and the system show them: which there are, of which jobs, what each waits in.

Reads alone: the files of processes that the system lets this user read. What stands in them is another process's and not trusted.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from hpcoll.base.json_fields import MAX_INTEGER
from hpcoll.base.processes import GONE, PROC, cpu_s, state_of
from hpcoll.base.text import printable
from hpcoll.base.units import MAX_RANKS
from hpcoll.runtime.telemetry.status_page import Identity, page_of, seconds

_LATER_S = 10.0  # after its job began a process may seem to have begun: clocks are set, and ranks start one by one


class Seen(NamedTuple):
    """What one rank sees another do on a communicator: since when, in seconds since 1970, and in words that follow its name."""

    since: float
    text: str


@dataclass(frozen=True)
class LiveWait:
    """A call in which a rank waits, or has failed.

    Attributes:
        key: What this call and those of other ranks that belong to it have in common.
        what: The call, and the line of the program.
        on: Name of the communicator.
        step: How far it is.
        since: When it began to wait, in seconds, monotonic.
        awaits: Ranks of COMM_WORLD; negative: one of another world.
        sees: What it sees these do, by rank of those that wait in nothing.
        failed: Name of the error that it has raised; nothing while it waits.
    """

    key: tuple[str, int, int]
    what: str
    on: str
    step: str
    since: float
    awaits: tuple[int, ...] = ()
    sees: Mapping[int, Seen] = field(default_factory=dict)
    failed: str = ""


@dataclass(frozen=True)
class Rank:
    """A process that has a live page, or that another rank of its job names.

    Attributes:
        pid: As this process knows it.
        who: What it says of itself; of a process without a page, what is known.
        state: What the system says.
        used_s: For how long it has had a core, in seconds; None: not known.
        waits, failed: Calls.
        left: How its program ended, if it has.
        has_page: It has a page.
    """

    pid: int
    who: Identity
    state: str
    used_s: float | None = None
    waits: tuple[LiveWait, ...] = ()
    failed: tuple[LiveWait, ...] = ()
    left: str = ""
    has_page: bool = True


@dataclass(frozen=True)
class Job:
    """Ranks of one COMM_WORLD on this node, in their order."""

    ranks: Mapping[int, Rank]

    @property
    def who(self) -> Identity:
        """What one of them says of all."""
        return next(iter(self.ranks.values())).who


@dataclass(frozen=True)
class Found:
    """What is on this node.

    Attributes:
        jobs: Those that ranks were found of.
        closed: How many processes may not be looked into.
        unclear: What is wrong with pages that cannot be understood, one text for each.
    """

    jobs: tuple[Job, ...]
    closed: int = 0
    unclear: tuple[str, ...] = ()


def look(proc: Path = PROC) -> Found:
    """What runs on this node now."""
    ranks, unclear, closed = list[Rank](), list[str](), 0
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            page = page_of(folder)
            if page is not None:
                ranks.append(_rank(int(folder.name), *page))
        except PermissionError:
            closed += 1
        except OSError:
            continue  # it has just ended
        except ValueError as error:
            unclear.append(printable(f"process {folder.name}: {error}"))
    return Found(tuple(_jobs(ranks)), closed, tuple(unclear))


def _rank(pid: int, who: Identity, notice: Mapping[str, Any]) -> Rank:
    """A rank, from what stands in its page.

    Raises:
        ValueError: that is no notice, or ranks and processes have numbers that none can have.
    """
    if not 0 <= who.rank < who.nranks <= MAX_RANKS or not all(0 <= one <= MAX_RANKS for pair in who.peers.items() for one in pair):
        raise ValueError(f"ranks and processes up to {MAX_RANKS} were expected")
    try:
        waits, failed = (tuple(map(_wait, notice.get(name, ()))) for name in ("waits", "failed"))
        left = printable(str(notice.get("left", "")))
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"its notice: {type(error).__name__}: {error}") from None
    return Rank(pid, who, state_of(pid), cpu_s(pid), waits, failed, left)


def _wait(one: Mapping[str, Any]) -> LiveWait:
    return LiveWait(
        key=(str(one["key"]), _number(one["lane"]), _number(one["number"])),
        what=printable(str(one["what"])),
        on=printable(str(one.get("on", ""))),
        step=printable(str(one["step"])),
        since=seconds(one["since"]),
        awaits=tuple(map(_number, one.get("for", ()))),
        sees={_number(rank): Seen(seconds(last), printable(str(text))) for rank, (last, text) in one.get("sees", {}).items()},
        failed=printable(str(one.get("kind", ""))),
    )


def _number(found: Any) -> int:
    number = int(found)
    if abs(number) > MAX_INTEGER:
        raise ValueError("a number of 64 bits was expected")
    return number


def _jobs(ranks: Iterable[Rank]) -> Iterator[Job]:
    """Ranks by jobs: those of one launcher, and those of whom one names the other.

    A launcher may be told by the process that has started a rank, so that with a script around each rank every one has its own: what joins
    them then is that each names the ranks of its communicators.
    """
    groups: list[list[Rank]] = []
    for rank in sorted(ranks, key=lambda one: (one.who.started, one.pid)):
        related = [group for group in groups if any(_related(rank, one) for one in group) and _has_no(group, rank.who.rank)]
        groups = [group for group in groups if group not in related]
        groups.append([one for group in related for one in group] + [rank])
    for group in sorted(groups, key=lambda group: min(one.who.started for one in group)):
        found = {one.who.rank: one for one in _unseen(group)} | {one.who.rank: one for one in group}
        yield Job(dict(sorted(found.items())))


def _related(one: Rank, other: Rank) -> bool:
    mine, theirs = one.who, other.who
    if mine.nranks != theirs.nranks or mine.rank == theirs.rank or mine.host != theirs.host:
        return False
    named = {theirs.peers.get(mine.rank, mine.pid) == mine.pid, mine.peers.get(theirs.rank, theirs.pid) == theirs.pid}
    known = mine.rank in theirs.peers or theirs.rank in mine.peers
    return named == {True} and (known or mine.launcher == theirs.launcher)


def _has_no(group: list[Rank], number: int) -> bool:
    return all(one.who.rank != number for one in group)


def _unseen(group: list[Rank]) -> Iterator[Rank]:
    """Ranks that others name and that have no page that is seen: they have ended, or may not be looked into."""
    known = {one.who.rank for one in group}
    for one in group:
        for rank, pid in one.who.peers.items():
            if rank not in known and one.pid == one.who.pid:  # else numbers of processes are a container's
                known.add(rank)
                who, gone = replace(one.who, pid=pid, rank=rank, peers={}), _begun(pid) > one.who.started + _LATER_S
                yield Rank(pid, who, GONE if gone else state_of(pid), None if gone else cpu_s(pid), has_page=False)


def _begun(pid: int) -> float:
    """When a process began, in seconds since 1970, 0 where that is not known: one that is younger than its job has a dead rank's number."""
    try:
        ticks = int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0.0
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
