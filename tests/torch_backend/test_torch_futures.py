"""Futures of operations: values, errors, and callbacks that call collectives, in the same order on all ranks."""

import random
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from operations import NRANKS, RANK, Caller

CHAINS = 8


def test_value() -> None:
    by = Caller(False, torch.device("cpu"))
    tensor = by.given(RANK, 5)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    assert future.wait()[0].data_ptr() == tensor.data_ptr()
    assert future.done()
    assert torch.equal(tensor, by.total(5))


def test_blocking_work_is_done() -> None:
    """As torch itself asks of what it waited for."""
    future = dist.group.WORLD.allreduce([torch.ones(1)]).get_future()
    assert future.wait()[0] == NRANKS


def test_callbacks_call_collectives_in_one_order() -> None:
    """Several chains of two callbacks, which ranks reach at different times, beside collectives of the program."""
    random.seed(RANK)
    group, results = dist.new_group(), []

    def summed(future: Any) -> torch.Tensor:
        time.sleep(random.random() * 2e-3)
        return dist.all_reduce(future.value()[0] * 2, group=group, async_op=True).get_future().wait()[0]

    def gathered(future: Any) -> torch.Tensor:
        whole = torch.zeros(NRANKS, 3)
        dist.all_gather_into_tensor(whole, future.value(), group=group)
        return whole

    for chain in range(CHAINS):
        work = dist.all_reduce(torch.full((3,), float(chain)), group=group, async_op=True)
        results.append(work.get_future().then(summed).then(gathered))
        time.sleep(random.random() * 2e-3)
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=group)
        assert (tensor == NRANKS).all()
    for chain, result in enumerate(results):
        assert torch.equal(result.wait(), torch.full((NRANKS, 3), 2.0 * chain * NRANKS**2))
    dist.destroy_process_group(group)


def test_error_of_a_callback_reaches_who_waits() -> None:
    def fails(future: Any) -> None:
        raise ValueError("of the callback")

    future = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(fails)
    with pytest.raises(ValueError, match="of the callback"):
        future.wait()
    with pytest.raises(ValueError, match="of the callback"):
        future.then(lambda one: one.value()).wait()
