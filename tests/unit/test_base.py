"""The base, and the partition of messages: errors' texts, examples of docstrings, printable names, operators told apart."""

import doctest
import importlib
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_architecture import MODULES, imports

import hpcoll
from hpcoll.base import ops
from hpcoll.base.dtypes import check_op, is_bfloat16, is_extended, kind, working_dtype
from hpcoll.base.errors import (
    ArgumentError,
    FileError,
    HpcollError,
    KernelError,
    ScheduleError,
    TransportError,
)
from hpcoll.base.ops import ReduceOp, reduce_op
from hpcoll.base.text import (
    LINE,
    NAME,
    VALUE,
    error_text,
    parse_nbytes,
    printable,
    quoted,
    text_of,
)
from hpcoll.schedules.ir import chunk_bounds, segment_count
from hpcoll.selection.config import log


@given(st.integers(0, 10_000), st.integers(1, 200))
def test_chunks_are_balanced_and_the_longer_ones_come_first(count: int, nchunks: int) -> None:
    bounds = [chunk_bounds(count, nchunks, i) for i in range(nchunks)]
    sizes = [hi - lo for lo, hi in bounds]
    assert [lo for lo, _ in bounds] == [0, *(hi for _, hi in bounds[:-1])]
    assert bounds[-1][1] == count
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@given(st.integers(0, 10_000), st.integers(1, 500))
def test_segments_are_as_few_as_hold_the_message(count: int, segment: int) -> None:
    n = segment_count(count, segment)
    assert n >= 1
    assert n * segment >= count
    assert n == 1 or (n - 1) * segment < count


# --- units


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("8", 8),
        (8, 8),
        ("64k", 65536),
        (" 1.5 MiB ", 3 << 19),
        ("2GB", 2 << 30),
        ("1T", 1 << 40),
        ("1e3", 1000),
        ("7B", 7),
    ],
)
def test_sizes_are_read(text: str | int, nbytes: int) -> None:
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize(
    "text", ["", "K", "B", "-1", "-1K", "nan", "inf", "1e300", "64X", "6 4", "True", "8T8"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(
        ArgumentError, match=f"size must be a number of bytes such as 8, 64K or 1.5M, got {text!r}"
    ):
        parse_nbytes(text)


# --- operators and element types


def test_operators_name_themselves() -> None:
    assert repr(ops.SUM) == "hpcoll.SUM"
    assert repr(ops.AVG) == "hpcoll.AVG"
    assert repr(ops.premul_sum(2.0)) == "<ReduceOp premul_sum>"
    assert repr(ops.reduce_op(lambda a, b: a)) == "<ReduceOp <lambda>>"
    assert repr(ops.reduce_op(max)) == "<ReduceOp max>"


def test_kinds_of_element_types() -> None:
    import ml_dtypes

    half, bfloat16, extended = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.longdouble)
    assert [
        kind(np.dtype(name)) for name in ("bool", "int8", "uint64", "float32", "complex128")
    ] == "b i i f c".split()
    assert [kind(np.dtype(name)) for name in ("datetime64[s]", "S3", "O", "i4,i4")] == [""] * 4
    assert [kind(dtype) for dtype in (half, bfloat16, extended)] == ["f"] * 3
    assert [working_dtype(dtype) for dtype in (half, bfloat16)] == [np.dtype(np.float32)] * 2
    assert working_dtype(np.dtype(np.int8)) == np.int8
    assert [is_bfloat16(dtype) for dtype in (half, bfloat16)] == [False, True]
    eighths = [
        np.dtype(ml_dtypes.float8_e5m2),
        np.dtype(ml_dtypes.float8_e4m3fnuz),
    ]  # with NumPy's letters f and G
    assert [(kind(dtype), is_extended(dtype)) for dtype in eighths] == [("", False)] * 2
    assert [is_extended(dtype) for dtype in (np.dtype(float), extended, np.dtype(np.clongdouble))] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("op", "dtype", "takes"),
    [
        (ops.SUM, "bool", "integer, real floating, complex"),
        (ops.MAX, "complex64", "integer, real floating"),
        (ops.BAND, "float32", "integer"),
        (ops.LAND, "float64", "bool, integer"),
        (ops.AVG, "int32", "real floating, complex"),
        (ops.reduce_op(max), "datetime64[s]", "bool, integer, real floating, complex"),
    ],
)
def test_an_operator_without_meaning_for_a_type_is_refused(op: ops.ReduceOp, dtype: str, takes: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        check_op(op, np.dtype(dtype), 3)
    assert str(caught.value) == f"rank 3: operator {op.name} takes {takes} elements, got {np.dtype(dtype)}"


# --- errors


def test_errors_say_where() -> None:
    found = ScheduleError("reads nothing", rank=3, step=4, op="send")
    assert (str(found), found.rank, found.step, found.op) == (
        "rank 3, step 4 (send): reads nothing",
        3,
        4,
        "send",
    )
    assert str(ScheduleError("reads nothing", rank=3)) == "rank 3: reads nothing"
    assert str(ScheduleError("reads nothing")) == "reads nothing"
    assert (
        str(TransportError("gone", code=5)),
        TransportError("gone", code=5).code,
        TransportError("gone").code,
    ) == ("gone", 5, 0)


@pytest.mark.parametrize(
    "error",
    [
        ArgumentError("a"),
        KernelError("k"),
        FileError(28, "f"),
        TransportError("t", code=5),
        ScheduleError("s"),
        ScheduleError("s", rank=1, step=2, op="x"),
    ],
)
def test_errors_cross_processes(error: HpcollError) -> None:
    """The sweep proves in other processes."""
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


# --- examples in docstrings


@cache
def needs_mpi() -> set[str]:
    """Modules that import mpi4py or PyTorch, themselves or through others."""
    found = {importer for importer, imported in imports() if imported.split(".")[0] in ("mpi4py", "torch")}
    found |= {name for name in MODULES if name.startswith("hpcoll.torch.")}  # with their package
    while more := {importer for importer, imported in imports() if imported in found} - found:
        found |= more
    return found


def test_examples_hold() -> None:
    for name in sorted(set(MODULES) - needs_mpi() - {"hpcoll.__main__"}):
        module = importlib.import_module(name)
        assert Path(hpcoll.__file__).parent.parent in Path(module.__file__ or "").parents, (
            "tests another installation"
        )
        assert doctest.testmod(module, raise_on_error=False).failed == 0, name


def test_most_examples_are_reached() -> None:
    assert len(set(MODULES) - needs_mpi()) > len(MODULES) / 2
    assert needs_mpi() >= {"hpcoll.comm.communicator", "hpcoll.comm.context.context"}


CONTROLS = [
    *map(chr, range(32)),
    *map(chr, range(127, 160)),
    *"\u200b\u200e\u200f\u2028\u2029\u061c\ufeff\ud800\U000e0041",
]
# marks that change the direction of what follows
TURNING = [
    *map(chr, range(0x202A, 0x202F)),
    *map(chr, range(0x2066, 0x206A)),
]
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


class _NamelessKind(type):
    __name__ = property(lambda _: 1 / 0)  # type: ignore[assignment]


class _Mute(Exception, metaclass=_NamelessKind):  # noqa: N818
    """An error whose texts cannot be had."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def __str__(self) -> str:
        return self.act()  # type: ignore[return-value]

    __repr__ = __str__


class _Text(str):
    """A text that is not as it looks."""

    __slots__ = ()

    def __str__(self) -> str:
        return self

    def __getitem__(self, _: object) -> NoReturn:
        raise SystemExit

    split = encode = isprintable = __getitem__  # type: ignore[assignment]


def _raised(error: BaseException) -> Callable[[], object]:
    def act() -> object:
        raise error

    return act


def _endless() -> object:
    return str(_Mute(_endless))


_ACTS = [
    _raised(SystemExit(0)),
    _raised(KeyboardInterrupt()),
    _raised(GeneratorExit()),
    _endless,
    lambda: 5,
    lambda: None,
    lambda: b"x",
]
_ODD = [
    "caf\udce9",
    "\ud800\udc00",
    _Text("a\udce9"),
    b"\xc3",
    b"caf\xe9",
    "a\0b",
    Path("\udcff"),
    [_Mute(_endless)],
    10**5000,
]


@pytest.mark.parametrize("value", [*_ODD, *map(_Mute, _ACTS)], ids=range(len(_ODD) + len(_ACTS)))
def test_a_text_from_outside_never_raises(value: object) -> None:
    for text in (text_of(value), error_text(ValueError(value)), printable(value), quoted(value)):
        assert type(text) is str
        assert 0 < len(text.encode()) <= LINE
    assert printable(value).isprintable()
    assert quoted(value).isprintable()


def test_an_error_without_text_is_named() -> None:
    assert error_text(_Mute(_endless)) == "_Mute: <_Mute without text>"
    assert error_text(FileNotFoundError("caf\udce9.h5")) == "FileNotFoundError: caf?.h5"
    assert text_of(b"caf\xc3", read=bytes.decode) == text_of(b"caf\xc3") == "caf\ufffd"


def test_what_is_logged_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever logs need not think of it."""
    log.warning("%s waits on %s", "rank 0", "\x1b[2J\nrank 1 is well\u202e")
    log.warning("a file: %s", "x" * 10**5)
    first, second = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert first == "rank 0 waits on ?[2J rank 1 is well?"
    assert len(second) == LINE


FACTOR = 2
SCRIPT = """
import numpy as np
from hpcoll.base.ops import reduce_op
def helper(a): return a if a in {"x", "y", "z", 3} else 2 * a
table = np.arange(4.0)
print(reduce_op(lambda a, b: helper(a) + b * table[1], identity=0.5).digest)
"""


def of(factor: float) -> ReduceOp:
    return reduce_op(lambda a, b: a + factor * b)


def test_what_differs_is_told_apart() -> None:
    """Code, what is closed over, defaults, arrays, functions that are called, the promise to commute."""

    def first(a: float) -> float:
        return a + 1

    def second(a: float) -> float:
        return a + 2

    arrays = np.ones(3), np.zeros(3)
    every = [
        reduce_op(lambda a, b: a + b),
        reduce_op(lambda a, b: a * b),
        of(2),
        of(3),
        reduce_op(lambda a, b, c=1: a + b * c),
        reduce_op(lambda a, b, c=2: a + b * c),
        reduce_op(lambda a, b: arrays[0][0] * a + b),
        reduce_op(lambda a, b: first(a) + b),
        reduce_op(lambda a, b: second(a) + b),
        reduce_op(lambda a, b: a + b, commutative=False),
        reduce_op(lambda a, b: a + b, identity=0),
        reduce_op(lambda a, b: a + b, name="other"),
        reduce_op(lambda a, b: FACTOR * a + b),
    ]
    assert len({one.digest for one in every}) == len(every)
    assert of(2).digest == of(2).digest


def test_alike_in_every_process() -> None:
    """Whatever the order of sets and the addresses of objects are."""
    seeds = ("1", "2", "3")
    runs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        for seed in seeds
    ]
    assert len({run.stdout for run in runs}) == 1
    assert int(runs[0].stdout) > 0
