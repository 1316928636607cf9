"""Skips by name what this machine cannot emulate."""

import pytest
from hosts_run import missing


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> None:
    """A test on emulated hosts."""
    if missing():
        pytest.skip(f"{request.node.name} needs {missing()}")
