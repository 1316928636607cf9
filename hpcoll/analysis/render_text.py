"""A schedule as text for a terminal, in three parts: properties and costs, structure, and each rank's work by rounds.

Returns a string and prints nothing.
"""

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Sequence

from hpcoll.analysis.render import Drawing, Edge, Ring, Rounds, Shape, Tree, channel_name, chunk_name, example
from hpcoll.analysis.timeline import Event
from hpcoll.base.text import counted
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.derived import costs_of
from hpcoll.schedules.ir import Op, Schedule

MAX_TREE_LINES = 64
MAX_RING = 40  # ranks
MAX_EDGES = 40  # per round
MAX_ROWS = 32  # of a timeline
MAX_LINES = 120  # of a timeline
GAP = 3  # columns between rounds
RANK_ORDER = ', those of order="rank"'


def render_text(drawing: Drawing, width: int) -> str:
    """Return the drawing as lines of at most ``width`` columns, ``>= 40``, without a newline at the end."""
    lines = [*_header(drawing, width), "", *_structure(drawing, width), "", *_timeline(drawing, width)]
    return "\n".join(line.rstrip() if len(line) <= width else line[: width - 1] + "…" for line in lines)


def _header(drawing: Drawing, width: int) -> Iterable[str]:
    row, s = drawing.row, drawing.schedules[0]
    collective = COLLECTIVES[row.collective]
    size = [counted(s.nranks, "rank"), counted(s.nchunks, "chunk"), counted(drawing.nchannels, "channel")]
    yield (
        f"{row.key} on {', '.join(size)}"
        + (f", root {s.root}" if collective.rooted else "")
        + f", {drawing.graph}" * bool(drawing.graph)
    )
    sent = max(
        sum(step.srcs[0].n for c in s.channels for step in c if step.op == Op.SEND) for s in drawing.schedules
    )
    chain = row.rounds or costs_of(drawing.schedules).rounds
    facts = {
        "": row.summary,
        "rounds": f"{drawing.timeline.total:.0f} with one message at a time per rank; longest chain of messages {chain}",
        "sent": f"{sent / s.nchunks:.4g} m by the busiest rank" + f" ({row.sent})" * bool(row.sent),
    }
    if collective.reduces and not collective.idempotent:
        operators = "any operator" if row.ordered or collective.ordered else "commutative operators"
        bits = "all ranks get the same bits" if row.reproducible else "ranks may differ in the last bit"
        facts["results"] = f"{operators}; {bits}{RANK_ORDER * row.is_canonical(s.nranks, drawing.nodes)}"
    facts["source"] = row.source
    for name, text in facts.items():
        yield from textwrap.wrap(
            text,
            width,
            initial_indent=f"  {name:9}" if name else "  ",
            subsequent_indent=" " * (11 if name else 2),
        )


def _structure(drawing: Drawing, width: int) -> Iterable[str]:
    nranks = len(drawing.schedules)
    if not drawing.shapes:
        yield "no messages"
    for channel, shape in drawing.shapes:
        yield (f"channel {channel_name(channel)}: " if drawing.nchannels > 1 else "") + shape.caption
        yield from (f"  {line}" for line in _shape(shape, nranks, width - 2))


def _shape(shape: Shape, nranks: int, width: int) -> Iterable[str]:
    if isinstance(shape, Ring):
        return _wrap([*_shortened(shape.order, " →"), str(shape.order[0])], width, "")
    if isinstance(shape, Rounds):
        return (
            line for first, last, edges in shape.rounds for line in _round(first, last, edges, nranks, width)
        )
    if shape.is_chain():
        ranks = [rank for rank, _ in shape.preorder()]
        arrow = " ↔" if shape.up and shape.down else " ←" if shape.up else " →"
        return _wrap([*_shortened(ranks[:-1], arrow), str(ranks[-1])], width, "")
    lines = list(_tree(shape, shape.root, ""))
    left_out = len(lines) - MAX_TREE_LINES
    return [*lines[:MAX_TREE_LINES], f"... {left_out} more ranks"] if left_out > 0 else lines


def _shortened(ranks: Sequence[int], arrow: str) -> list[str]:
    """Return ranks, each with an arrow behind it; the middle of a long row is left out."""
    words = [f"{rank}{arrow}" for rank in ranks]
    return words if len(words) <= MAX_RING else [*words[: MAX_RING // 2], f"...{arrow}", *words[-2:]]


def _wrap(words: Iterable[str], width: int, label: str) -> list[str]:
    lines = [label]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > width and len(lines[-1]) > len(label):
            lines.append(" " * len(label))
        lines[-1] += (" " if lines[-1].strip() else "") + word
    return lines


def _tree(tree: Tree, rank: int, stem: str) -> Iterable[str]:
    if not stem:
        yield str(rank)
    for child in tree.children[rank]:
        last = child == tree.children[rank][-1]
        yield f"{stem}{'└─' if last else '├─'} {child}"
        yield from _tree(tree, child, stem + ("   " if last else "│  ")) if tree.children[child] else ()


def _round(first: int, last: int, edges: Sequence[Edge], nranks: int, width: int) -> Iterable[str]:
    label = f"round {first}:" if first == last else f"rounds {first}-{last}:"
    shifts = {(receiver - sender) % nranks for sender, receiver in edges}
    if len(shifts) == 1 and len(edges) == nranks > 3:
        shift = shifts.pop()
        return [f"{label} every rank r → r{shift if 2 * shift <= nranks else shift - nranks:+}"]
    words = [f"{a}↔{b}" if (b, a) in edges else f"{a}→{b}" for a, b in edges if a < b or (b, a) not in edges]
    more = [f"... {len(words) - MAX_EDGES} more"] if len(words) > MAX_EDGES else []
    return _wrap(words[:MAX_EDGES] + more, width, label)


def _token(schedule: Schedule, event: Event) -> str:
    name = chunk_name(schedule, event.chunk)
    if event.op == Op.REDUCE:
        return f"+{name}"
    if event.op == Op.COPY:
        return f"={name}"
    name = "" if name == "c0" and schedule.nchunks == 1 else name
    mark = {Op.SEND: ">", Op.RECV: "<", Op.RECV_REDUCE: "<"}[event.op]
    return f"{mark}{event.peer}" + (f"+{name}" if event.op == Op.RECV_REDUCE else f" {name}" if name else "")


_Cells = list[dict[int, tuple[str, str, str]]]  # by row: round -> texts of sends, receives, local work


def _timeline(drawing: Drawing, width: int) -> Iterable[str]:
    nrounds, nchannels = max(1, round(drawing.timeline.total)), drawing.nchannels
    shown = max(1, min(len(drawing.schedules), MAX_ROWS // nchannels))
    labels, cells = [], _Cells()
    for schedule, events in zip(drawing.schedules[:shown], drawing.timeline.events):
        for channel in range(nchannels):
            number = str(schedule.rank) if channel == 0 else ""
            labels.append(
                f"  {number:>{len(str(shown))}}" + (f" {channel_name(channel)}" if nchannels > 1 else "")
            )
            cells.append(_row(schedule, [event for event in events if event.channel == channel], nrounds))
    yield from _blocks(labels, cells, nrounds, width)
    if shown < len(drawing.schedules):
        yield f"  ... {len(drawing.schedules) - shown} more ranks"
    yield from _legend(cells, width, example(drawing))


def _row(schedule: Schedule, events: Sequence[Event], nrounds: int) -> dict[int, tuple[str, str, str]]:
    cells: dict[int, list[list[str]]] = defaultdict(lambda: [[], [], []])
    for event in events:
        kind = 0 if event.op == Op.SEND else 2 if event.op in (Op.COPY, Op.REDUCE) else 1
        cells[min(round(event.start), nrounds - 1)][kind].append(_token(schedule, event))
    return {
        number: (" ".join(kinds[0]), " ".join(kinds[1]), " ".join(kinds[2]))
        for number, kinds in cells.items()
    }


def _blocks(labels: Sequence[str], cells: _Cells, nrounds: int, width: int) -> Iterable[str]:
    """Yield the timeline, folded into blocks of as many rounds as fit."""
    margin = max(len("round"), *(len(label) for label in labels))
    number, printed = 0, 0
    while number < nrounds and printed < MAX_LINES:
        columns: list[list[str]] = []
        used = margin
        while number < nrounds:
            column = _column(cells, number)
            if columns and used + GAP + len(column[0]) > width:
                break
            used += GAP + len(column[0])
            columns.append(column)
            number += 1
        if printed:
            yield ""
        for label, *row in zip(["round", *labels], *columns):
            yield f"{label:{margin}}" + "".join(" " * GAP + text for text in row)
        printed += len(labels) + 2
    if number < nrounds:
        yield f"  ... rounds {number + 1} to {nrounds} are left out"


def _column(cells: _Cells, number: int) -> list[str]:
    """Return a round of all rows, header first, in equal width; sends, receives and local work are each aligned."""
    entries = [row.get(number, ("", "", "")) for row in cells]
    widths = [max(len(parts[kind]) for parts in entries) for kind in range(3)]
    texts = [" ".join(f"{part:{w}}" for part, w in zip(parts, widths) if w) for parts in entries]
    width = max(len(str(number + 1)), *(len(text) for text in texts))
    return [f"{text:{width}}" for text in (str(number + 1), *texts)]


def _legend(cells: _Cells, width: int, named: str) -> list[str]:
    tokens = " ".join(part for row in cells for parts in row.values() for part in parts)
    marks = {">": ">1 sends to rank 1", "<": "<1 receives from it", "+": "+ reduces", "=": "= copies"}
    marks |= {"c": "c0: chunk 0", "s": "s0: scratch cell 0", ".": named, "-": "c0-2: chunks 0 to 2"}
    if "." in tokens:
        del marks["c"]
    words = [f"{text}{',' if mark != '-' else ''}" for mark, text in marks.items() if mark in tokens]
    return (
        ["", *(f"  {line}" for line in textwrap.wrap(" ".join(words).rstrip(","), width - 2))]
        if words
        else []
    )
