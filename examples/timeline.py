"""The timeline of a step: its events on each rank, its comparison with the serial run, and its picture."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import numpy as np

import hpcoll

COLOURS = {
    "forward": "#9cc4e8",
    "backward": "#a5d6b2",
    "compute": "#d5d5d5",
    "collective": "#f0b48f",
    "send": "#0d3557",
    "receive": "#f6e7a8",
}
LEFT, TOP, ROW, WIDTH = 60, 56, 46, 1100  # of the picture, in pixels
AXIS, TICK = 26, 80  # height of the time axis, and pixels from one tick to the next at least


class Event(NamedTuple):
    """An event of a rank: seconds since the start of the step, a kind of `COLOURS`, bytes of its message, the peer of a message."""

    start: float
    end: float
    kind: str
    name: str
    nbytes: int
    peer: int


class Trace:
    """The events of this rank in a step; the zero of its clock is the end of a barrier."""

    def __init__(self, comm: hpcoll.Communicator) -> None:
        self.comm, self.events = comm, list[Event]()
        self.restart()

    def restart(self) -> None:
        """Forget all events, at the start of a step."""
        self.comm.Barrier()
        self.events.clear()
        self.zero = time.perf_counter()

    @contextmanager
    def __call__(self, kind: str, name: str, nbytes: int = 0, peer: int = -1) -> Iterator[None]:
        """Record what is done inside; bytes of a collective's message are those that the ledger gains."""
        before, start = self._ledger(), time.perf_counter()
        yield
        end, gained = time.perf_counter(), self._ledger() - before
        self.events.append(
            Event(
                start - self.zero,
                end - self.zero,
                kind,
                name,
                gained if kind == "collective" else nbytes,
                peer,
            )
        )

    def _ledger(self) -> int:
        return sum(row.nbytes for row in self.comm.ledger.rows())

    def finish(
        self, title: str, pairs: Sequence[tuple[Any, Any]], roundings: int, formula: int, plot: str | None
    ) -> int:
        """Compare results with the serial ones, print, draw, and return the exit status, the same on every rank.

        Args:
            title: Name of the step.
            pairs: Float64 results that this rank holds, each with that of the serial run.
            roundings: Most roundings on the way to an element: each may move it by the float64 epsilon, times the largest element.
            formula: Bytes of the messages of all ranks in one step.
            plot: File for the picture, or None.
        """
        worst, good = 0.0, True
        for mine, serial in pairs:
            scale = np.abs(serial).max(initial=np.finfo(float).tiny)
            worst = max(worst, float(np.abs(mine - serial).max(initial=0.0) / scale))
            good = good and bool((np.abs(mine - serial) <= roundings * np.finfo(float).eps * scale).all())
        counted = sum(event.nbytes for event in self.events if event.kind in ("collective", "send"))
        found = self.comm.gather((self.events, worst, counted, good))
        if found is not None:
            rows, differences, sums, verdicts = zip(*found)
            good = all(verdicts)
            allowed = f"rounding allows {roundings * np.finfo(float).eps:.1e}"
            print(f"{title}, {self.comm.size} rank{'s' * (self.comm.size > 1)}")
            print(f"largest relative difference from the serial result: {max(differences):.1e}; {allowed}")
            print(f"bytes of one step's messages: {sum(sums)} counted, {formula} by the formula")
            print(f"parallel equals serial: {'yes' if good else 'NO'}", flush=True)
            good = good and sum(sums) == formula
            if plot:
                Path(plot).write_text(picture(title, rows))
        return 0 if self.comm.bcast(good) else 1


def picture(title: str, rows: Sequence[Sequence[Event]]) -> str:
    """Return an SVG with a row per rank: a box for each event, an arrow for each message from its send to its receive."""
    total = max(event.end for events in rows for event in events)
    scale, height = WIDTH / total, TOP + ROW * len(rows)
    kinds = {event.kind for events in rows for event in events}
    body = [f'<text x="{LEFT}" y="20" font-size="15">{escape(title)}: {1e3 * total:.2f} ms</text>']
    for i, kind in enumerate(kind for kind in COLOURS if kind in kinds):
        at = LEFT + 110 * i
        body.append(
            f'<rect x="{at}" y="30" width="14" height="12" fill="{COLOURS[kind]}"/><text x="{at + 19}" y="40">{kind}</text>'
        )
    body += axis(total, scale, height)
    sent, received = (
        defaultdict[tuple[int, int], list[Event]](list),
        defaultdict[tuple[int, int], list[Event]](list),
    )
    for rank, events in enumerate(rows):
        middle = TOP + ROW * (rank + 0.5)
        body.append(f'<g class="rank"><text x="6" y="{middle + 4}">rank {rank}</text>')
        for event in events:
            x, width = LEFT + scale * event.start, max(scale * (event.end - event.start), 1.0)
            about = (
                f"{event.name}, {1e3 * event.start:.3f} to {1e3 * event.end:.3f} ms"
                + f", {event.nbytes} bytes" * (event.nbytes > 0)
            )
            place = (
                f'x="{x:.1f}" y="{middle - 14}" width="{width:.1f}" height="28" fill="{COLOURS[event.kind]}"'
            )
            body.append(
                f'<rect {place} stroke="#555" stroke-width="0.4"><title>{escape(about)}</title></rect>'
            )
            if 6.5 * len(event.name) < width:
                body.append(
                    f'<text x="{x + width / 2:.1f}" y="{middle + 4}" text-anchor="middle">{escape(event.name)}</text>'
                )
            if event.kind in ("send", "receive"):
                (sent[rank, event.peer] if event.kind == "send" else received[event.peer, rank]).append(event)
        body.append("</g>")
    for (source, dest), messages in sent.items():
        side = 14 if source < dest else -14
        y = [TOP + ROW * (source + 0.5) + side, TOP + ROW * (dest + 0.5) - side]
        for one, other in zip(messages, received[source, dest]):
            ends = f'x1="{LEFT + scale * one.start:.1f}" y1="{y[0]}" x2="{LEFT + scale * other.end:.1f}" y2="{y[1]}"'
            body.append(f'<line {ends} stroke="#333" stroke-width="0.8" marker-end="url(#head)"/>')
    head = '<marker id="head" markerWidth="6" markerHeight="6" refX="6" refY="3" orient="auto"><path d="M0,0 L6,3 L0,6 z"/></marker>'
    size = f'width="{LEFT + WIDTH + 40}" height="{height + AXIS}" font-family="sans-serif" font-size="11"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size}><defs>{head}</defs><rect width="100%" height="100%" fill="white"/>'
    return "\n".join([start, *body, "</svg>", ""])


def axis(total: float, scale: float, bottom: float) -> list[str]:
    """Return the time axis below the rows, in ms, with lines through them."""
    step = next(
        step for k in range(-9, 9) for step in (10.0**k, 2 * 10.0**k, 5 * 10.0**k) if step * scale >= TICK
    )
    found = []
    for i in range(int(total / step) + 1):
        x = LEFT + scale * step * i
        found.append(
            f'<line class="tick" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom + 4}" stroke="#ddd"/>'
        )
        found.append(
            f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle" fill="#555">{1e3 * step * i:g}{" ms" * (i == 0)}</text>'
        )
    return found
