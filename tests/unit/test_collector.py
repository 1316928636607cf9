"""The collector of cycles around functions that run without it."""

import gc

import pytest

from hpcoll.base.collector import uncollected


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_before(enabled: bool) -> None:
    """It stays off for a program that has no use for it, and comes back behind an error."""

    @uncollected
    def fail() -> None:
        raise ZeroDivisionError(gc.isenabled())

    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError, match="False"):
            fail()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
