"""Calls: fingerprints of those that differ, methods of messages as in mpi4py, and ``timeout=``, which every collective has."""

import inspect
import math
import random
import re
from collections import namedtuple
from fractions import Fraction
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

import hpcoll
from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments.buffers import Resolved
from hpcoll.comm.arguments.call import limit_of
from hpcoll.comm.arguments.memory import with_buffer
from hpcoll.comm.arguments.methods import METHODS
from hpcoll.comm.communicator import CartCommunicator, Communicator
from hpcoll.comm.gpu.messages import written
from hpcoll.comm.methods.point_to_point import Message
from hpcoll.runtime.engine.compiled.checks import _hash, _spread


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """A test's own, always the same, whatever ran before: of very many cases, 30 bits let some collide."""
    return random.Random(request.node.name)


def as_compiled(word: int) -> int:
    """As compiled code counts, in 64 bits with a sign."""
    return (word + 2**63) % 2**64 - 2**63


def spread(word: int) -> int:
    return as_compiled(_spread.py_func(word))


def hashed(word: int) -> int:
    return int(_hash.py_func(word))


def test_every_bit_shows(chance: random.Random) -> None:
    """In the call itself, always, and in calls after it, for long."""
    for bit in range(64):
        for _ in range(50):
            one = chance.getrandbits(64) - 2**63
            other = as_compiled(one ^ (1 << bit))
            assert hashed(one) != hashed(other), bit
            differing = 0
            for _ in range(20):
                one, other = spread(one), spread(other)
                differing += hashed(one) != hashed(other)
            assert differing >= 18, (bit, differing)


POINT_TO_POINT = (
    "Send",
    "Ssend",
    "Bsend",
    "Rsend",
    "Isend",
    "Issend",
    "Ibsend",
    "Irsend",
    "Recv",
    "Irecv",
    "Sendrecv",
    "Sendrecv_replace",
)


def test_a_message_of_plain_elements_is_one_stretch() -> None:
    memory = np.zeros(10)
    at = memory.ctypes.data
    place = Resolved(at + 16, 5, memory.dtype, 40, False, memory)
    assert written(place, memory, 24) == [(at + 16, at + 40)]
    assert written(place, memory, 0) == []


@pytest.mark.parametrize("name", POINT_TO_POINT)
def test_signatures_are_those_of_mpi4py(name: str) -> None:
    """With ``stream`` behind them, by keyword only."""
    ours, theirs = getattr(Communicator, name), getattr(MPI.Comm, name)
    follow = inspect.signature(ours, follow_wrapped=False).parameters
    expected = inspect.signature(theirs).parameters.values()
    assert [(p.name, p.default) for p in list(follow.values())[:-1]] == [
        (p.name, p.default) for p in expected
    ]
    assert (follow["stream"].kind, follow["stream"].default) == (inspect.Parameter.KEYWORD_ONLY, None)
    assert ours.__name__ == name
    assert ours.__doc__
    assert ours.__doc__ != theirs.__doc__


@pytest.mark.parametrize("name", ["Recv", "Irecv"])
def test_signatures_of_messages(name: str) -> None:
    ours, theirs = (list(inspect.signature(getattr(one, name)).parameters) for one in (Message, MPI.Message))
    assert ours == [*theirs, "stream"]


def test_methods_are_documented_and_where_they_belong() -> None:
    assert Communicator.Send_init.__name__ == "Send_init"
    assert str(Communicator.Send_init.__doc__).startswith("mpi4py's `Send_init`; GPU arrays ")
    assert str(CartCommunicator.Neighbor_alltoallw.__doc__).startswith(
        "Give each neighbour a block of its own, "
    )
    assert not hasattr(Communicator, "Neighbor_alltoallw")


RANK = 3


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("10s", 10),
        ("5m", 300),
        ("500ms", 0.5),
        (" 2 ", 2),
        (1.5, 1.5),
        (7, 7),
        (np.float32(0.5), 0.5),
        (np.int64(4), 4),
    ],
)
def test_taken(given: object, seconds: float) -> None:
    assert limit_of(given, RANK) == seconds


@pytest.mark.parametrize(
    "given",
    [0, -1, 0.0, "0", "-5s", "x", "", "5 parsecs", math.inf, math.nan, True, [], b"5s", 1j, Fraction(1, 2)],
)
def test_refused(given: object) -> None:
    with pytest.raises(ArgumentError) as error:
        limit_of(given, RANK)
    text = f"rank 3: timeout must be a number of seconds above 0, or text such as '500ms', '10s' or '5m', got {given!r}"
    assert str(error.value) == text


@pytest.mark.parametrize("form", ["{}", "I{}", "{}_init"])
def test_every_collective_has_it(form: str) -> None:
    """And its help() has a line for every argument, in their order."""
    for method in METHODS:
        name = form.format(method.lower() if form == "I{}" else method)
        found = getattr(hpcoll.CartCommunicator, name)
        parameters = inspect.signature(found).parameters
        assert (parameters["timeout"].kind, parameters["timeout"].default) == (
            inspect.Parameter.KEYWORD_ONLY,
            None,
        ), name
        arguments = str(inspect.getdoc(found)).partition("Args:\n")[2].partition("\n\n")[0]
        assert re.findall(r"^    (\w+): ", arguments, re.M) == list(parameters)[1:], name


@pytest.mark.parametrize("form", ["{}", "I{}", "{}_init"])
def test_keywords_go_by_name(form: str) -> None:
    """What is given by position too much is refused before anything happens, and so is a keyword that a method has not."""
    context = SimpleNamespace(rank=0, token=None)
    comm = SimpleNamespace(_context=context, _calls=context)
    for method, row in METHODS.items():
        name = form.format(method.lower() if form == "I{}" else method)
        call = partial(getattr(hpcoll.CartCommunicator, name), comm)
        given = (None,) * (len(row.arguments) + (form == "{}_init"))
        for more in ((None,), ("ring",), (None, "ring")):
            with pytest.raises(TypeError):
                call(*given, *more)
        with pytest.raises(TypeError, match="unexpected keyword argument 'unheard'"):
            call(*given, unheard=None)


def test_a_spec_may_be_a_named_tuple() -> None:
    """Such a class takes no sequence; the spec with another buffer is a plain tuple, and that of a list a list."""
    spec = namedtuple("spec", "array count")(np.zeros(2), 2)
    assert with_buffer(spec, "other") == ("other", 2)
    assert with_buffer([*spec], "other") == ["other", 2]
    assert with_buffer(spec.array, "other") == "other"
