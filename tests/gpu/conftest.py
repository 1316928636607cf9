"""Each rank uses its own GPU, or shares one: `hpcoll.local_device`."""

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gpu_arrays import plain
from gpu_cases import Maker
from mpi4py import MPI

import hpcoll
from hpcoll.runtime.gpu.cuda import driver
from hpcoll.runtime.gpu.device import Gpu, gpu_of


@pytest.fixture(scope="session", autouse=True)
def gpu() -> Iterator[Gpu | None]:
    """This rank's GPU; None where there is none and every test here is skipped."""
    if driver() is None:
        yield None
        return
    found = gpu_of(hpcoll.local_device(MPI.COMM_WORLD))
    found.enter()
    yield found


@pytest.fixture(scope="session")
def cupy(gpu: Gpu) -> Any:
    """CuPy on this rank's GPU."""
    module = pytest.importorskip("cupy")
    module.cuda.Device(gpu.ordinal).use()
    return module


@pytest.fixture(scope="session")
def torch(gpu: Gpu) -> Any:
    """PyTorch on this rank's GPU."""
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("this PyTorch sees no GPU")
    module.cuda.set_device(gpu.ordinal)
    return module


@pytest.fixture(scope="session")
def make(gpu: Gpu) -> Maker:
    """CuPy's arrays where CuPy is installed, else plain ones."""
    try:
        cupy: Any = importlib.import_module("cupy")
    except ImportError:
        return lambda count, dtype: plain(gpu, count, np.dtype(dtype))
    cupy.cuda.Device(gpu.ordinal).use()
    return lambda count, dtype: cupy.empty(count, dtype)
