"""Lines of a trace are valid JSON with the numbers that they were made of."""

import json
from typing import Any

import numpy as np
import pytest

from hpcoll.comm.telemetry.trace_lines import form, line, lines, thousandths, whole


def read(text: bytes) -> list[Any]:
    """Return the events of some lines, each of which is whole."""
    assert text.endswith(b",\n")
    return [json.loads(one.removesuffix(b",")) for one in text.splitlines()]


@pytest.mark.parametrize(
    "numbers",
    [
        [0],
        [0, 1],
        [9999, 10_000],
        [99_999_999, 100_000_000],
        [10**15],
        [10**15 + 1, 10**15 + 12_345_678],
        [7, 10**15 + 7],
        [2**62, 0, 10**4],
        [-1, 0],
        [-(10**15), 5],
        [20_000, 30_000],
    ],
)
def test_numbers(numbers: list[int]) -> None:
    """All digits are there, whatever the numbers beside a number are: words of digits may be alike, or missing in some."""
    values = np.array(numbers, np.int64)
    shape = (b'{"n":', b',"t":', b"},\n")
    made = lines([shape], np.zeros(len(numbers), np.intp), whole(values), thousandths(values))
    assert len(made) == len(numbers)
    text = made.tobytes()
    assert [one["n"] for one in read(text)] == numbers
    digits = [one.split(b'"t":')[1].split(b"}")[0].strip().decode() for one in text.splitlines()]
    assert [int(one.replace(".", "")) for one in digits] == numbers
    assert all(one[-4] == "." for one in digits)


def test_forms_of_different_lengths() -> None:
    """Each event has its own form; names with quotes, line ends and letters of any script stay what they are."""
    names = ["a", 'two "words"\n', "\u00fcber \u4e16\u754c \\ \x07", "x" * 300]
    forms = [(form({"name": name})[:-1] + b',"n":', b"},\n") for name in names]
    which = np.array([3, 0, 2, 1, 1, 0])
    found = read(lines(forms, which, whole(np.arange(6))).tobytes())
    assert found == [{"name": names[kind], "n": n} for n, kind in enumerate(which.tolist())]


def test_line() -> None:
    """A line of its own has no field that is None."""
    assert read(line(ph="M", cat=None, args={"a": [1, None]})) == [{"ph": "M", "args": {"a": [1, None]}}]
