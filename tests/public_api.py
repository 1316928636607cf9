"""The public face of hpcoll as text: ``public_api.py`` writes it to public_api.txt, which `tests/unit/test_public_api.py` compares.

Names, methods and their arguments, commands and their options, variables. A line that goes or changes breaks programs of users.
"""

import inspect
from argparse import SUPPRESS
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpi4py import MPI

import hpcoll
from hpcoll.cli import COMMANDS, _parser
from hpcoll.selection.config import VARIABLES

FILE = Path(__file__).with_name("public_api.txt")
NAMED = {id(getattr(MPI, name)): f"MPI.{name}" for name in ("SUM", "INFO_NULL", "BYTE")}


def arguments(function: Any) -> str:
    """Return a function's arguments without types; of what C code has none are known."""
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [one.replace(annotation=one.empty) for one in found.parameters.values()]
    for i, one in enumerate(parameters):
        if one.default is not one.empty:
            parameters[i] = one.replace(default=Spelled(one.default))
    return str(found.replace(parameters=parameters, return_annotation=found.empty))


class Spelled:
    """A default as a program writes it, or the type of one whose text has an address."""

    def __init__(self, value: Any) -> None:
        text = NAMED.get(id(value)) or repr(value)
        self._text = f"<{type(value).__name__}>" if " at 0x" in text else text

    def __repr__(self) -> str:
        return self._text


def of_class(name: str, kind: type) -> Iterator[str]:
    """Yield a class and the public methods and attributes that it has of hpcoll's."""
    is_error = issubclass(kind, BaseException)
    yield (
        f"{name}({', '.join(base.__name__ for base in kind.__bases__)})"
        if is_error
        else f"{name}{arguments(kind)}"
    )
    members: dict[str, Any] = {}
    bases = [getattr(hpcoll, base.__name__) for base in kind.__mro__[1:] if base.__name__ in hpcoll.__all__]
    told = {owner for base in bases for owner in base.__mro__}  # with their own names
    for owner in reversed(kind.__mro__):
        if owner.__module__.startswith("hpcoll.") and owner not in told:
            members |= {one: thing for one, thing in vars(owner).items() if not one.startswith("_")}
    for one, thing in sorted(members.items()):
        found = thing.__func__ if isinstance(thing, classmethod | staticmethod) else thing
        yield f"{name}.{one}{arguments(found) if inspect.isroutine(found) else ''}"


def lines() -> Iterator[str]:
    """Yield all lines."""
    for name in sorted(hpcoll.__all__):
        thing, path = getattr(hpcoll, name), f"hpcoll.{name}"
        if isinstance(thing, type):
            yield from of_class(path, thing)
        elif inspect.ismodule(thing):
            for one, member in sorted(vars(thing).items()):
                if getattr(member, "__module__", "") == thing.__name__ and not one.startswith("_"):
                    yield f"{path}.{one}{arguments(member)}"
        else:
            yield f"{path}{arguments(thing) if callable(thing) else ''}"
    for command in COMMANDS:
        parser: Any = _parser([command.name])._subparsers
        actions = [
            one for one in parser._group_actions[0].choices[command.name]._actions if one.help != SUPPRESS
        ]
        yield " ".join(
            [
                "hpcoll",
                command.name,
                *("/".join(one.option_strings) or one.dest.upper() for one in actions[1:]),
            ]
        )
    yield from sorted(one.name for one in VARIABLES)


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines()))
