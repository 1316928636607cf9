"""A canvas for a picture in SVG: text, bars, arrows and the nodes of a graph, whose extent is the picture's."""

import math
from xml.sax.saxutils import escape

INK, FAINT = "#222222", "#777777"
NODE = 12.0  # radius of a rank
MARGIN = 24.0
Point = tuple[float, float]


class Canvas:
    """SVG elements and their extent."""

    def __init__(self) -> None:
        self.elements: list[str] = []
        self.width = self.height = 0.0

    def reach(self, x: float, y: float) -> None:
        """Let the extent hold a point."""
        self.width, self.height = max(self.width, x), max(self.height, y)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 11,
        colour: str = INK,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        """Write a line of text on its base line."""
        weight = ' font-weight="bold"' if bold else ""
        attributes = (
            f'x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{colour}" text-anchor="{anchor}"{weight}'
        )
        self.elements.append(f"<text {attributes}>{escape(text)}</text>")
        self.reach(x + {"start": 1.0, "middle": 0.5, "end": 0.0}[anchor] * text_width(text, size), y + 3)

    def rect(self, x: float, y: float, width: float, height: float, fill: str, stroke: str = "none") -> None:
        """Draw a bar or a box."""
        place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height:.1f}"'
        self.elements.append(f'<rect {place} rx="1.5" fill="{fill}" stroke="{stroke}" stroke-width="0.8"/>')
        self.reach(x + width, y + height)

    def node(self, at: Point, rank: int, colour: str, fill: str) -> None:
        """Draw a rank."""
        self.elements.append(
            f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{NODE:g}" fill="{fill}" stroke="{colour}" stroke-width="1.6"/>'
        )
        self.reach(at[0] + NODE, at[1] + NODE)
        self.text(at[0], at[1] + 4, str(rank), size=11 if rank < 1000 else 8, anchor="middle", bold=True)

    def line(self, a: Point, b: Point, colour: str, width: float = 1.0, opacity: float = 1.0) -> None:
        """Draw a line."""
        place = f'x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}"'
        self.elements.append(
            f'<line {place} stroke="{colour}" stroke-width="{width:g}" opacity="{opacity:g}"/>'
        )

    def arrow(
        self,
        a: Point,
        b: Point,
        colour: str,
        *,
        both: bool = False,
        width: float = 1.4,
        head: float = 6.5,
        opacity: float = 1.0,
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
        """Return the picture."""
        width, height = math.ceil(self.width + MARGIN), math.ceil(self.height + MARGIN)
        start = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        font = 'font-family="DejaVu Sans, Verdana, Arial, sans-serif"'
        return "\n".join(
            [
                f"{start} {font}>",
                '<rect width="100%" height="100%" fill="white"/>',
                *self.elements,
                "</svg>",
                "",
            ]
        )


def text_width(text: str, size: float) -> float:
    """Return about how wide a text is."""
    return 0.62 * size * len(text)
