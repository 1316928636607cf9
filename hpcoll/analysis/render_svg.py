"""A schedule as a picture: its structure on the left, each rank's work over time on the right. Returns SVG text.

Colours are channels; a filled bar sends, a pale one receives, a dark one reduces. Times are simulated on a network where a chunk takes one
unit, and its latency and reduction fractions of one.
"""

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from xml.sax.saxutils import escape

from hpcoll.analysis.render import Drawing, Edge, Ring, Rounds, Shape, Tree, channel_name, chunk_name
from hpcoll.analysis.timeline import Event, Network, Timeline, simulate
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Op, Schedule

PICTURE = Network(alpha=0.35, overhead=0.1, beta=1.0, gamma=0.3)  # in units of one chunk's transfer
COLOURS = (("#1f6fb2", "#cfe3f4", "#0d3557"), ("#c8551b", "#f8dcca", "#66290a"), ("#2f8a4c", "#d2ecd9", "#123f21"))
GREYS = ("#777777", "#e2e2e2", "#333333")
INK, FAINT, GRID = "#222222", "#777777", "#e4e4e4"
NODE = 12.0  # radius of a rank
SPREAD, LAYER = 38.0, 52.0  # between leaves, between layers of a tree
ROW, SEND_Y, RECV_Y, REDUCE_Y = 46.0, 4.0, 19.0, 34.0  # a rank's row and the tops of its bars
BAR = 13.0
MARGIN = 24.0
Point = tuple[float, float]


class _Canvas:
    """SVG elements and their extent."""

    def __init__(self) -> None:
        self.elements: list[str] = []
        self.width = self.height = 0.0

    def reach(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def text(
        self, x: float, y: float, text: str, *, size: float = 11, colour: str = INK, anchor: str = "start", bold: bool = False
    ) -> None:
        weight = ' font-weight="bold"' if bold else ""
        attributes = f'x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{colour}" text-anchor="{anchor}"{weight}'
        self.elements.append(f"<text {attributes}>{escape(text)}</text>")
        self.reach(x + {"start": 1.0, "middle": 0.5, "end": 0.0}[anchor] * _text_width(text, size), y + 3)

    def rect(self, x: float, y: float, width: float, height: float, fill: str, stroke: str = "none") -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height:.1f}"'
        self.elements.append(f'<rect {place} rx="1.5" fill="{fill}" stroke="{stroke}" stroke-width="0.8"/>')
        self.reach(x + width, y + height)

    def node(self, at: Point, rank: int, colour: str) -> None:
        self.elements.append(f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{NODE:g}" fill="white" stroke="{colour}" stroke-width="1.6"/>')
        self.reach(at[0] + NODE, at[1] + NODE)
        self.text(at[0], at[1] + 4, str(rank), size=11 if rank < 1000 else 8, anchor="middle", bold=True)

    def line(self, a: Point, b: Point, colour: str, width: float = 1.0, opacity: float = 1.0) -> None:
        place = f'x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}"'
        self.elements.append(f'<line {place} stroke="{colour}" stroke-width="{width:g}" opacity="{opacity:g}"/>')

    def arrow(
        self, a: Point, b: Point, colour: str, *, both: bool = False, width: float = 1.4, head: float = 6.5, opacity: float = 1.0
    ) -> None:
        """Draw a line from ``a`` to ``b``, with a head at ``b``, or at both ends."""
        length = math.dist(a, b)
        if length == 0:
            return
        dx, dy = (b[0] - a[0]) / length, (b[1] - a[1]) / length
        back = 0.8 * head
        start = (a[0] + back * dx, a[1] + back * dy) if both else a
        self.line(start, (b[0] - back * dx, b[1] - back * dy), colour, width, opacity)
        for tip, sign in ((b, 1), (a, -1)) if both else ((b, 1),):
            x, y = tip[0] - sign * head * dx, tip[1] - sign * head * dy
            side = 0.38 * head
            corners = [tip, (x - side * dy, y + side * dx), (x + side * dy, y - side * dx)]
            points = " ".join(f"{px:.1f},{py:.1f}" for px, py in corners)
            self.elements.append(f'<polygon points="{points}" fill="{colour}" opacity="{opacity:g}"/>')

    def edge(self, a: Point, b: Point, colour: str, *, both: bool = False) -> None:
        """Draw an arrow between two nodes, from rim to rim."""
        length = math.dist(a, b)
        dx, dy = (NODE + 2) * (b[0] - a[0]) / length, (NODE + 2) * (b[1] - a[1]) / length
        self.arrow((a[0] + dx, a[1] + dy), (b[0] - dx, b[1] - dy), colour, both=both)

    def svg(self) -> str:
        width, height = math.ceil(self.width + MARGIN), math.ceil(self.height + MARGIN)
        start = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        font = 'font-family="DejaVu Sans, Verdana, Arial, sans-serif"'
        return "\n".join([f"{start} {font}>", '<rect width="100%" height="100%" fill="white"/>', *self.elements, "</svg>", ""])


def _text_width(text: str, size: float) -> float:
    return 0.62 * size * len(text)


def _colours(channel: int) -> tuple[str, str, str]:
    return COLOURS[channel % len(COLOURS)]


def render_svg(drawing: Drawing) -> str:
    """Return the drawing as the text of an SVG file."""
    canvas, s = _Canvas(), drawing.schedules[0]
    root = f", root {s.root}" if COLLECTIVES[s.collective].rooted else ""
    canvas.text(MARGIN, MARGIN + 8, f"{drawing.row.key} on {s.nranks} rank{'s' * (s.nranks > 1)}{root}", size=17, bold=True)
    canvas.text(MARGIN, MARGIN + 28, drawing.row.summary, size=11.5, colour=FAINT)
    top, right, y = MARGIN + 50, MARGIN, MARGIN + 50
    for channel, shape in drawing.shapes:
        part = _Canvas()
        name = f"channel {channel_name(channel)}: " if drawing.nchannels > 1 else ""
        kind, _, detail = shape.caption.partition(", ")
        part.text(MARGIN, y + 10, name + kind, size=11.5, colour=_colours(channel)[0], bold=True)
        part.text(MARGIN, y + 25, detail, size=9.5, colour=FAINT)
        _shape(part, shape, (MARGIN, y + (38 if detail else 24)), s.nranks, _colours(channel)[0])
        canvas.elements += part.elements
        y, right = part.height + 26, max(right, part.width)
        canvas.reach(0, part.height)
    _gantt(canvas, drawing, (right + 40 if drawing.shapes else MARGIN, top))
    return canvas.svg()


def _shape(canvas: _Canvas, shape: Shape, at: Point, nranks: int, colour: str) -> None:
    if isinstance(shape, Tree):
        _tree(canvas, shape, at, colour)
    elif isinstance(shape, Ring):
        edges = list(zip(shape.order, (*shape.order[1:], shape.order[0])))
        _circle(canvas, shape.order, edges, at, _radius(nranks, 60), colour)
    else:
        _rounds(canvas, shape, at, nranks, colour)


def _radius(nranks: int, least: float) -> float:
    return max(least, nranks * 2.7 * NODE / (2 * math.pi))


def _tree(canvas: _Canvas, tree: Tree, at: Point, colour: str) -> None:
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
        canvas.node(place, rank, colour)


def _circle(canvas: _Canvas, ranks: Sequence[int], edges: Sequence[Edge], at: Point, radius: float, colour: str) -> None:
    """Draw ranks on a circle, clockwise from the top; ``at`` is the upper left corner."""
    turn = 2 * math.pi / len(ranks)
    centre = (at[0] + NODE + radius, at[1] + NODE + radius)
    places = {rank: (centre[0] + radius * math.sin(i * turn), centre[1] - radius * math.cos(i * turn)) for i, rank in enumerate(ranks)}
    known = set(edges)
    for a, b in edges:
        if (b, a) not in known or a < b:
            canvas.edge(places[a], places[b], colour, both=(b, a) in known)
    for rank, place in places.items():
        canvas.node(place, rank, colour)


def _rounds(canvas: _Canvas, shape: Rounds, at: Point, nranks: int, colour: str) -> None:
    """Draw a circle per round, or all rounds in one where there are many."""
    rounds = list(shape.rounds)
    if len(rounds) > 9 or nranks > 16:
        rounds = [(rounds[0][0], rounds[-1][1], tuple(sorted({edge for _, _, edges in rounds for edge in edges})))]
    radius = _radius(nranks, 46)
    across = 2 if len(rounds) <= 4 else 3
    step = (2 * (radius + NODE) + 26, 2 * (radius + NODE) + 40)
    for i, (first, last, edges) in enumerate(rounds):
        x, y = at[0] + i % across * step[0], at[1] + i // across * step[1]
        canvas.text(x, y + 8, f"round {first}" if first == last else f"rounds {first} to {last}", size=10.5, colour=FAINT)
        _circle(canvas, range(nranks), edges, (x, y + 18), radius, colour)


def _gantt(canvas: _Canvas, drawing: Drawing, at: Point) -> None:
    nranks = len(drawing.schedules)
    timeline = simulate(drawing.schedules, drawing.schedules[0].nchunks, PICTURE)
    unit = min(64.0, max(6.0, 900.0 / max(timeline.total, 1.0)))
    x, y = at[0] + 18 + _text_width(f"rank {nranks - 1}", 11), at[1] + 24
    canvas.text(x, at[1] + 10, "time, in units of one chunk's transfer", size=11.5, bold=True)
    canvas.text(x, y + nranks * ROW + 32, f"latency {PICTURE.alpha:g}, reducing a chunk {PICTURE.gamma:g}", size=9.5, colour=FAINT)
    _grid(canvas, (x, y), timeline.total, unit, nranks)
    for rank, events in enumerate(timeline.events):
        for event in events:
            _bar(canvas, event, (x, y + rank * ROW), unit)
    for channel, a, b in _messages(timeline, (x, y), unit):
        canvas.arrow(a, b, _colours(channel)[2], width=0.9, head=5, opacity=0.6)
    for schedule, events in zip(drawing.schedules, timeline.events):
        for event in events:
            _label(canvas, schedule, event, (x, y + schedule.rank * ROW), unit)
    _legend(canvas, drawing, (x, y + nranks * ROW + 48))


def _grid(canvas: _Canvas, at: Point, total: float, unit: float, nranks: int) -> None:
    x, y = at
    bottom, right = y + nranks * ROW, x + unit * max(total, 1.0)
    for rank in range(nranks):
        canvas.rect(x, y + rank * ROW, right - x, ROW - 1, "#f7f7f5")
        canvas.text(x - 10, y + rank * ROW + ROW / 2 + 4, f"rank {rank}", anchor="end")
    step = next(step for k in range(9) for step in (10**k, 2 * 10**k, 5 * 10**k) if step * unit >= 40)
    for tick in range(0, math.floor(max(total, 1.0)) + 1, step):
        canvas.line((x + tick * unit, y), (x + tick * unit, bottom + 4), GRID)
        canvas.text(x + tick * unit, bottom + 15, str(tick), size=9.5, colour=FAINT, anchor="middle")


def _bar(canvas: _Canvas, event: Event, at: Point, unit: float) -> None:
    full, pale, dark = _colours(event.channel)
    x, width = at[0] + event.start * unit, (event.end - event.start) * unit
    if event.op == Op.SEND:
        canvas.rect(x, at[1] + SEND_Y, width, BAR, full, dark)
    elif event.op == Op.REDUCE:
        canvas.rect(x, at[1] + REDUCE_Y, width, BAR / 2, dark)
    elif event.op != Op.COPY:
        canvas.rect(x, at[1] + RECV_Y, width, BAR, pale, full)


def _label(canvas: _Canvas, schedule: Schedule, event: Event, at: Point, unit: float) -> None:
    """Write peer and chunk, or as much of it as fits, on a transfer's bar."""
    if event.op in (Op.COPY, Op.REDUCE):
        return
    sends, width = event.op == Op.SEND, (event.end - event.start) * unit
    peer = f"{'>' if sends else '<'}{event.peer}"
    name = f"{peer}{'+' if event.op == Op.RECV_REDUCE else ' '}{chunk_name(schedule, event.chunk)}"
    text = next((text for text in (name, peer) if _text_width(text, 9) + 2 < width), None)
    if text:
        middle, y = at[0] + event.start * unit + width / 2, at[1] + (SEND_Y if sends else RECV_Y) + 10
        canvas.text(middle, y, text, size=9, colour="white" if sends else INK, anchor="middle")


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
                arrows.append((event.channel, (at[0] + end * unit, start_y), (at[0] + event.end * unit, end_y)))
    return arrows


def _legend(canvas: _Canvas, drawing: Drawing, at: Point) -> None:
    x, y = at
    full, pale, dark = COLOURS[0] if drawing.nchannels == 1 else GREYS
    entries = [("send", full, full, BAR), ("receive", pale, full, BAR)]
    if COLLECTIVES[drawing.row.collective].reduces:
        entries.append(("reduce", dark, "none", BAR / 2))
    if drawing.nchannels > 1:
        entries += [(f"channel {channel_name(c)}", _colours(c)[0], "none", BAR) for c in range(drawing.nchannels)]
    for text, fill, stroke, height in entries:
        canvas.rect(x, y + (BAR - height) / 2, 22, height, fill, stroke)
        canvas.text(x + 28, y + 10.5, text, size=10.5)
        x += 28 + _text_width(text, 10.5) + 20
