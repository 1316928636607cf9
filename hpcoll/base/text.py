"""Foreign text made fit for a terminal, a log or an error text; byte counts, times and lists of ranks as people write them; limits.

Names of communicators, hosts and files, arguments of programs, values of variables and contents of files may hold anything: sequences
that a terminal obeys, marks that turn the direction of what follows, half characters, megabytes. A program's objects may
fail to tell theirs. All of it goes through `text_of`, which never raises; so do `error_text`, `printable` and `quoted`.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

from hpcoll.base.errors import ROW, ArgumentError

# most characters of a name, of a refused value, of a line that quotes some
NAME, VALUE, LINE = (
    200,
    100,
    4000,
)
MAX_RANKS = 2**31 - 1  # of MPI
# ranks whose schedules one process builds, to draw or prove them; ranks that it simulates
MAX_BUILT, MAX_SIMULATED = (
    1024,
    1 << 18,
)
# chunks of a schedule that is drawn or simulated; segments of a message that a tuning table may ask for
MAX_CHUNKS = 1 << 16

Runs: TypeAlias = Sequence[range]  # consecutive ranks, ascending
K = TypeVar("K", bound=Hashable)

_BLANKS = 16  # times as many characters are read as are kept: runs of blanks become one
_class_name = type.__dict__["__name__"].__get__  # whatever its metaclass says
_FACTORS: dict[str, float] = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_MOST_RUNS = 8  # that a text names
_LIKE = 0.7  # of 1, from which on names are much like each other
_DIGITS = len(str(MAX_RANKS))


def text_of(value: object, most: int = LINE, read: Callable[[Any], Any] = str) -> str:
    """Return the text of anything that comes from outside, cut after ``most`` characters, as UTF-8 can have it. Never raises.

    Args:
        value: Text, bytes, a path, an error, an object of the program's: whatever it holds, and whatever its methods do.
        most: Most characters.
        read: Function that makes its text.

    >>> text_of("caf\\udce9"), text_of(b"Gr\\xc3\\xb6\\xc3"), text_of(10**5000)
    ('caf?', 'Grö\\ufffd', '<int without text>')
    """
    try:
        try:
            text = value if isinstance(value, bytes) and read is str else read(value)
        except UnicodeDecodeError as error:  # the MPI library has cut a name inside a character
            text = error.object
        if isinstance(text, bytes):
            text = bytes.decode(text, errors="replace")
        return str.__getitem__(text, slice(most)).encode(errors="replace").decode()
    except BaseException:  # which an object's own method may raise; no call may end half-way for a text
        return f"<{_class_name(type(value))} without text>"


def error_text(error: BaseException, most: int = LINE) -> str:
    """Return the kind and the text of an error, as of `text_of`.

    >>> error_text(KeyError("a"))
    "KeyError: 'a'"
    """
    return f"{_class_name(type(error))}: {text_of(error)}"[:most]


def printable(value: object, most: int = NAME, read: Callable[[Any], Any] = str) -> str:
    """Return `text_of` as one line of printable characters, others as question marks, cut after ``most``.

    >>> printable("a\\tb\\n c"), printable("Größe \\x1b[31m"), printable("abcdef", 4)
    ('a b c', 'Größe ?[31m', 'abc…')
    """
    return _cut(" ".join(text_of(value, _BLANKS * most, read).split()), most)


def in_a_line(text: str) -> str:
    """Return the text of an error as one line, its table too.

    >>> in_a_line("calls differ:\\n  rank 0: a\\n  rank 1: b")
    'calls differ: rank 0: a; rank 1: b'
    """
    return text.replace(f":{ROW}", ": ").replace(ROW, "; ")


def quoted(value: object) -> str:
    """Return the repr of a refused value, as of `text_of`, without what is not printable, cut after `VALUE` characters.

    >>> quoted("a\\x1b"), len(quoted("9" * 5000))
    ("'a\\\\x1b'", 100)
    """
    return _cut(text_of(value, VALUE + 1, repr), VALUE)


def _cut(text: str, most: int) -> str:
    text = text[: most + 1]
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def one_of(known: Iterable[str], got: object) -> str:
    """Return which names a text may be, and what it is, with the name that was meant where one is much like it.

    >>> one_of(["ring", "tree"], "rign"), one_of(["ring", "tree"], "x")
    ("one of ring, tree, got 'rign': did you mean ring?", "one of ring, tree, got 'x'")
    """
    names = tuple(known)
    return f"one of {', '.join(names)}, got {quoted(got)}{meant(names, got)}"


def meant(known: Iterable[str], got: object, prefix: str = "") -> str:
    """Return the question whether a name was meant that is much like a text, behind a prefix; the empty string where none is."""
    from difflib import get_close_matches  # for refused names only

    names = {name.removeprefix(prefix).lower(): name for name in known}
    similar = get_close_matches(str(got)[:NAME].removeprefix(prefix).lower(), names, 1, _LIKE)
    return f": did you mean {names[similar[0]]}?" if similar else ""


def parse_nbytes(text: str | int) -> int:
    """Return the number of bytes in ``"256K"``, ``"1.5M"``, ``"64MiB"``, ``"8"`` or an int, or raise ArgumentError. K is 1024.

    >>> parse_nbytes("64M") == 64 << 20, parse_nbytes("1.5k"), parse_nbytes(8)
    (True, 1536, 8)
    """
    number = str(text).strip().upper().removesuffix("IB").removesuffix("B")
    return int(
        _parsed(text, number, _FACTORS, 2**63, "size must be a number of bytes such as 8, 64K or 1.5M")
    )


def _parsed(text: object, number: str, units: dict[str, float], limit: float, expected: str) -> float:
    """Return a number from 0 to below a limit, in one of some units or without, the first of which that fits counts."""
    unit = next((unit for unit in units if unit and number.endswith(unit)), "")
    try:
        value = float(number.removesuffix(unit)) * units[unit]
        if not 0 <= value < limit:
            raise ValueError
        return value
    except ValueError:
        raise ArgumentError(f"{expected}, got {quoted(text)}") from None


def format_nbytes(nbytes: float) -> str:
    """Return a byte count as ``512 B``, ``64 KiB`` or ``1.5 MiB``, whichever is shortest with three digits.

    >>> format_nbytes(65536), format_nbytes(1572864), format_nbytes(8)
    ('64 KiB', '1.5 MiB', '8 B')
    """
    value, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1023.5 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def duration(seconds: float) -> str:
    """Return seconds with three digits, in a unit that suits.

    >>> duration(0.0123), duration(2.5), duration(-1e-6)
    ('12.3 ms', '2.5 s', '0 us')
    """
    seconds = max(0.0, seconds)
    for limit, factor, unit in ((0.9995e-3, 1e6, "us"), (0.9995, 1e3, "ms"), (9999.5, 1.0, "s")):
        if seconds < limit:
            return (
                f"{seconds * factor:.0f} {unit}"
                if seconds * factor >= 999.5 or unit == "us"
                else f"{seconds * factor:.3g} {unit}"
            )
    return f"{seconds:.0f} s"


def parse_seconds(text: str | float) -> float:
    """Return the seconds in ``"60s"``, ``"10m"``, ``"500ms"``, ``"2h"`` or a number, or raise ArgumentError.

    >>> parse_seconds("10m"), parse_seconds("500ms"), parse_seconds(" 1.5 "), parse_seconds(0)
    (600.0, 0.5, 1.5, 0.0)
    """
    number = str(text).strip().lower()
    expected = "time must be a number of seconds such as 60s, 10m or 500ms"
    return _parsed(text, number, _SECONDS, float("inf"), expected)


def is_count(text: str) -> bool:
    """Say whether a text is a number of ranks: decimal digits, from 1 to `MAX_RANKS`.

    >>> is_count("12"), is_count("0"), is_count("9" * 5000), is_count("²"), is_count("1e3")
    (True, False, False, False, False)
    """
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS and 1 <= int(text) <= MAX_RANKS


def counted(number: float, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "rank"), counted(2.5, "core")
    ('1 rank', '2.5 cores')
    """
    return f"{number if isinstance(number, int) else format(number, 'g')} {noun}" + (
        "" if number == 1 else "s"
    )


def ranks_by(pairs: Iterable[tuple[K, int]]) -> dict[K, list[int]]:
    """Return the ranks of each key, in the order in which they come.

    >>> ranks_by([("a", 0), ("b", 1), ("a", 2)])
    {'a': [0, 2], 'b': [1]}
    """
    ranks: dict[K, list[int]] = {}
    for key, rank in pairs:
        ranks.setdefault(key, []).append(rank)
    return ranks


def runs_of(ranks: Iterable[int]) -> list[range]:
    """Return ranks as ascending ranges of consecutive ones.

    >>> runs_of([5, 0, 1, 2])
    [range(0, 3), range(5, 6)]
    """
    runs: list[range] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1].stop:
            runs[-1] = range(runs[-1].start, rank + 1)
        else:
            runs.append(range(rank, rank + 1))
    return runs


def gaps(ranks: Sequence[int], nranks: int) -> list[range]:
    """Return the ranges of ranks below ``nranks`` that are missing from ascending ``ranks``.

    >>> gaps([0, 2], 2**31 - 1)
    [range(1, 2), range(3, 2147483647)]
    """
    between = (range(before + 1, rank) for before, rank in zip([-1, *ranks], [*ranks, nranks]))
    return [gap for gap in between if gap]


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Return ranks in words: ascending, consecutive ones as ranges, only the first of which are named.

    >>> ranks_in_words([5, 0, 1, 2]), ranks_in_words([3])
    ('ranks 0-2, 5', 'rank 3')
    """
    return runs_in_words(runs_of(ranks))


def runs_in_words(runs: Runs) -> str:
    """Return `ranks_in_words` of ranges, however long."""
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:_MOST_RUNS]]
    beyond, several = sum(map(len, runs[_MOST_RUNS:])), sum(map(len, runs)) != 1
    return f"rank{'s' if several else ''} {', '.join(texts) or 'none'}" + (
        f" and {beyond} more" if beyond else ""
    )


def as_html(text: object) -> str:
    """Return a text with its columns for a notebook.

    >>> as_html("a < b")
    '<pre>a &lt; b</pre>'
    """
    from html import escape  # for notebooks only

    return f"<pre>{escape(str(text), quote=False)}</pre>"


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, numbers: Sequence[int] = ()
) -> list[str]:
    """Return a header and rows as lines of at most ``width`` columns, cut at their ends; ``numbers``: columns aligned to the right.

    >>> table(["key", "n"], [["ring", "4"], ["tree", "12"]], 40, numbers=[1])
    ['key    n', 'ring   4', 'tree  12']
    """
    everything = [header, *rows]
    widths = [max(len(row[i]) for row in everything) for i in range(len(header))]
    lines = []
    for row in everything:
        cells = [
            f"{text:>{w}}" if i in numbers else f"{text:{w}}" for i, (text, w) in enumerate(zip(row, widths))
        ]
        line = "  ".join(cells).rstrip()
        lines.append(line if len(line) <= width else line[: width - 1] + "…")
    return lines
