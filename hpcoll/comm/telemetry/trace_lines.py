"""Lines of a trace: many events of one kind are formatted at once by array operations, so that no Python runs per event.

A form is the text of a line with gaps for numbers. Numbers are written in words of four digits, looked up in tables. What is shorter than
its gap has spaces before it, which JSON allows.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

_WORD, _BASE = 4, 10_000  # digits that are written at once
_PLAIN = [f"{n:4d}" if n else "    " for n in range(_BASE)]  # nothing but zeros before it
_INNER = [f"{n:04d}" for n in range(_BASE)]
_WORDS = np.frombuffer("".join(_PLAIN + _INNER).encode(), np.uint32)
# the last word of a number, which is there for 0, too
_LAST = np.frombuffer("".join(["   0", *_PLAIN[1:], *_INNER]).encode(), np.uint32)
_THOUSANDTHS = np.frombuffer("".join(f".{n:03d}" for n in range(1000)).encode(), np.uint32)

Form: TypeAlias = tuple[bytes, ...]  # the text before, between and behind the gaps
Words: TypeAlias = list[Any]  # of numbers, the first ones first: uint32, for all events alike or for each


def lines(forms: Sequence[Form], which: np.ndarray, *numbers: Words) -> np.ndarray:
    """Return lines of equal length, uint8 ``(events, length)``.

    Args:
        forms: Forms with as many gaps as there are numbers.
        which: The form of each event.
        numbers: For each gap the words of its number, as `whole` or `thousandths` return them.
    """
    lengths = [-(-max(map(len, texts)) // _WORD) * _WORD for texts in zip(*forms, strict=True)]
    gaps = b"".join(b"%b" + bytes(_WORD * len(words)) for words in numbers) + b"%b"
    padded = [gaps % (*map(bytes.ljust, form[:-1], lengths), form[-1].rjust(lengths[-1])) for form in forms]
    made = np.frombuffer(b"".join(padded), np.uint32).reshape(len(forms), -1).take(which, axis=0)
    at = 0
    for length, words in zip(lengths, numbers, strict=False):
        at += length // _WORD
        for word in words:
            made[:, at] = word
            at += 1
    return made.view(np.uint8)


def whole(values: np.ndarray) -> Words:
    """Return words with the digits of int64 values."""
    return _signed(values, str) if values.min() < 0 else _digits(values)


def thousandths(values: np.ndarray) -> Words:
    """Return words with the digits of int64 values in thousandths, such as of nanoseconds in microseconds: three behind the point."""
    if values.min() < 0:
        return _signed(
            values, lambda value: f"{'-' if value < 0 else ''}{abs(value) // 1000}.{abs(value) % 1000:03d}"
        )
    units = values // 1000
    return [*_digits(units), _THOUSANDTHS[values - 1000 * units]]


def _digits(values: np.ndarray) -> Words:
    """Return the words of numbers that are not negative; the first digits of times that are close are alike."""
    least, most = int(values.min()), int(values.max())
    words, last = list[Any](), _LAST
    while least != most:
        above = values // _BASE
        low, least, most = values - _BASE * above, least // _BASE, most // _BASE
        words.append(last[low + _BASE if least else low + _BASE * (above > 0) if most else low])
        values, last = above, _WORDS
    if most or not words:
        text = str(most)
        words += np.frombuffer(text.rjust(-(-len(text) // _WORD) * _WORD).encode(), np.uint32)[::-1].tolist()
    return words[::-1]


def _signed(values: np.ndarray, written: Callable[[int], str]) -> Words:
    """Return the words of numbers some of which are negative, which no time and no count of a sound program is."""
    texts = [written(value) for value in values.tolist()]
    length = -(-max(map(len, texts)) // _WORD) * _WORD
    return list(
        np.frombuffer("".join(text.rjust(length) for text in texts).encode(), np.uint32)
        .reshape(len(texts), -1)
        .T
    )


def line(**event: Any) -> bytes:
    """Return the line of one event; what is None is left out."""
    return form(event) + b",\n"


def form(event: dict[str, Any]) -> bytes:
    """Return an event as text; what is None is left out."""
    return json.dumps(
        {name: value for name, value in event.items() if value is not None}, separators=(",", ":")
    ).encode()
