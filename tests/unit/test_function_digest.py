"""Operators that a user writes: told apart by what they do, alike in every process of a program."""

import os
import subprocess
import sys

import numpy as np

from hpcoll.base.ops import ReduceOp, reduce_op

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
        reduce_op(lambda a, b: a + b), reduce_op(lambda a, b: a * b), of(2), of(3), reduce_op(lambda a, b, c=1: a + b * c),
        reduce_op(lambda a, b, c=2: a + b * c), reduce_op(lambda a, b: arrays[0][0] * a + b), reduce_op(lambda a, b: first(a) + b),
        reduce_op(lambda a, b: second(a) + b), reduce_op(lambda a, b: a + b, commutative=False), reduce_op(lambda a, b: a + b, identity=0),
        reduce_op(lambda a, b: a + b, name="other"), reduce_op(lambda a, b: FACTOR * a + b),
    ]  # fmt: skip
    assert len({one.digest for one in every}) == len(every)
    assert of(2).digest == of(2).digest


def test_alike_in_every_process() -> None:
    """Whatever the order of sets and the addresses of objects are."""
    seeds = ("1", "2", "3")
    runs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        for seed in seeds
    ]  # fmt: skip
    assert len({run.stdout for run in runs}) == 1
    assert int(runs[0].stdout) > 0
