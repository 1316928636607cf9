"""Two runs compared: what each operation took at each place of the program, then and now."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hpcoll.base.text import counted, duration, format_nbytes
from hpcoll.cli.trace.summary import Key, OperationTimes

_NONE = OperationTimes(0, 0, 0.0, 0.0)
_ROWS = 20  # of the table, the ones that changed most
_NOTHING = 0.01  # share of the time by which runs differ always


class Change(NamedTuple):
    """An operation in both runs; what is not in a run has no calls in it."""

    key: Key
    then: OperationTimes
    now: OperationTimes

    @property
    def waited_s(self) -> float:
        """Return by how much longer all ranks together waited now."""
        return self.now.waited_s - self.then.waited_s

    @property
    def moved_s(self) -> float:
        """Return by how much longer all ranks together moved data now."""
        return self.now.moved_s - self.then.moved_s


def changes(then: Mapping[Key, OperationTimes], now: Mapping[Key, OperationTimes]) -> list[Change]:
    """Return all operations, those that changed most first."""
    pairs = [Change(key, then.get(key, _NONE), now.get(key, _NONE)) for key in dict.fromkeys([*now, *then])]
    return sorted(pairs, key=lambda change: -abs(change.waited_s) - abs(change.moved_s))


def rows(changed: Sequence[Change]) -> list[list[str]]:
    """Return a table, its header first."""
    table = [["call", "place", "calls", "now", "bytes", "now", "waited", "now", "moved", "now"]]
    for (name, place), then, now in changed[:_ROWS]:
        table.append(
            [
                name,
                place,
                f"{then.calls:,}",
                f"{now.calls:,}",
                format_nbytes(then.nbytes),
                format_nbytes(now.nbytes),
                duration(then.waited_s),
                duration(now.waited_s),
                duration(then.moved_s),
                duration(now.moved_s),
            ]
        )
    if len(changed) > _ROWS:
        table.append([f"and {len(changed) - _ROWS} more that changed less", *[""] * (len(table[0]) - 1)])
    return table


def sentence(changed: Sequence[Change]) -> str:
    """Say what changed most."""
    total = sum(change.then.waited_s + change.then.moved_s for change in changed)
    if not changed or not max(abs(changed[0].waited_s), abs(changed[0].moved_s)) > _NOTHING * total:
        return "no operation took longer or shorter than before by more than 1 % of the time in all calls"
    (name, place), then, now = first = changed[0]
    waiting = abs(first.waited_s) >= abs(first.moved_s)
    verb, before, after = (
        ("waited", then.waited_s, now.waited_s) if waiting else ("moved data", then.moved_s, now.moved_s)
    )
    where = f"{name}{f' at {place}' if place else ''}"
    if not then.calls or not now.calls:
        which, calls = ("before", then.calls) if then.calls else ("now", now.calls)
        return f"changed most: {where}, which is only in the run {which}, with {counted(calls, 'call')}"
    factor = f", {after / before:.3g} times as long" if before else ""
    return (
        f"changed most: {where}, where ranks {verb} {duration(after)} instead of {duration(before)}{factor}"
    )
