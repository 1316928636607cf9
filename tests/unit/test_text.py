"""What others have named or written cannot drive a terminal, forge a line of a log, or fill either."""

import logging

import pytest

from hpcoll.base.text import LINE, NAME, VALUE, printable, quoted
from hpcoll.selection.config import log

CONTROLS = [*map(chr, range(32)), *map(chr, range(127, 160)), *"\u200b\u200e\u200f\u2028\u2029\u061c\ufeff\ud800\U000e0041"]
TURNING = [*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))]  # marks that change the direction of what follows
ORDINARY = "Größe 日本語 עברית مرحبا e\u0301 🎉 √2 ½"


@pytest.mark.parametrize("letter", [*CONTROLS, *TURNING], ids=lambda letter: f"{ord(letter):04x}")
def test_no_control_passes(letter: str) -> None:
    assert printable(f"a{letter}b") in ("a?b", "a b")
    assert letter not in quoted(f"a{letter}b")


def test_ordinary_names_pass() -> None:
    assert printable(ORDINARY) == ORDINARY
    assert quoted("Größe") == "'Größe'"


def test_what_is_long_is_cut() -> None:
    assert printable("x" * 10**6) == "x" * (NAME - 1) + "…"
    assert quoted("x" * 10**6) == "'" + "x" * (VALUE - 2) + "…"
    assert len(quoted([1] * 10**6)) == VALUE


def test_what_is_logged_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever logs need not think of it."""
    log.warning("%s waits on %s", "rank 0", "\x1b[2J\nrank 1 is well\u202e")
    log.warning("a file: %s", "x" * 10**5)
    first, second = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert first == "rank 0 waits on ?[2J rank 1 is well?"
    assert len(second) == LINE
