"""A schedule as a picture: its structure on the left, each rank's work over time on the right. Returns SVG text.

Colours are channels; a filled bar sends, a pale one receives, a dark one reduces. Ranks of a node have a tint, and in rounds a box. The
legend says this, and what the marks on bars mean. Times are simulated on a network where a chunk takes one unit, and its latency and
reduction fractions of one.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

from hpcoll.analysis.render import Drawing, Edge, Ring, Rounds, Shape, Tree, channel_name, chunk_name, example
from hpcoll.analysis.svg_canvas import FAINT, INK, MARGIN, NODE, Canvas, Point, text_width
from hpcoll.analysis.timeline import Event, Network, Timeline, simulate
from hpcoll.base.errors import ArgumentError
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Buffer, Op, Schedule
from hpcoll.schedules.placement import Nodes, members

PICTURE = Network(alpha=0.35, overhead=0.1, beta=1.0, gamma=0.3)  # in units of one chunk's transfer
COLOURS = (
    ("#1f6fb2", "#cfe3f4", "#0d3557"),
    ("#c8551b", "#f8dcca", "#66290a"),
    ("#2f8a4c", "#d2ecd9", "#123f21"),
)
GREYS = ("#777777", "#e2e2e2", "#333333")
GRID = "#e4e4e4"
TINTS = ("#f7f7f5", "#e6eef7", "#fbefdc", "#e8f4e3", "#f5e8f2")  # of nodes, in turns
SPREAD, LAYER = 38.0, 52.0  # between leaves, between layers of a tree
ROW, SEND_Y, RECV_Y, REDUCE_Y = 46.0, 4.0, 19.0, 34.0  # a rank's row and the tops of its bars
BAR = 13.0
INSET, BETWEEN = 6.0, 16.0  # of ranks in the box of their node, and from box to box
LINE = 16.0  # from one line of the legend to the next
# of a chunk's transfer, at most; of all time where labels fit, and at most
UNIT, WIDTH, MOST_WIDTH = (
    64.0,
    900.0,
    6000.0,
)
LABEL = 9.0  # size of a transfer's label


def _colours(channel: int) -> tuple[str, str, str]:
    return COLOURS[channel % len(COLOURS)]


def render_svg(drawing: Drawing) -> str:
    """Return the drawing as the text of an SVG file; ArgumentError: there is too much in it to be read."""
    canvas, s = Canvas(), drawing.schedules[0]
    more = (
        f", root {s.root}" if COLLECTIVES[s.collective].rooted else f", {drawing.graph}" * bool(drawing.graph)
    )
    canvas.text(
        MARGIN,
        MARGIN + 8,
        f"{drawing.row.key} on {s.nranks} rank{'s' * (s.nranks > 1)}{more}",
        size=17,
        bold=True,
    )
    canvas.text(MARGIN, MARGIN + 28, drawing.row.summary, size=11.5, colour=FAINT)
    top, right, y = MARGIN + 50, MARGIN, MARGIN + 50
    for channel, shape in drawing.shapes:
        part = Canvas()
        name = f"channel {channel_name(channel)}: " if drawing.nchannels > 1 else ""
        kind, _, detail = shape.caption.partition(", ")
        part.text(MARGIN, y + 10, name + kind, size=11.5, colour=_colours(channel)[0], bold=True)
        part.text(MARGIN, y + 25, detail, size=9.5, colour=FAINT)
        _shape(part, shape, (MARGIN, y + (38 if detail else 24)), drawing, _colours(channel)[0])
        canvas.elements += part.elements
        y, right = part.height + 26, max(right, part.width)
        canvas.reach(0, part.height)
    _gantt(canvas, drawing, (right + 40 if drawing.shapes else MARGIN, top))
    return canvas.svg()


def _shape(canvas: Canvas, shape: Shape, at: Point, drawing: Drawing, colour: str) -> None:
    nranks = len(drawing.schedules)
    fills = [_tint(node) for node in drawing.nodes] or ["white"] * nranks
    if isinstance(shape, Tree):
        _tree(canvas, shape, at, colour, fills)
    elif isinstance(shape, Ring):
        edges = list(zip(shape.order, (*shape.order[1:], shape.order[0])))
        _graph(canvas, _circle(shape.order, at, _radius(nranks, 60)), edges, colour, fills)
    else:
        _rounds(canvas, shape, at, drawing.nodes or (0,) * nranks, colour)


def _radius(nranks: int, least: float) -> float:
    return max(least, nranks * 2.7 * NODE / (2 * math.pi))


def _tint(node: int) -> str:
    return TINTS[node % len(TINTS)]


def _tree(canvas: Canvas, tree: Tree, at: Point, colour: str, fills: Sequence[str]) -> None:
    """Draw leaves side by side, and parents above the middle of their children."""
    places: dict[int, Point] = {}
    leaves, order = 0, tree.preorder()
    for rank, depth in order:
        if not tree.children[rank]:
            places[rank] = (at[0] + NODE + SPREAD * leaves, at[1] + NODE + LAYER * depth)
            leaves += 1
    for rank, depth in reversed(order):
        if tree.children[rank]:
            xs = [places[child][0] for child in tree.children[rank]]
            places[rank] = ((min(xs) + max(xs)) / 2, at[1] + NODE + LAYER * depth)
    for rank, children in enumerate(tree.children):
        for child in children:
            ends = (places[rank], places[child]) if tree.down else (places[child], places[rank])
            canvas.edge(*ends, colour, both=bool(tree.up and tree.down))
    for rank, place in places.items():
        canvas.node(place, rank, colour, fills[rank])


def _circle(ranks: Sequence[int], at: Point, radius: float, first: float = 0.0) -> dict[int, Point]:
    """Return places of ranks on a circle, clockwise from the angle of the first; ``at`` is the upper left corner."""
    turn = 2 * math.pi / len(ranks)
    centre = (at[0] + NODE + radius, at[1] + NODE + radius)
    angles = [first + i * turn for i in range(len(ranks))]
    return {
        rank: (centre[0] + radius * math.sin(a), centre[1] - radius * math.cos(a))
        for rank, a in zip(ranks, angles)
    }


def _graph(
    canvas: Canvas, places: Mapping[int, Point], edges: Sequence[Edge], colour: str, fills: Sequence[str]
) -> None:
    """Draw ranks at their places, and arrows between them."""
    known = set(edges)
    for a, b in edges:
        if (b, a) not in known or a < b:
            canvas.edge(places[a], places[b], colour, both=(b, a) in known)
    for rank, place in places.items():
        canvas.node(place, rank, colour, fills[rank])


def _rounds(canvas: Canvas, shape: Rounds, at: Point, nodes: Nodes, colour: str) -> None:
    """Draw the ranks of each node on a circle, for each round, or once where there are many rounds."""
    rounds, nranks, ranks = list(shape.rounds), len(nodes), members(nodes)
    if len(rounds) > 9 or nranks > 16:
        rounds = [
            (rounds[0][0], rounds[-1][1], tuple(sorted({edge for _, _, edges in rounds for edge in edges})))
        ]
    most = max(map(len, ranks))
    radius = _radius(most, 46 if len(ranks) == 1 else 36) if most > 1 else 0.0
    corners, size = _boxes(len(ranks), 2 * (radius + NODE))
    across = max(1, min(2 if len(rounds) <= 4 else 3, int(600 / size[0])))
    for i, (first, last, edges) in enumerate(rounds):
        x, y = at[0] + i % across * (size[0] + 26), at[1] + i // across * (size[1] + 40)
        canvas.text(
            x,
            y + 8,
            f"round {first}" if first == last else f"rounds {first} to {last}",
            size=10.5,
            colour=FAINT,
        )
        places: dict[int, Point] = {}
        for node, (theirs, (left, top)) in enumerate(zip(ranks, corners)):
            if len(ranks) > 1:
                side = 2 * (radius + NODE + INSET)
                canvas.rect(x + left, y + 18 + top, side, side, _tint(node), FAINT)
            corner = (x + left + INSET, y + 18 + top + INSET) if len(ranks) > 1 else (x, y + 18)
            # No three ranks of several nodes in a line: an arrow would go through one.
            turned = math.pi / (len(theirs) * (4 if len(theirs) % 2 else 2)) if len(ranks) > 1 else 0.0
            places |= _circle(theirs, corner, radius, turned)
        _graph(canvas, places, edges, colour, ["white"] * nranks)


def _boxes(number: int, side: float) -> tuple[list[Point], Point]:
    """Return the upper left corners of boxes around squares, on a circle, and the size of it all; one square has no box."""
    if number == 1:
        return [(0.0, 0.0)], (side, side)
    first = -math.pi / number if number % 2 == 0 else 0.0
    centres = [
        (math.sin(first + i * 2 * math.pi / number), -math.cos(first + i * 2 * math.pi / number))
        for i in range(number)
    ]
    nearest = min(max(abs(a[0] - b[0]), abs(a[1] - b[1])) for i, a in enumerate(centres) for b in centres[:i])
    scale = (side + 2 * INSET + BETWEEN) / nearest
    left, top = min(x for x, _ in centres), min(y for _, y in centres)
    corners = [((x - left) * scale, (y - top) * scale) for x, y in centres]
    return corners, (
        max(x for x, _ in corners) + side + 2 * INSET,
        max(y for _, y in corners) + side + 2 * INSET,
    )


def _gantt(canvas: Canvas, drawing: Drawing, at: Point) -> None:
    nranks = len(drawing.schedules)
    timeline = simulate(drawing.schedules, drawing.schedules[0].nchunks, PICTURE)
    unit = _unit_width(drawing, timeline)
    x, y = at[0] + 18 + text_width(f"rank {nranks - 1}", 11), at[1] + 24
    canvas.text(x, at[1] + 10, "time, in units of one chunk's transfer", size=11.5, bold=True)
    canvas.text(
        x,
        y + nranks * ROW + 32,
        f"latency {PICTURE.alpha:g}, reducing a chunk {PICTURE.gamma:g}",
        size=9.5,
        colour=FAINT,
    )
    _grid(canvas, drawing, (x, y), timeline.total, unit)
    for rank, events in enumerate(timeline.events):
        for event in events:
            _bar(canvas, event, (x, y + rank * ROW), unit)
    for channel, a, b in _messages(timeline, (x, y), unit):
        canvas.arrow(a, b, _colours(channel)[2], width=0.9, head=5, opacity=0.6)
    for schedule, events in zip(drawing.schedules, timeline.events):
        for event in events:
            _label(canvas, schedule, event, (x, y + schedule.rank * ROW), unit)
    _legend(canvas, drawing, timeline, (x, y + nranks * ROW + 48))


def _unit_width(drawing: Drawing, timeline: Timeline) -> float:
    """Return the width of a chunk's transfer, so that peers can be read on all bars, and chunks where the picture may be so wide."""
    least = full = 0.0
    for schedule, events in zip(drawing.schedules, timeline.events):
        for event in events:
            if event.op not in (Op.COPY, Op.REDUCE) and event.end - event.start >= 0.5:  # chunks, no signal
                peer, name = (text_width(text, LABEL) + 3 for text in _names(schedule, event))
                least, full = (
                    max(so_far, width / (event.end - event.start))
                    for so_far, width in ((least, peer), (full, name))
                )
    total = max(timeline.total, 1.0)
    if least * total > MOST_WIDTH:
        ranks = f"{drawing.row.key} on {len(drawing.schedules)} ranks"
        raise ArgumentError(
            f"{ranks} has too many messages one after another for a picture: draw fewer ranks, or leave out --svg"
        )
    return min(UNIT, MOST_WIDTH / total, max(WIDTH / total, full))


def _grid(canvas: Canvas, drawing: Drawing, at: Point, total: float, unit: float) -> None:
    (x, y), nranks, nodes = at, len(drawing.schedules), drawing.nodes
    bottom, right = y + nranks * ROW, x + unit * max(total, 1.0)
    for rank in range(nranks):
        canvas.rect(x, y + rank * ROW, right - x, ROW - 1, _tint(nodes[rank] if nodes else 0))
        canvas.text(x - 10, y + rank * ROW + ROW / 2 + (4 if not nodes else -2), f"rank {rank}", anchor="end")
        if nodes:
            canvas.text(
                x - 10,
                y + rank * ROW + ROW / 2 + 11,
                f"{_unit(drawing)} {nodes[rank]}",
                size=9,
                colour=FAINT,
                anchor="end",
            )
    step = next(step for k in range(9) for step in (10**k, 2 * 10**k, 5 * 10**k) if step * unit >= 40)
    for tick in range(0, math.floor(max(total, 1.0)) + 1, step):
        canvas.line((x + tick * unit, y), (x + tick * unit, bottom + 4), GRID)
        canvas.text(x + tick * unit, bottom + 15, str(tick), size=9.5, colour=FAINT, anchor="middle")


def _bar(canvas: Canvas, event: Event, at: Point, unit: float) -> None:
    full, pale, dark = _colours(event.channel)
    x, width = at[0] + event.start * unit, (event.end - event.start) * unit
    if event.op == Op.SEND:
        canvas.rect(x, at[1] + SEND_Y, width, BAR, full, dark)
    elif event.op == Op.REDUCE:
        canvas.rect(x, at[1] + REDUCE_Y, width, BAR / 2, dark)
    elif event.op != Op.COPY:
        canvas.rect(x, at[1] + RECV_Y, width, BAR, pale, full)


def _label(canvas: Canvas, schedule: Schedule, event: Event, at: Point, unit: float) -> None:
    """Write peer and chunk, or as much of it as fits, on a transfer's bar."""
    if event.op in (Op.COPY, Op.REDUCE):
        return
    sends, width = event.op == Op.SEND, (event.end - event.start) * unit
    peer, name = _names(schedule, event)
    text = next((text for text in (name, peer) if text_width(text, LABEL) + 2 < width), None)
    if text:
        middle, y = at[0] + event.start * unit + width / 2, at[1] + (SEND_Y if sends else RECV_Y) + 10
        canvas.text(middle, y, text, size=LABEL, colour="white" if sends else INK, anchor="middle")


def _names(schedule: Schedule, event: Event) -> tuple[str, str]:
    """Return the peer of a transfer, and peer and chunk."""
    peer = f"{'>' if event.op == Op.SEND else '<'}{event.peer}"
    return peer, f"{peer}{'+' if event.op == Op.RECV_REDUCE else ' '}{chunk_name(schedule, event.chunk)}"


def _messages(timeline: Timeline, at: Point, unit: float) -> list[tuple[int, Point, Point]]:
    """Return channel and ends of each message's arrow, from the end of the sender's bar to the end of the receiver's."""
    sent: dict[tuple[int, int, int], deque[float]] = defaultdict(deque)
    for rank, events in enumerate(timeline.events):
        for event in events:
            if event.op == Op.SEND:
                sent[rank, event.peer, event.channel].append(event.end)
    arrows = []
    for rank, events in enumerate(timeline.events):
        for event in events:
            if event.op in (Op.RECV, Op.RECV_REDUCE):
                end = sent[event.peer, rank, event.channel].popleft()
                down = rank > event.peer
                start_y = at[1] + event.peer * ROW + SEND_Y + (BAR if down else 0)
                end_y = at[1] + rank * ROW + RECV_Y + (0 if down else BAR)
                arrows.append(
                    (event.channel, (at[0] + end * unit, start_y), (at[0] + event.end * unit, end_y))
                )
    return arrows


def _unit(drawing: Drawing) -> str:
    return "GPU" if drawing.row.per_gpu else "node"


def _legend(canvas: Canvas, drawing: Drawing, timeline: Timeline, at: Point) -> None:
    """Draw a sample of each bar, and explain the marks that there are."""
    x, y = at
    full, pale, dark = COLOURS[0] if drawing.nchannels == 1 else GREYS
    entries = [("send", full, full, BAR), ("receive", pale, full, BAR)]
    if COLLECTIVES[drawing.row.collective].reduces:
        entries.append(("reduce", dark, "none", BAR / 2))
    if drawing.nchannels > 1:
        entries += [
            (f"channel {channel_name(c)}", _colours(c)[0], "none", BAR) for c in range(drawing.nchannels)
        ]
    for text, fill, stroke, height in entries:
        canvas.rect(x, y + (BAR - height) / 2, 22, height, fill, stroke)
        canvas.text(x + 28, y + 10.5, text, size=10.5)
        x += 28 + text_width(text, 10.5) + 20
    for i, text in enumerate(_marks(drawing, timeline), 2):
        canvas.text(at[0], y + i * LINE, text, size=9.5, colour=FAINT)


def _marks(drawing: Drawing, timeline: Timeline) -> Iterable[str]:
    """Yield what the marks of a drawing mean."""
    transfers = [
        event for events in timeline.events for event in events if event.op not in (Op.COPY, Op.REDUCE)
    ]
    if not transfers:
        return
    names = [
        chunk_name(s, event.chunk)
        for s, events in zip(drawing.schedules, timeline.events)
        for event in events
    ]
    reduces = "; +: what comes is reduced with what is there" * any(
        event.op == Op.RECV_REDUCE for event in transfers
    )
    yield f">1: to rank 1; <1: from rank 1{reduces}"
    runs = "; c2-3: chunks 2 to 3" * any("-" in name for name in names)
    block = example(drawing) if any("." in name for name in names) else f"c0: chunk 0 of the message{runs}"
    yield block + "; s0: memory of the algorithm's own" * any(
        event.chunk.buffer == Buffer.SCRATCH for event in transfers
    )
    yield "an arrow: a message, from the end of its send to the end of its receive"
    if drawing.nodes:
        box = "a box, and " * any(isinstance(shape, Rounds) for _, shape in drawing.shapes)
        yield f"{box}a tint: ranks of a {_unit(drawing)}"
