"""The keywords of collectives: their types for type checkers and editors, and their lines of docstrings and signatures.

A method takes them as ``**keywords``, so that a call without any makes one test. By position they are refused.
"""

import re
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, cleandoc, signature
from typing import Any, TypeAlias, TypedDict

from mpi4py import MPI

from hpcoll.base.ops import ReduceOp
from hpcoll.comm.arguments.call import Time
from hpcoll.schedules.row import Algorithm

Op: TypeAlias = MPI.Op | ReduceOp
Name: TypeAlias = str | Algorithm | None  # of an algorithm, or its row
Nbytes: TypeAlias = int | str | None  # bytes, or text such as "256K"


class BarrierKeywords(TypedDict, total=False):
    """Keywords of collectives, also of those without buffers."""

    algorithm: Name
    segment: Nbytes
    timeout: Time
    tag: str | None


class Keywords(BarrierKeywords, total=False):
    """Keywords of collectives on buffers."""

    stream: Any


class ReductionKeywords(Keywords, total=False):
    """Keywords of reductions."""

    order: str | None


_TEXTS = {
    "algorithm": 'Name from ``hpcoll.algorithms(...)``, or ``"native"``; None: chosen per call.',
    "segment": 'Bytes per segment, or text such as ``"256K"``; None: chosen per call.',
    "timeout": 'Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.',
    "tag": "Name of the call, as of a `region` around it alone; None: none.",
    "stream": "CUDA stream that orders the work on GPU arrays, or its handle; None: each array's own.",
    "order": '``"rank"``: one expression in rank order, see `Allreduce`; None: what ``HPCOLL_ORDER`` says.',
}
_KINDS: dict[str, dict[str, Any]] = {
    f"Unpack[{kind.__name__}]": kind.__annotations__
    for kind in (BarrierKeywords, Keywords, ReductionKeywords)
}


def as_declared(method: Callable[..., Any], declared: Callable[..., Any]) -> Any:
    """Return a method with the name, the docstring and the signature of another one, in which each keyword is written out."""
    named: Any = wraps(declared)(method)
    given = signature(declared)
    *positional, keywords = given.parameters.values()
    kinds = _KINDS[keywords.annotation]
    written_out = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in kinds.items()
    ]
    named.__signature__ = given.replace(parameters=[*positional, *written_out])
    lines = "\n".join(f"    {name}: {_TEXTS[name]}" for name in kinds)
    named.__doc__ = re.sub(r" *\*\*keywords: .*", lines, cleandoc(declared.__doc__ or ""))
    return named
