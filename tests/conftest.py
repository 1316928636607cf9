"""Skips what this machine cannot run, and leaves a result file per rank: the exit status of mpiexec proves nothing."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest


def gpu_count() -> int:
    """Number of GPUs that the CUDA driver shows this process."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    ready = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if ready else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and gpu_count() == 0:
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=f"{item.name} needs a GPU"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes ``P passed, F failed, S skipped`` to ``$TEST_TOKENS/rank-R``."""
    folder = os.environ.get("TEST_TOKENS")
    if not folder or hasattr(session.config, "workerinput"):  # a pytest-xdist worker reports to its controller
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None

    def count(*outcomes: str) -> int:
        return sum(len(reporter.stats.get(outcome, ())) for outcome in outcomes)

    mpi = sys.modules.get("mpi4py.MPI")
    rank = mpi.COMM_WORLD.Get_rank() if mpi else 0
    text = f"{count('passed', 'xpassed')} passed, {count('failed', 'error')} failed, {count('skipped', 'xfailed')} skipped\n"
    Path(folder, f"rank-{rank}").write_text(text)
