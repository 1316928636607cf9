"""Ranks that run on this node, as their status pages and the system show them: their jobs, and the calls in which they wait.

It only reads files of processes that the system lets this user read. Other processes write them, so nothing in them is trusted.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from hpcoll.analysis.wait_for_graph import Wait
from hpcoll.base.json_fields import MAX_INTEGER
from hpcoll.base.machine import GONE, PROC, cpu_s, stat_fields, state_of
from hpcoll.base.text import MAX_RANKS, printable
from hpcoll.runtime.telemetry.status_page import Identity, page_of, seconds

_LATER_S = (
    10.0  # after its job began a process may seem to have begun: clocks are set, and ranks start one by one
)


class Seen(NamedTuple):
    """An activity of a rank that another one sees: its begin, in seconds since 1970, and words that follow the rank's name."""

    since: float
    text: str


@dataclass(frozen=True)
class LiveWait(Wait):
    """A call in which a rank waits, or has failed; ``since`` is monotonic, ranks are of COMM_WORLD."""

    what: str  # the call, and the line of the program
    on: str  # name of the communicator
    # activities of awaited ranks that wait in nothing, by rank
    sees: Mapping[int, Seen] = field(default_factory=dict)
    failed: str = ""  # name of the error that it has raised; empty while it waits


@dataclass(frozen=True)
class Rank:
    """A process that has a status page, or that another rank of its job names."""

    pid: int  # its number as this process knows it
    who: Identity  # the identity in its page; of a process without a page, as far as others know it
    state: str  # its state by the system
    used_s: float | None = None  # seconds for which it has had a core; None: not known
    waits: tuple[LiveWait, ...] = ()
    failed: tuple[LiveWait, ...] = ()
    left: str = ""  # words for how its program ended, if it has
    has_page: bool = True


@dataclass(frozen=True)
class Job:
    """Ranks of one COMM_WORLD on this node, in their order."""

    ranks: Mapping[int, Rank]

    @property
    def who(self) -> Identity:
        """The identity of one of them, for what all have in common."""
        return next(iter(self.ranks.values())).who


@dataclass(frozen=True)
class Found:
    """The jobs on this node."""

    jobs: tuple[Job, ...]
    closed: int = 0  # number of processes that may not be looked into
    unclear: tuple[str, ...] = ()  # a text for each page that cannot be understood


def look(proc: Path = PROC) -> Found:
    """Return the ranks that run on this node now."""
    ranks, unclear, closed = list[Rank](), list[str](), 0
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            page = page_of(folder)
            if page is not None:
                ranks.append(_rank(int(folder.name), *page, proc))
        except PermissionError:
            closed += 1
        except OSError:
            continue  # it has just ended
        except ValueError as error:
            unclear.append(printable(f"process {folder.name}: {error}"))
    return Found(tuple(_jobs(ranks, proc)), closed, tuple(unclear))


def _rank(pid: int, who: Identity, notice: Mapping[str, Any], proc: Path) -> Rank:
    """Return a rank from its page; ValueError where that is no notice, or has numbers that no rank or process can have."""
    if not 0 <= who.rank < who.nranks <= MAX_RANKS or not all(
        0 <= number <= MAX_RANKS for pair in who.peers.items() for number in pair
    ):
        raise ValueError(f"ranks and processes up to {MAX_RANKS} were expected")
    try:
        waits, failed = (
            tuple(_wait(who.rank, wait) for wait in notice.get(name, ())) for name in ("waits", "failed")
        )
        left = printable(str(notice.get("left", "")))
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"its notice: {type(error).__name__}: {error}") from None
    return Rank(pid, who, state_of(pid, proc), cpu_s(pid, proc), waits, failed, left)


def _wait(rank: int, notice: Mapping[str, Any]) -> LiveWait:
    what, comm, number = (
        printable(str(notice["what"])),
        printable(str(notice.get("on", ""))),
        _number(notice["number"]),
    )
    return LiveWait(
        rank,
        (str(notice["key"]), str(_number(notice["lane"])), number),
        tuple(map(_number, notice.get("for", ()))),
        f"{what or 'a call'} on {comm or 'a communicator'}",
        printable(str(notice["step"])),
        seconds(notice["since"]),
        what,
        comm,
        {
            _number(peer): Seen(seconds(last), printable(str(text)))
            for peer, (last, text) in notice.get("sees", {}).items()
        },
        printable(str(notice.get("kind", ""))),
    )


def _number(said: Any) -> int:
    number = int(said)
    if abs(number) > MAX_INTEGER:
        raise ValueError("a number of 64 bits was expected")
    return number


def _jobs(ranks: Iterable[Rank], proc: Path) -> Iterator[Job]:
    """Yield ranks by jobs: ranks of one launcher, and ranks of which one names the other.

    A launcher may be known only by the process that has started a rank. With a script around each rank, every rank has its own
    then; they are joined because each names the ranks of its communicators.
    """
    groups: list[list[Rank]] = []
    for rank in sorted(ranks, key=lambda member: (member.who.started, member.pid)):
        free = [group for group in groups if all(member.who.rank != rank.who.rank for member in group)]
        related = [group for group in free if any(_related(rank, member) for member in group)]
        groups = [group for group in groups if group not in related]
        groups.append([member for group in related for member in group] + [rank])
    for group in sorted(groups, key=lambda group: min(member.who.started for member in group)):
        by_rank = {member.who.rank: member for member in _unseen(group, proc)} | {
            member.who.rank: member for member in group
        }
        yield Job(dict(sorted(by_rank.items())))


def _related(one: Rank, other: Rank) -> bool:
    mine, theirs = one.who, other.who
    if mine.nranks != theirs.nranks or mine.rank == theirs.rank or mine.host != theirs.host:
        return False
    named = {
        theirs.peers.get(mine.rank, mine.pid) == mine.pid,
        mine.peers.get(theirs.rank, theirs.pid) == theirs.pid,
    }
    known = mine.rank in theirs.peers or theirs.rank in mine.peers
    return named == {True} and (known or mine.launcher == theirs.launcher)


def _unseen(group: list[Rank], proc: Path) -> Iterator[Rank]:
    """Yield ranks that others name and whose page is not seen: they have ended, or may not be looked into."""
    known = {member.who.rank for member in group}
    for member in group:
        for rank, pid in member.who.peers.items():
            if (
                rank not in known and member.pid == member.who.pid
            ):  # else numbers of processes are a container's
                known.add(rank)
                who = replace(member.who, pid=pid, rank=rank, peers={})
                if _begun(pid, proc) > member.who.started + _LATER_S:
                    yield Rank(pid, who, GONE, has_page=False)
                else:
                    yield Rank(pid, who, state_of(pid, proc), cpu_s(pid, proc), has_page=False)


def _begun(pid: int, proc: Path = PROC) -> float:
    """Return when a process began, in seconds since 1970, or 0: a process younger than its job has a dead rank's number."""
    try:
        ticks = int(stat_fields(pid, proc)[19])
    except (OSError, IndexError, ValueError):
        return 0.0
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
