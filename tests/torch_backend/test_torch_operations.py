"""Every collective of a process group gives what torch.distributed says it gives: waited for at once and in flight, on CPUs and GPUs."""

import mmap
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from operations import MOVES, NRANKS, OPERATIONS, RANK, RANKS, Caller, Pairs

from hpcoll.base.errors import ArgumentTypeError

OPS = dist.ReduceOp
IN_FLIGHT = pytest.mark.parametrize("in_flight", [False, True], ids=["blocking", "in flight"])
ELEMENTS = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)


def check(pairs: Pairs) -> None:
    for got, expected in pairs:
        assert torch.equal(got, expected), f"rank {RANK}: {got} and not {expected}"


@IN_FLIGHT
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.__name__)
def test_operation(operation: Callable[[Caller], Pairs], in_flight: bool, device: torch.device) -> None:
    """Tensors stay resizable, as FSDP needs them."""
    pairs = operation(Caller(in_flight, device))
    check(pairs)
    assert all(got.untyped_storage().resizable() for got, _ in pairs)


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
def test_sum_of_every_element_type(dtype: torch.dtype, device: torch.device) -> None:
    by = Caller(False, device, dtype)
    tensor = by.given(RANK, 1000)
    by(dist.all_reduce, tensor)
    check([(tensor, by.total(1000))])


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.complex32, torch.bits8], ids=str
)
def test_what_cannot_be_added_can_be_moved(dtype: torch.dtype, device: torch.device) -> None:
    """As bytes, NumPy having no such types."""
    like = {1: torch.int8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]

    class Viewed(Caller):
        def given(self, rank: int, *shape: int) -> torch.Tensor:
            return super().given(rank, *shape).view(dtype)

        def empty(self, *shape: int) -> torch.Tensor:
            return super().empty(*shape).view(dtype)

    for operation in MOVES:
        check(
            [(got.view(like), expected.view(like)) for got, expected in operation(Viewed(True, device, like))]
        )


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bits8, torch.int4], ids=str)
def test_elements_without_sums_are_refused(dtype: torch.dtype) -> None:
    tensor = torch.zeros(NRANKS, dtype=torch.uint8).view(dtype)
    for call in (
        dist.all_reduce,
        partial(dist.reduce, dst=0),
        partial(dist.reduce_scatter_tensor, tensor[:1]),
    ):
        with pytest.raises(ArgumentTypeError, match=str(dtype)):
            call(tensor)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8], ids=str)
def test_mean_of_integers(dtype: torch.dtype, device: torch.device) -> None:
    """Is rounded towards zero, as with NCCL."""
    every = torch.tensor([[7 * rank + 3, -5 - rank] for rank in RANKS], device=device).to(dtype)
    expected = every.sum(0, dtype=dtype).div(NRANKS, rounding_mode="trunc")
    tensor, rooted, part = (
        every[RANK].clone(),
        every[RANK].clone(),
        torch.zeros(2, dtype=dtype, device=device),
    )
    dist.all_reduce(tensor, OPS.AVG)
    dist.reduce(rooted, 0, OPS.AVG)
    dist.reduce_scatter_tensor(part, every[RANK].repeat(NRANKS), OPS.AVG)
    check([(tensor, expected), (rooted, expected if RANK == 0 else every[RANK]), (part, expected)])


def test_signs_that_torch_changes_when_it_reads(device: torch.device) -> None:
    """Conjugates and their imaginary parts are views."""
    tensor = torch.full((3,), 1 + 2j, device=device)
    output = tensor.clone()
    every = [torch.empty_like(tensor) for _ in RANKS]
    dist.group.WORLD.allgather([every], [tensor.conj()]).wait()
    dist.all_reduce(output.conj().imag)
    check(
        [(one, tensor.conj().resolve_conj()) for one in every]
        + [(output.imag, 2.0 * NRANKS * torch.ones(3, device=device))]
    )


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (OPS.PRODUCT, lambda every: every.prod(0)),
        (OPS.MIN, lambda every: every.amin(0)),
        (OPS.MAX, lambda every: every.amax(0)),
        (OPS.AVG, lambda every: every.mean(0)),
        (dist._make_nccl_premul_sum(0.5), lambda every: every.sum(0) / 2),
    ],
    ids=["product", "min", "max", "avg", "premul_sum"],
)
@IN_FLIGHT
def test_operator(
    op: Any, expected: Callable[[torch.Tensor], torch.Tensor], in_flight: bool, device: torch.device
) -> None:
    by = Caller(in_flight, device, torch.float64)
    tensor, part = by.given(RANK, 6), by.empty(1)
    by(dist.all_reduce, tensor, op=op)
    by(dist.reduce_scatter_tensor, part, by.given(RANK, NRANKS), op=op)
    torch.testing.assert_close(tensor, expected(torch.stack(by.every(6))))
    torch.testing.assert_close(part[0], expected(torch.stack(by.every(NRANKS)))[RANK])


def test_sparse_sum() -> None:
    """Indices of all ranks, some of which several ranks have."""
    indices = torch.tensor([[RANK, NRANKS, NRANKS]])
    tensor = torch.sparse_coo_tensor(indices, torch.ones(3, 2), (NRANKS + 1, 2), check_invariants=True)
    dist.all_reduce(tensor)
    check(
        [
            (tensor.to_dense()[:NRANKS], torch.ones(NRANKS, 2)),
            (tensor.to_dense()[NRANKS], torch.full((2,), 2.0 * NRANKS)),
        ]
    )


def test_many_in_flight(device: torch.device) -> None:
    """They may be waited for in another order than they were begun."""
    by = Caller(False, device)
    tensors = [by.given(RANK, 1 + 257 * i) for i in range(16)]
    works = [dist.all_reduce(one, async_op=True) for one in tensors]
    for work in reversed(works):
        work.wait()
    assert all(work.is_completed() and work.is_success() and work.exception() is None for work in works)
    check([(one, by.total(one.numel())) for one in tensors])


@pytest.mark.parametrize("algorithm", ["direct", "native"])
def test_tensors_far_apart(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the heap and in a map, further apart than MPI 3 can say."""
    monkeypatch.setenv("HPCOLL_ALLGATHER", algorithm)
    monkeypatch.setenv("HPCOLL_ALLTOALL", algorithm)
    group = dist.new_group(backend="hpcoll")
    maps = [mmap.mmap(-1, 4096) for _ in RANKS]
    mapped = [torch.frombuffer(one, dtype=torch.float32)[:16] for one in maps]
    outputs = [torch.zeros(16) if at % 2 else one for at, one in enumerate(mapped)]
    given = [torch.full((16,), float(10 * RANK + to)) for to in RANKS]
    dist.all_gather(outputs, given[0], group=group)
    check([(one, torch.full((16,), 10.0 * rank)) for rank, one in enumerate(outputs)])
    dist.all_to_all(outputs, given, group=group)
    check([(one, torch.full((16,), 10.0 * rank + RANK)) for rank, one in enumerate(outputs)])
