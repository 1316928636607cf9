"""Skips what this machine cannot run, and leaves a result file per rank: the exit status of mpiexec proves nothing."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import outcomes
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


def pytest_configure(config: pytest.Config) -> None:
    """Let outcomes be written to ``$TEST_TOKENS/rank-R``; a pytest-xdist worker reports to its controller."""
    folder = os.environ.get("TEST_TOKENS")
    if folder and not hasattr(config, "workerinput"):
        config.pluginmanager.register(outcomes.Recorder(Path(folder), int(os.environ.get("TEST_RANK", "0"))))
