"""The check that messages carry: calls that differ have different ones, whatever was called before."""

import random

import pytest

from hpcoll.comm.plans.signature import _BITS, Signature
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


@pytest.mark.parametrize("one", range(len(_BITS)))
@pytest.mark.parametrize("other", range(len(_BITS)))
def test_no_two_fields_cancel(one: int, other: int, chance: random.Random) -> None:
    """Calls that differ in two fields of their signatures, as an operator and a root, by any amounts."""
    for _ in range(300):
        word = chance.getrandbits(64) - 2**63  # of calls before, and the count
        fields = [chance.randrange(1 << min(bits, 6)) for bits in _BITS]
        changed = list(fields)
        for i in {one, other}:
            changed[i] = (fields[i] + chance.randrange(1, 1 << min(_BITS[i], 6))) % (1 << min(_BITS[i], 6))
        assert hashed(word ^ Signature(*fields).word) != hashed(word ^ Signature(*changed).word), (fields, changed)
