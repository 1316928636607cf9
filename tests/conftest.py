"""Skips what this machine cannot run, has outcomes written per rank, and puts the double of the CUDA driver in place."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import outcomes
import pytest
from cuda_double import Double, blamed, installed
from gpu_check import gpus
from slowness import IDLE, slowed, slowness

# readline, which pytest loads, tells it to all children; tables of commands are then cut
os.environ.pop("COLUMNS", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if slowness() > 1:
        _allow_more(items)
    if slowness() > IDLE:
        for item in items:
            if item.get_closest_marker("idle"):
                item.add_marker(pytest.mark.skip(reason=f"{item.name} needs an idle machine"))
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and gpus()[0] == 0:
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=f"{item.name} needs a GPU"))


def pytest_collection_finish() -> None:
    """Let the garbage collector, which many tests call, pass over modules and cases: they stay, and to look at them takes longer."""
    gc.collect()
    gc.freeze()


def _allow_more(items: list[pytest.Item]) -> None:
    """Give cases the seconds that they need here."""
    for item in items:
        usual = pytest.mark.timeout(item.config.getoption("timeout") or item.config.getini("timeout"))
        marker = item.get_closest_marker("timeout") or usual
        item.add_marker(pytest.mark.timeout(slowed(float(marker.args[0])), **marker.kwargs), append=False)


def pytest_configure(config: pytest.Config) -> None:
    """Let outcomes be written to the folder ``$TEST_TOKENS``; a pytest-xdist worker reports to its controller."""
    folder = os.environ.get(outcomes.TOKENS)
    if folder and not hasattr(config, "workerinput"):
        config.pluginmanager.register(
            outcomes.Recorder(Path(folder), int(os.environ.get(outcomes.RANK, "0")))
        )


@pytest.fixture(scope="session")
def short(pytestconfig: pytest.Config) -> bool:
    """Say whether this is no long run: loops over many like cases take some of them."""
    return "not full" in pytestconfig.option.markexpr


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return what the marker ``double`` says."""
    marker = request.node.get_closest_marker("double")
    return marker.kwargs if marker else {}


@pytest.fixture
def double(request: pytest.FixtureRequest) -> Iterator[Double]:
    """The double of the CUDA driver, for one test."""
    with installed(**_options(request)) as one:
        yield one


@pytest.fixture(scope="module")
def shared_double(request: pytest.FixtureRequest) -> Iterator[Double]:
    """One for all tests of a file, which use `blame` too."""
    with installed(**_options(request)) as one:
        yield one


@pytest.fixture
def blame(shared_double: Double) -> Iterator[Double]:
    """The file's double; what a test does wrong is its own failure."""
    with blamed(shared_double) as one:
        yield one
