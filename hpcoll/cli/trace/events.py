"""Events of trace files in Chrome's JSON: an array with an event on each line, as hpcoll writes it, or a whole document of another tool.

The files come from anywhere. What a run that was killed leaves is fine: no closing bracket, and lines that are cut before an empty one or
the end.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from hpcoll.base.errors import ArgumentError
from hpcoll.base.files import reading
from hpcoll.base.json_fields import read_json
from hpcoll.base.text import LINE, format_nbytes, printable

BLOCK, LONGEST = 1 << 20, 16 << 20  # bytes read at a time, and of the longest line
# A slice of hpcoll's: its text up to the number of the call, which many have in common, that number, two times, and where the call waited
# for its turn when it was issued. Or an arrow, or a counter, which follow from the slices.
_NUMBER = rb" *(\d+\.?\d*)"
_SLICE = re.compile(
    rb'^(?:(\{"ph":"X",[^\n]*)"call": *(\d+)\},"ts":%b,"dur":%b *(?:,"issued":%b *)?\}|\{"ph":"[sftC]"[^\n]*\}),?$'
    % (3 * (_NUMBER,)),
    re.MULTILINE,
)
_BEHIND = b'"call":0},"ts":0,"dur":0}'  # makes an event of the text before
_TAKEN = b"\x01"  # stands for a line that is a slice
_GZIP = b"\x1f\x8b"  # the first bytes of a file that gzip has packed
_CUT = 6  # letters before the end of a line where a number, a word or an escape sequence may be cut

Event: TypeAlias = dict[str, Any]


class Slices(NamedTuple):
    """Slices in columns; each has the text before the number of its call, by position in ``forms``, and an event that begins so."""

    forms: list[bytes]
    numbers: list[int]
    starts: list[float]
    lengths: list[float]

    @staticmethod
    def event(form: bytes) -> Event:
        """Return an event of a form, without its number and times; ValueError: there is none."""
        return json.loads(form + _BEHIND)


def began(turn: float, length: float, issued: float) -> tuple[float, float]:
    """Return when a call that waited for its turn began, and how long it took since then."""
    return issued, length + turn - issued


class EventLines:
    """The lines of one block of a file, from which events are made at once; the number of a line is found where one is bad."""

    def __init__(self, file: str, first: int, block: bytes) -> None:
        self.file, self.first, self._block = file, first, block
        self.whole()

    def slices(self) -> Slices | None:
        """Return those slices whose lines are as hpcoll writes them, which `events` leaves out from now on; None: none are."""
        if _TAKEN in self._block:
            return None
        parts = _SLICE.split(self._block)
        if len(parts) == 1:
            return None
        self.lines = _TAKEN.join(parts[::6]).split(b"\n")
        forms, *numbers = ([part for part in parts[i::6] if part is not None] for i in (1, 2, 3, 4))
        calls, turns, lengths = [*map(int, numbers[0])], [*map(float, numbers[1])], [*map(float, numbers[2])]
        issued = [part for form, part in zip(parts[1::6], parts[5::6]) if form is not None]
        for i in (i for i, part in enumerate(issued) if part is not None):
            turns[i], lengths[i] = began(turns[i], lengths[i], float(issued[i]))
        return Slices(forms, calls, turns, lengths)

    def whole(self) -> None:
        """Let `events` have all events again."""
        self.lines = self._block.split(b"\n")

    def events(self) -> list[Event]:
        """Return the events on the lines, an empty one for a line that is cut, or raise ArgumentError of the first that has none."""
        texts = [text for _, text in self._kept()]
        try:
            events = json.loads(b"[%s]" % b",".join(texts))
            if len(events) == len(texts):
                return events
        except (ValueError, RecursionError):
            pass
        return [self._event(number, text) for number, text in self._kept()]

    def refused(self, index: int, error: Exception) -> ArgumentError:
        """Return the error of the event at an index of `events`."""
        number = next(number for i, (number, _) in enumerate(self._kept()) if i == index)
        return ArgumentError(f"{printable(self.file, LINE)}, line {number}: {error}")

    def _kept(self) -> Iterator[tuple[int, bytes]]:
        for number, line in enumerate(self.lines, self.first):
            text = b"" if line == _TAKEN else _stripped(line)
            if text:
                yield number, text

    def _event(self, number: int, line: bytes) -> Event:
        text = line.decode(errors="replace")
        try:
            found = json.loads(text)
            if isinstance(found, dict):
                return found
            said = "something else"
        except json.JSONDecodeError as error:
            said, after = error.msg, number + 1 - self.first
            at_end = error.pos >= len(text) - _CUT or error.msg.startswith("Unterminated")
            if at_end and text.startswith("{") and not any(map(_stripped, self.lines[after : after + 1])):
                return {}
        except (ValueError, RecursionError) as error:
            said = str(error)
        raise ArgumentError(
            f"{printable(self.file, LINE)}, line {number}: expected an event as a JSON object, got {printable(said)}"
        )


class WholeFile(EventLines):
    """The events of a file that is one JSON document; the number of an event stands for its line."""

    def __init__(self, file: str) -> None:
        content = read_json(file, file)
        events = content.get("traceEvents") if isinstance(content, dict) else content
        if not isinstance(events, list):
            raise ArgumentError(
                f"{printable(file, LINE)}: expected a list of events, or an object with traceEvents, got neither"
            )
        self.file, self._events = file, events

    def slices(self) -> Slices | None:
        """Return None."""
        return None

    def events(self) -> list[Event]:
        """Return the events, or raise ArgumentError where there is something else among them."""
        bad = next((i for i, event in enumerate(self._events) if not isinstance(event, dict)), None)
        if bad is not None:
            raise self.refused(bad, ValueError("expected an object"))
        return self._events

    def refused(self, index: int, error: Exception) -> ArgumentError:
        """Return the error of the event at an index."""
        return ArgumentError(f"{printable(self.file, LINE)}, event {index + 1}: {error}")


def blocks(file: str) -> Iterator[EventLines]:
    """Yield the events of a file in blocks of some thousands; ArgumentError: it cannot be read, or is no trace."""
    try:
        with reading(file) as opened:
            head = opened.read(BLOCK)
            if head.startswith(_GZIP):
                raise ArgumentError(
                    f"{printable(file, LINE)}: expected a trace as text, got what gzip has packed; gunzip it first"
                )
            if _has_lines(head):
                opened.seek(0)
                yield from _lines(file, opened)
                return
    except OSError as error:
        raise ArgumentError(f"cannot read {printable(file, LINE)}: {error.strerror}") from None
    yield WholeFile(file)


def _has_lines(head: bytes) -> bool:
    """Say whether the first event of a file is alone on its line, or there is none."""
    first = next(filter(None, map(_stripped, head.split(b"\n"))), b"")
    try:
        return not first or (isinstance(found := json.loads(first), dict) and "ph" in found)
    except (ValueError, RecursionError):
        return False


def _stripped(line: bytes) -> bytes:
    """Return what a line has beside the brackets and commas of the array."""
    return line.strip().removeprefix(b"[").removesuffix(b"]").strip().rstrip(b",")


def _lines(file: str, opened: BinaryIO) -> Iterator[EventLines]:
    number, rest = 1, b""
    while block := opened.read(BLOCK):
        whole, _, rest = (rest + block).rpartition(b"\n")
        if len(rest) > LONGEST:
            line = number + whole.count(b"\n") + bool(whole)
            raise ArgumentError(
                f"{printable(file, LINE)}, line {line}: expected at most {format_nbytes(LONGEST)}, got more"
            )
        if whole:
            yield EventLines(file, number, whole)
            number += whole.count(b"\n") + 1
    yield EventLines(file, number, rest)
