"""A call's signature as flight records and texts have it: spelled as a program writes the method."""

import pytest

from hpcoll.cli.inspect.flight_records import Call
from hpcoll.cli.inspect.wording import spelled
from hpcoll.comm.signature import _COLLECTIVES, _OPS, Signature
from hpcoll.schedules.collectives import COLLECTIVES

SUM = 1 + _OPS.index("sum")


@pytest.mark.parametrize("varies", [0, 1])
@pytest.mark.parametrize("collective", _COLLECTIVES)
def test_inspect_spells_calls_as_errors_do(collective: str, varies: int) -> None:
    reduces = COLLECTIVES[collective].reduces
    one = Signature(_COLLECTIVES.index(collective), varies, 4, SUM if reduces else 0, 0, 0, 0)
    found = one.record(24)
    call = Call(1, "blocking", begun=0.0, ended=None, state="waiting", step="", awaits=(), caller="", **found)
    assert spelled(call) == one.text(24).replace("[...]", "")


def test_the_method_of_blocks() -> None:
    """Blocks of one size and of several have methods of their own names."""
    at = _COLLECTIVES.index("reduce_scatter")
    found = [Signature(at, varies, 4, SUM, 0, 0, 0).record(3)["collective"] for varies in (0, 1)]
    assert found == ["reduce_scatter_block", "reduce_scatter"]
