"""JSON files from untrusted writers, and their members, checked; errors name the path in the file."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcoll.base.errors import ArgumentError
from hpcoll.base.files import reading
from hpcoll.base.text import LINE, VALUE, format_nbytes, printable

# of a file, and commas, colons and brackets in it: Python makes less than 1 GB of these
MAX_NBYTES, MAX_MARKS = (
    64 << 20,
    8_000_000,
)
_MARKS = (b",", b":", b"[", b"{")
MAX_INTEGER = 2**63 - 1
_NAMES = {int: "an integer", str: "text", list: "a list", dict: "an object", (int, float): "a number"}


def read_json(file: str | Path, subject: str) -> Any:
    """Return the content of a JSON file; ArgumentError calls it ``subject`` where it cannot be read, is too large, or is no JSON."""
    subject = printable(subject, LINE)
    try:
        with reading(file) as opened:
            content = opened.read(MAX_NBYTES + 1)
    except OSError as error:
        raise ArgumentError(f"cannot read {subject}: {error.strerror}") from None
    if len(content) > MAX_NBYTES:
        raise ArgumentError(f"{subject}: expected at most {format_nbytes(MAX_NBYTES)}, got more")
    if sum(map(content.count, _MARKS)) > MAX_MARKS:
        raise ArgumentError(
            f"{subject}: expected at most {MAX_MARKS:,} commas, colons and brackets, got more"
        )
    try:
        return json.loads(content.decode())
    except json.JSONDecodeError as error:
        raise ArgumentError(f"{subject}, line {error.lineno}: expected JSON, got {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{subject}: expected JSON, got {error}") from None


def member(content: Any, key: str, wanted: Any, where: str) -> Any:
    """Return a member of a JSON object, of one type; ``true`` and ``false`` are no numbers.

    ``where`` is the path of the object in the file, empty for the whole file. ArgumentError: no object, no such member, or one of another
    type.
    """
    if not isinstance(content, dict):
        raise refused(where, "an object", content)
    if key not in content:
        raise ArgumentError(f"field {printable(_path(where, key))}: expected {_NAMES[wanted]}, got none")
    if not isinstance(content[key], wanted) or isinstance(content[key], bool):
        raise refused(_path(where, key), _NAMES[wanted], content[key])
    return content[key]


def integer(content: Any, key: str, where: str, least: int = 1, most: int = MAX_INTEGER) -> int:
    """Return a member that is an integer from ``least`` to ``most``; raises as `member`."""
    value = member(content, key, int, where)
    if not least <= value <= most:
        raise refused(_path(where, key), f"an integer from {least} to {most}", value)
    return int(value)


def number(content: Any, key: str, where: str, fits: Callable[[float], bool], expected: str) -> float:
    """Return a member that is a finite number for which ``fits`` holds; ``expected`` says that in words. Raises as `member`."""
    value = member(content, key, (int, float), where)
    if not abs(value) <= sys.float_info.max or not fits(value):
        raise refused(_path(where, key), expected, value)
    return float(value)


def checked(check: Callable[..., object], where: str, *arguments: str) -> None:
    """Call a check, and prefix the path of the field to the `ArgumentError` that it raises."""
    try:
        check(*arguments)
    except ArgumentError as error:
        raise ArgumentError(f"field {printable(where)}: {error}") from None


def _path(where: str, key: str) -> str:
    """Return the path of a member of the object at path ``where``."""
    return f"{where}.{key}" if where else key


def refused(where: str, expected: str, content: Any) -> ArgumentError:
    """Return the error for a field's content; the text quotes only the beginning of the content, without visiting deep levels."""
    got = ""
    for piece in json.JSONEncoder().iterencode(content):
        got += piece
        if len(got) > VALUE:
            got = f"{got[: VALUE - 1]}…"
            break
    return ArgumentError(
        f"{f'field {printable(where)}' if where else 'the whole'}: expected {expected}, got {got}"
    )
