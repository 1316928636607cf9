"""Options of commands, each declared by a line: its names, what it takes, its help, its default."""

import argparse
from pathlib import Path
from typing import Any, NoReturn

from hpcoll.base.errors import HpcollError

_TAKES = {
    "N": int,
    "NRANKS": int,
    "R": int,
    "RANK": int,
    "S": float,
    "TIME": float,
    "FILE": Path,
    "FOLDER": Path,
}


def option(parser: Any, names: str, text: str, default: Any = None, **how: Any) -> Any:
    """Declare an option, and return it.

    Args:
        parser: The parser, or a group of one.
        names: Its names, and the word for its value, which says the value's type: ``-n --iters N``; without such a word it is a switch.
        text: Its help, which ends with the default where there is one.
        default: Its value where it is not given.
        how: As of ``add_argument``.
    """
    *flags, last = names.split()
    if last.startswith("-"):
        flags, how = [*flags, last], how or {"action": "store_true"}
    else:
        how = {"metavar": last, "type": _TAKES.get(last, str)} | how
    if default is not None:
        text, how = f"{text}; default {default}", how | {"default": default}
    return parser.add_argument(*flags, help=text, **how)


def add_ranks_per_node(parser: argparse.ArgumentParser, text: str, default: str | None = None) -> None:
    """Declare ``--ranks-per-node``; its former name, which says something else, is refused with what to write."""
    parser.add_argument("--ranks-per-node", metavar="PLACEMENT", help=text, default=default)
    parser.add_argument("--nodes", type=_ranks_per_node, help=argparse.SUPPRESS)


def _ranks_per_node(value: str) -> NoReturn:
    raise HpcollError(
        f"--nodes took the ranks of each node, and is called what it takes now: write --ranks-per-node {value}"
    )
