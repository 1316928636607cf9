"""Lines of a trace: many events of one kind are formatted at once by array operations, so that no Python runs per event.

A form is the text of a line with gaps for numbers. Numbers are written in words of four digits, looked up in tables. What is shorter than
its gap has spaces before it, which JSON allows.
"""

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

_WORD, _BASE = 4, 10_000  # digits that are written at once
_PLAIN = [f"{n:4d}" if n else "    " for n in range(_BASE)]  # nothing but zeros before it
_INNER = [f"{n:04d}" for n in range(_BASE)]
_WORDS = np.frombuffer("".join(_PLAIN + _INNER).encode(), np.uint32)
_LAST = np.frombuffer("".join(["   0", *_PLAIN[1:], *_INNER]).encode(), np.uint32)  # the last word of a number, which is there for 0, too
_THOUSANDTHS = np.frombuffer("".join(f".{n:03d}" for n in range(1000)).encode(), np.uint32)

Form: TypeAlias = tuple[bytes, ...]  # the text before, between and behind the gaps


def lines(forms: Sequence[Form], which: np.ndarray | None, *numbers: np.ndarray) -> np.ndarray:
    """Return lines of equal length, uint8 ``(events, length)``.

    Args:
        forms: Forms with as many gaps as there are numbers.
        which: The form of each event; None: the first.
        numbers: For each gap int64 values as `whole` or `thousandths` have made words of them: uint32 ``(words, events)``.
    """
    lengths = [-(-max(map(len, texts)) // _WORD) * _WORD for texts in zip(*forms, strict=True)]
    gaps = b"".join(b"%b" + bytes(_WORD * len(words)) for words in numbers) + b"%b"
    padded = [gaps % (*map(bytes.ljust, form[:-1], lengths), form[-1].rjust(lengths[-1])) for form in forms]
    table = np.frombuffer(b"".join(padded), np.uint32).reshape(len(forms), -1)
    nevents = numbers[0].shape[1]
    made = table[np.zeros(nevents, np.intp) if which is None else which]
    at = 0
    for length, words in zip(lengths, numbers, strict=False):
        at += length // _WORD
        for word in words:
            made[:, at] = word
            at += 1
    return made.view(np.uint8)


def whole(values: np.ndarray) -> np.ndarray:
    """Return words with the digits of int64 values."""
    return _signed(values, str) if values.min(initial=0) < 0 else np.array(_digits(values))


def thousandths(values: np.ndarray) -> np.ndarray:
    """Return words with the digits of int64 values in thousandths, such as of nanoseconds in microseconds: three behind the point."""
    if values.min(initial=0) < 0:
        return _signed(values, lambda value: f"{'-' if value < 0 else ''}{abs(value) // 1000}.{abs(value) % 1000:03d}")
    units = values // 1000
    return np.array([*_digits(units), _THOUSANDTHS[values - 1000 * units]])


def _digits(values: np.ndarray) -> list[np.ndarray]:
    """Return the words of numbers that are not negative, the first ones first."""
    words, last = list[np.ndarray](), _LAST
    while True:
        above = values // _BASE
        low = values - _BASE * above
        words.append(last[low + _BASE * (above > 0)])
        if not above.any():
            return words[::-1]
        values, last = above, _WORDS


def _signed(values: np.ndarray, written: Any) -> np.ndarray:
    """Return the words of numbers some of which are negative, which no time and no count of a sound program is."""
    texts = [written(value) for value in values.tolist()]
    length = -(-max(map(len, texts)) // _WORD) * _WORD
    return np.frombuffer("".join(text.rjust(length) for text in texts).encode(), np.uint32).reshape(len(texts), -1).T


def line(**event: Any) -> bytes:
    """Return the line of one event; what is None is left out."""
    return form(event) + b",\n"


def form(event: dict[str, Any]) -> bytes:
    """Return an event as text; what is None is left out."""
    return json.dumps({name: value for name, value in event.items() if value is not None}, separators=(",", ":")).encode()
