"""The process group of all ranks for the tests here, and the devices they use."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

import hpcoll.torch


@pytest.fixture(scope="session", autouse=True)
def world() -> Iterator[None]:
    """All ranks, as a program would have them."""
    torch.set_num_threads(1)
    dist.init_process_group("hpcoll")
    yield
    dist.destroy_process_group()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU, or this rank's GPU."""
    if request.param == "cuda":
        torch.cuda.set_device(hpcoll.local_device())
    return torch.device(request.param)
