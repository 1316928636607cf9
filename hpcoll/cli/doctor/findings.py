"""What ``hpcoll doctor`` found, as lines: those of ranks that say the same become one."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcoll.base.text import LINE, printable

OK, NOTE, WARN, FAIL = "ok", "note", "warn", "FAIL"  # levels: fine, worth knowing, will cost time or answers, does not work
LEVELS = (OK, NOTE, WARN, FAIL)
MAX_NAMED = 6  # hosts, or ranges of ranks, that a line names


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        level: One of `LEVELS`.
        subject: What was looked at.
        found: What was found, in one line.
        remedy: What to do about it; the empty string exactly when the level is ``ok``.
    """

    level: str
    subject: str
    found: str
    remedy: str = ""


class Shared(NamedTuple):
    """A finding with the ranks that made it, in order; None when all did."""

    finding: Finding
    ranks: list[int] | None = None
    hosts: list[str] | None = None


def merge(per_rank: Sequence[Iterable[Finding]], hosts: Sequence[str]) -> list[Shared]:
    """Every finding once, those of one subject together, subjects in the order in which the first rank reports them.

    Args:
        per_rank: Each rank's findings.
        hosts: Each rank's host.

    >>> one, two = Finding("ok", "memory", "2 GiB"), Finding("ok", "memory", "1 GiB")
    >>> [(shared.finding.found, shared.ranks) for shared in merge([[one], [two], [one]], ["a", "b", "a"])]
    [('2 GiB', [0, 2]), ('1 GiB', [1])]
    """
    ranks: dict[Finding, list[int]] = {}
    for rank, findings in enumerate(per_rank):
        for finding in dict.fromkeys(findings):
            ranks.setdefault(finding, []).append(rank)
    subjects = list(dict.fromkeys(finding.subject for finding in ranks))
    merged = []
    for finding in sorted(ranks, key=lambda finding: subjects.index(finding.subject)):
        theirs = ranks[finding]
        everybody = len(theirs) == len(per_rank)
        merged.append(Shared(finding) if everybody else Shared(finding, theirs, list(dict.fromkeys(hosts[rank] for rank in theirs))))
    return merged


def failed(merged: Iterable[Shared]) -> bool:
    """True when something does not work."""
    return any(shared.finding.level == FAIL for shared in merged)


def as_text(merged: Iterable[Shared]) -> str:
    """One line per finding; below it, indented, what to do."""
    lines = []
    for (level, subject, found, remedy), ranks, hosts in merged:
        where = "" if ranks is None else f" ({ranks_text(ranks)} on {named(hosts or [])})"
        lines.append(f"{level:4}  {printable(f'{subject}: {found}{where}', LINE)}\n")
        if remedy:
            lines.append(f"      -> {printable(remedy, LINE)}\n")
    return "".join(lines)


def as_json(merged: Sequence[Shared], nranks: int, version: str) -> dict[str, Any]:
    """The report as a JSON document; ``ranks`` and ``hosts`` are null where a finding is everybody's."""
    rows = [{**shared.finding._asdict(), "ranks": shared.ranks, "hosts": shared.hosts} for shared in merged]
    return {"version": version, "nranks": nranks, "failed": failed(merged), "findings": rows}


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in ascending order, runs of them as ranges.

    >>> ranks_text([0, 1, 2, 5]), ranks_text([3])
    ('ranks 0-2, 5', 'rank 3')
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named(texts)}"


def named(texts: Sequence[str]) -> str:
    """The first few, and how many there are beyond.

    >>> named(list("abcdefgh"))
    'a, b, c, d, e, f and 2 more'
    """
    beyond = len(texts) - MAX_NAMED
    return ", ".join(texts[:MAX_NAMED]) + (f" and {beyond} more" if beyond > 0 else "")


def read(path: Path) -> str:
    """A small file's text without surrounding blanks; the empty string where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def one_line(error: Exception) -> str:
    """An error's text without line breaks."""
    return printable(str(error), LINE) or type(error).__name__
