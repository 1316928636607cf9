"""A job for each test, which must leave nothing behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starting import Job, watched

pytest.importorskip("torch")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Processes that the test starts."""
    with watched(tmp_path) as one:
        yield one


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300))
