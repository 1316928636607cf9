"""Byte counts, times and ranks as people write them. Imports errors only."""

from collections.abc import Iterable

from hpcoll.base.errors import ArgumentError

_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_MOST_RUNS = 8  # of ranks that a text names


def parse_nbytes(text: str | int) -> int:
    """Number of bytes in ``"256K"``, ``"1.5M"``, ``"64MiB"``, ``"8"`` or an int; K, M, G, T are powers of 1024.

    Raises:
        ArgumentError: not a number with one of these suffixes, or negative.

    >>> parse_nbytes("64M") == 64 << 20, parse_nbytes("1.5k"), parse_nbytes(8)
    (True, 1536, 8)
    """
    number = str(text).strip().upper().removesuffix("IB").removesuffix("B")
    suffix = number[-1:] if number[-1:] in _FACTORS else ""
    try:
        nbytes = float(number.removesuffix(suffix)) * _FACTORS[suffix]
        if not 0 <= nbytes < 2**63:
            raise ValueError
        return int(nbytes)
    except ValueError:
        raise ArgumentError(f"size must be a number of bytes such as 8, 64K or 1.5M, got {text!r}") from None


def format_nbytes(nbytes: float) -> str:
    """Shortest of ``512 B``, ``64 KiB``, ``1.5 MiB`` that keeps three digits.

    >>> format_nbytes(65536), format_nbytes(1572864), format_nbytes(8)
    ('64 KiB', '1.5 MiB', '8 B')
    """
    value, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1023.5 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def parse_seconds(text: str | float) -> float:
    """Seconds in ``"60s"``, ``"10m"``, ``"500ms"``, ``"2h"`` or a number.

    Raises:
        ArgumentError: not a number with one of these units, or negative.

    >>> parse_seconds("10m"), parse_seconds("500ms"), parse_seconds(" 1.5 "), parse_seconds(0)
    (600.0, 0.5, 1.5, 0.0)
    """
    number = str(text).strip().lower()
    unit = next((unit for unit in _SECONDS if unit and number.endswith(unit)), "")
    try:
        seconds = float(number.removesuffix(unit)) * _SECONDS[unit]
        if not 0 <= seconds < float("inf"):
            raise ValueError
        return seconds
    except ValueError:
        raise ArgumentError(f"time must be a number of seconds such as 60s, 10m or 500ms, got {text!r}") from None


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Ranks in ascending order, runs of them as ranges, of which the first are named.

    >>> ranks_in_words([5, 0, 1, 2]), ranks_in_words([3])
    ('ranks 0-2, 5', 'rank 3')
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:_MOST_RUNS]]
    beyond, several = sum(map(len, runs[_MOST_RUNS:])), sum(map(len, runs)) != 1
    return f"rank{'s' if several else ''} {', '.join(texts) or 'none'}" + (f" and {beyond} more" if beyond else "")
