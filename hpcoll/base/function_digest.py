"""The digest of a Python function: its code and the constants that it uses, equal in all processes of a program.

Addresses and the order of sets differ between processes. So the digest has the values of plain types only, and the types of others.
"""

import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_DEPTH = 8  # of functions that call functions


def parts_of(value: Any, depth: int = _DEPTH) -> Iterator[str]:
    """Yield the parts that a digest is made of: those of a function, or of a value that a function uses.

    >>> def two(a, b, factor=2):
    ...     return a + factor * b
    >>> def three(a, b, factor=3):
    ...     return a + factor * b
    >>> [*parts_of(two)] == [*parts_of(three)], [*parts_of(3.5)]
    (False, ['float 3.5'])
    """
    function = getattr(value, "py_func", value)  # behind Numba's wrapper
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        yield from _of_function(function, code, depth - 1) if depth else ()
    elif type(value) in _PLAIN:
        yield f"{type(value).__name__} {value!r}"
    elif _is_numpy(value):
        yield f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    elif isinstance(value, tuple | list):
        yield f"{type(value).__name__} {len(value)}"
        for one in value:
            yield from parts_of(one, depth)
    elif isinstance(value, frozenset | set):
        yield f"set {sorted(' '.join(parts_of(one, depth)) for one in value)}"
    else:
        named = value if hasattr(value, "__qualname__") else type(value)
        yield f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"


def _is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")  # not imported for this: a third of a second that most commands need not wait
    return numpy is not None and isinstance(value, numpy.ndarray | numpy.generic)


def _of_function(function: Any, code: CodeType, depth: int) -> Iterator[str]:
    yield from _of_code(code, depth)
    names = getattr(function, "__globals__", {})
    used = [cell.cell_contents for cell in function.__closure__ or ()] + [names[name] for name in code.co_names if name in names]
    for value in (function.__defaults__, *(function.__kwdefaults__ or {}).items(), *used):
        yield from parts_of(value, depth)


def _of_code(code: CodeType, depth: int) -> Iterator[str]:
    yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames}"
    for constant in code.co_consts:
        yield from _of_code(constant, depth) if isinstance(constant, CodeType) else parts_of(constant, depth)
