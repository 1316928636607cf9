"""Findings of ``hpcoll doctor``, as lines: equal findings of several ranks become one."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from hpcoll.base.text import LINE, printable, ranks_by, ranks_in_words

# levels: fine, worth knowing, will cost time or answers, does not work
OK, NOTE, WARN, FAIL = (
    "ok",
    "note",
    "warn",
    "FAIL",
)
LEVELS = (OK, NOTE, WARN, FAIL)
MAX_NAMED = 6  # hosts that a line names


class Finding(NamedTuple):
    """A line of the report."""

    level: str  # one of `LEVELS`
    subject: str  # the thing that was examined
    found: str  # the finding, in one line
    remedy: str = ""  # advice; the empty string exactly when the level is ``ok``


class Shared(NamedTuple):
    """A finding with the ranks that made it, in order; None when all did."""

    finding: Finding
    ranks: list[int] | None = None
    hosts: list[str] | None = None


def merge(per_rank: Sequence[Iterable[Finding]], hosts: Sequence[str]) -> list[Shared]:
    """Return every finding of the ranks once, grouped by subjects, in the order in which the first rank reports these.

    >>> one, two = Finding("ok", "memory", "2 GiB"), Finding("ok", "memory", "1 GiB")
    >>> [(shared.finding.found, shared.ranks) for shared in merge([[one], [two], [one]], ["a", "b", "a"])]
    [('2 GiB', [0, 2]), ('1 GiB', [1])]
    """
    ranks = ranks_by(
        (finding, rank) for rank, findings in enumerate(per_rank) for finding in dict.fromkeys(findings)
    )
    subjects = list(dict.fromkeys(finding.subject for finding in ranks))
    return [
        Shared(finding)
        if len(theirs) == len(per_rank)
        else Shared(finding, theirs, list(dict.fromkeys(hosts[rank] for rank in theirs)))
        for finding, theirs in sorted(ranks.items(), key=lambda found: subjects.index(found[0].subject))
    ]


def failed(merged: Iterable[Shared]) -> bool:
    """Say whether something does not work."""
    return any(shared.finding.level == FAIL for shared in merged)


def as_text(merged: Iterable[Shared]) -> str:
    """Return a line per finding, with the remedy below it, indented."""
    lines = []
    for (level, subject, found, remedy), ranks, hosts in merged:
        where = "" if ranks is None else f" ({ranks_in_words(ranks)} on {named(hosts or [])})"
        lines.append(f"{level:4}  {printable(f'{subject}: {found}{where}', LINE)}\n")
        if remedy:
            lines.append(f"      -> {printable(remedy, LINE)}\n")
    return "".join(lines)


def as_json(merged: Sequence[Shared], nranks: int, version: str) -> dict[str, Any]:
    """Return the report as a JSON document; ``ranks`` and ``hosts`` are null where all ranks have a finding."""
    rows = [{**shared.finding._asdict(), "ranks": shared.ranks, "hosts": shared.hosts} for shared in merged]
    return {"version": version, "nranks": nranks, "failed": failed(merged), "findings": rows}


def named(texts: Sequence[str]) -> str:
    """Return the first few texts, and the number of others.

    >>> named(list("abcdefgh"))
    'a, b, c, d, e, f and 2 more'
    """
    beyond = len(texts) - MAX_NAMED
    return ", ".join(texts[:MAX_NAMED]) + (f" and {beyond} more" if beyond > 0 else "")


def one_line(error: Exception) -> str:
    """Return an error's text without line breaks."""
    return printable(str(error), LINE) or type(error).__name__
