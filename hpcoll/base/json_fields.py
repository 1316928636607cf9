"""Checked members of JSON objects: what is wrong is named by its path in the file. Imports errors only."""

import json
import sys
from collections.abc import Callable
from typing import Any

from hpcoll.base.errors import ArgumentError

_MAX_INTEGER = 2**63 - 1
_SHOWN = 100  # characters of a value in a text
_NAMES = {int: "an integer", str: "text", list: "a list", dict: "an object", (int, float): "a number"}


def member(content: Any, key: str, wanted: Any, where: str) -> Any:
    """A member of a JSON object, of one type.

    Args:
        content: What should be the object.
        key: The member's name.
        wanted: ``int``, ``str``, ``list``, ``dict``, or ``(int, float)``.
        where: Path of the object, empty for the whole file.
    Raises:
        ArgumentError: not an object, no such member, or of another type.
    """
    if not isinstance(content, dict):
        raise ArgumentError(f"{f'field {where}' if where else 'the whole'}: expected an object, got {_short(content)}")
    if key not in content:
        raise ArgumentError(f"field {_path(where, key)}: expected {_NAMES[wanted]}, got none")
    if not isinstance(content[key], wanted):
        raise ArgumentError(f"field {_path(where, key)}: expected {_NAMES[wanted]}, got {_short(content[key])}")
    return content[key]


def integer(content: Any, key: str, where: str, least: int = 1) -> int:
    """A member that is an integer from ``least`` to 2**63 - 1; raises as `member`."""
    value = member(content, key, int, where)
    if isinstance(value, bool) or not least <= value <= _MAX_INTEGER:
        raise ArgumentError(f"field {_path(where, key)}: expected an integer from {least} to 2**63 - 1, got {value!r}")
    return int(value)


def number(content: Any, key: str, where: str, fits: Callable[[float], bool], expected: str) -> float:
    """A member that is a finite number and fits, which ``expected`` says in words; raises as `member`."""
    value = member(content, key, (int, float), where)
    if isinstance(value, bool) or not abs(value) <= sys.float_info.max or not fits(value):
        raise ArgumentError(f"field {_path(where, key)}: expected {expected}, got {value!r}")
    return float(value)


def checked(check: Callable[..., object], where: str, *arguments: str) -> None:
    """Call a check of something at a path, and say where it is that is refused."""
    try:
        check(*arguments)
    except ArgumentError as error:
        raise ArgumentError(f"field {where}: {error}") from None


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _short(content: Any) -> str:
    text = json.dumps(content)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
