"""``timeout=``: what it takes, what it refuses, and that every collective has it."""

import inspect
import math
import re
from fractions import Fraction

import numpy as np
import pytest

import hpcoll
from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments.call import limit_of
from hpcoll.comm.arguments.methods import METHODS

RANK = 3


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("10s", 10), ("5m", 300), ("500ms", 0.5), (" 2 ", 2), (1.5, 1.5), (7, 7), (np.float32(0.5), 0.5), (np.int64(4), 4)],
)
def test_taken(given: object, seconds: float) -> None:
    assert limit_of(given, RANK) == seconds


@pytest.mark.parametrize("given", [0, -1, 0.0, "0", "-5s", "x", "", "5 parsecs", math.inf, math.nan, True, [], b"5s", 1j, Fraction(1, 2)])
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
        found = getattr(hpcoll.Communicator, name)
        parameters = inspect.signature(found).parameters
        assert (parameters["timeout"].kind, parameters["timeout"].default) == (inspect.Parameter.KEYWORD_ONLY, None), name
        arguments = str(inspect.getdoc(found)).partition("Args:\n")[2].partition("\n\n")[0]
        assert re.findall(r"^    (\w+): ", arguments, re.M) == list(parameters)[1:], name


def test_the_class_can_be_looked_at() -> None:
    """As documentation tools do; the context that an object makes when it is asked for is none of the class."""
    assert "Allreduce" in dict(inspect.getmembers(hpcoll.Communicator))
