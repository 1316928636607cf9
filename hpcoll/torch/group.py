"""The process group of torch.distributed that runs on a `Communicator`."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch._C._distributed_c10d import Backend

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.communicator import Communicator
from hpcoll.torch import operations
from hpcoll.torch.futures import Depths
from hpcoll.torch.messages import MonitoredBarrier, begin_message
from hpcoll.torch.operations import Me, Tensors, TorchOperation, add_up
from hpcoll.torch.options import DEVICES, NAME
from hpcoll.torch.rendezvous import check_world
from hpcoll.torch.work import Work

_CUSTOM = dist.ProcessGroup.BackendType.CUSTOM
# Options where the caller gives none.
_OPTIONS = SimpleNamespace(reduceOp=dist.ReduceOp.SUM, rootRank=0, timeout=timedelta(0))


def create(asked: Any, opts: Any = None) -> "Group":
    """Return the group that ``init_process_group`` or ``new_group`` asks for; collective over its members.

    ``asked`` has rank, size, timeout, and the members' ranks in the world, none for all of it; ``opts`` is a `GroupOptions` or None.
    ArgumentError: the world is not ``MPI.COMM_WORLD``.
    """
    world = MPI.COMM_WORLD
    members = list(asked.global_ranks_in_group)
    if not members:
        check_world(asked.group_rank, asked.group_size)
    comm = _communicator(world, members or list(range(world.size)))
    return Group(comm, asked.timeout, asked.store, getattr(opts, "order", None))


def _communicator(of: MPI.Intracomm, members: Sequence[int]) -> Communicator:
    """Return a communicator of some ranks of another, with message contexts of its own; collective over these ranks."""
    group = of.Get_group()
    chosen = group.Incl(members)
    try:
        return Communicator(MPI.Intracomm.Create_group(of, chosen))
    finally:
        chosen.Free()
        group.Free()


class _Behind(Backend):
    """The backend that tells torch a group's devices and name; operations go to the `Group` itself, which may answer more."""

    def getBackendName(self) -> str:
        return NAME

    def shutdown(self) -> None:
        """Nothing: the group is told, too."""

    abort = shutdown


class Group(dist.ProcessGroup):
    """A process group that runs on a `Communicator`, which is freed with it; torch calls a method for each operation.

    Tensors with gaps are packed. On GPUs, calls are ordered by the current stream. ``timeout`` is the limit of operations that have none of
    their own.
    """

    def __init__(
        self, comm: Communicator, timeout: timedelta, store: dist.Store, order: str | None = None
    ) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._me = Me(comm.rank, comm.size)
        self._store = store
        self._name = ""
        self._depths, self._order = Depths(comm), order  # the latter is of reductions
        self._started: list[Work] | None = None  # since `start_coalescing`
        self._monitored = MonitoredBarrier(comm)
        self._ncalls = 0
        self.set_timeout(timeout)
        # older versions of torch have no backends that Python can make, nor anything that asks for one
        with suppress(TypeError):
            for kind in DEVICES:
                self._register_backend(torch.device(kind), _CUSTOM, _Behind(comm.rank, comm.size))
            self._set_default_backend(_CUSTOM)

    def getBackendName(self) -> str:
        """Return the name under which the backend is registered."""
        return NAME

    def _get_backend(self, device: torch.device) -> "Group":
        """Return the group, which serves all devices itself."""
        return self

    get_backend = _get_backend

    @property
    def _device_types(self) -> list[torch.device]:
        """Return the kinds of devices served, which not every version of torch hears from the backends above."""
        return [torch.device(kind) for kind in DEVICES]

    supports_splitting = supports_coalescing = True

    def _set_group_name(self, name: str) -> None:
        self._name = name
        self._monitored.of(name)
        self._comm.Set_name(f"process group {name}")
        super()._set_group_name(name)

    def _set_group_desc(self, desc: str) -> None:
        self._comm.Set_name(f"process group {self._name}" + (f" ({desc})" if desc != "undefined" else ""))
        super()._set_group_desc(desc)

    @property
    def group_name(self) -> str:
        """Name by which torch finds the group."""
        return self._name

    def get_group_store(self) -> dist.Store:
        """Return the key-value store of the group."""
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the limit of operations that have none of their own."""
        self._limit_s = timeout.total_seconds()
        for depth in self._depths.all:
            depth.comm._context.limit_s = self._limit_s

    _set_default_timeout = set_timeout

    def _run(self, what: str, tensors: Tensors, opts: Any, *every: TorchOperation) -> Work:
        """Begin operations in this order, all as calls in flight: one rank may wait for them at once, and another later."""
        stream = _stream(tensors)
        here = self._depths.here
        with here.inside:
            self._ncalls += 1
            begun = [operation.begin(here.comm, self._order, **stream) for operation in every]
        requests = [request for request, _ in begun]
        stores = [store for _, store in begun if store]
        asked_s = opts.timeout.total_seconds()
        limit_s = asked_s if asked_s > 0 else self._limit_s
        return self._under_way(what, limit_s, tensors, requests, stores, self._depths)

    def _under_way(self, what: str, limit_s: float, tensors: Tensors, *rest: Any) -> Work:
        work = Work(f"rank {self._me.rank}: {what}", limit_s, tensors, *rest)
        if self._started is not None:
            self._started.append(work)
        return work

    def allreduce(self, tensors: Tensors, opts: Any = _OPTIONS) -> Work:
        """Combine tensors over all ranks; sparse ones are added up, and waited for."""
        if tensors[0].layout != torch.strided:
            here = self._depths.here
            with here.inside:
                for tensor in tensors:
                    add_up(here.comm, tensor, opts.reduceOp)
            return Work("all_reduce", self._limit_s, tensors)
        every = (operations.allreduce(self._me, tensor, opts.reduceOp) for tensor in tensors)
        return self._run("all_reduce", tensors, opts, *every)

    def reduce(self, tensors: Tensors, opts: Any = _OPTIONS) -> Work:
        """Combine tensors at the root."""
        every = (operations.reduce(self._me, tensor, opts.reduceOp, opts.rootRank) for tensor in tensors)
        return self._run("reduce", tensors, opts, *every)

    def broadcast(self, tensors: Tensors, opts: Any = _OPTIONS) -> Work:
        """Send the root's tensors to all ranks."""
        every = (operations.broadcast(self._me, tensor, opts.rootRank) for tensor in tensors)
        return self._run("broadcast", tensors, opts, *every)

    def allgather(self, outputs: Sequence[Tensors], given: Tensors, opts: Any = _OPTIONS) -> Work:
        """Gather the tensors of all ranks, each into a tensor of its own."""
        every = (operations.allgather(self._me, *pair) for pair in zip(outputs, given, strict=True))
        return self._run("all_gather", _flat(outputs), opts, *every)

    def allgather_coalesced(self, outputs: Sequence[Tensors], given: Tensors, opts: Any = _OPTIONS) -> Work:
        """Gather several tensors: ``outputs[i][j]`` becomes ``given[j]`` of rank i."""
        return self.allgather([list(column) for column in zip(*outputs, strict=True)], given, opts)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = _OPTIONS) -> Work:
        """Gather the tensors of all ranks into one."""
        one = operations.allgather_single(self._me, output, given)
        return self._run("all_gather_single", [output], opts, one)

    def all_gather_single_coalesced(self, outputs: Tensors, given: Tensors, opts: Any = _OPTIONS) -> Work:
        """Gather several tensors, each into one."""
        every = (operations.allgather_single(self._me, *pair) for pair in zip(outputs, given, strict=True))
        return self._run("all_gather_single_coalesced", outputs, opts, *every)

    def reduce_scatter(self, outputs: Tensors, given: Sequence[Tensors], opts: Any = _OPTIONS) -> Work:
        """Combine tensors, of which each rank gets one."""
        pairs = zip(outputs, given, strict=True)
        every = (operations.reduce_scatter(self._me, *pair, opts.reduceOp) for pair in pairs)
        return self._run("reduce_scatter", outputs, opts, *every)

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = _OPTIONS) -> Work:
        """Combine tensors, of which each rank gets a part."""
        one = operations.reduce_scatter_single(self._me, output, given, opts.reduceOp)
        return self._run("reduce_scatter_single", [output], opts, one)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, given: Tensors, opts: Any = _OPTIONS) -> Work:
        """Combine several tensors, of which each rank gets a part."""
        pairs = zip(outputs, given, strict=True)
        every = (operations.reduce_scatter_single(self._me, *pair, opts.reduceOp) for pair in pairs)
        return self._run("reduce_scatter_single_coalesced", outputs, opts, *every)

    def alltoall(self, outputs: Tensors, given: Tensors, opts: Any = _OPTIONS) -> Work:
        """Send a tensor to each rank."""
        return self._run("all_to_all", outputs, opts, operations.alltoall(self._me, outputs, given))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = _OPTIONS,
    ) -> Work:
        """Send rows of a tensor to each rank."""
        one = operations.alltoall_single(self._me, output, given, output_sizes or (), input_sizes or ())
        return self._run("all_to_all_single", [output], opts, one)

    def gather_single(self, output: torch.Tensor | None, given: torch.Tensor, opts: Any = _OPTIONS) -> Work:
        """Gather the tensors of all ranks one behind the other, at the root."""
        parts = []
        if self._me.rank == opts.rootRank and output is not None:
            parts.append(output.view(self._me.nranks, -1).unbind())
        return self.gather(parts, [given], opts)

    def gather(self, outputs: Sequence[Tensors], given: Tensors, opts: Any = _OPTIONS) -> Work:
        """Gather the tensors of all ranks at the root."""
        root = opts.rootRank
        one = operations.gather(self._me, outputs[0] if outputs else (), given[0], root)
        return self._run("gather", _flat(outputs) or given, opts, one)

    def scatter(self, outputs: Tensors, given: Sequence[Tensors], opts: Any = _OPTIONS) -> Work:
        """Send a tensor of the root's to each rank."""
        one = operations.scatter(self._me, outputs[0], given[0] if given else (), opts.rootRank)
        return self._run("scatter", outputs, opts, one)

    def barrier(self, opts: Any = _OPTIONS) -> Work:
        """Wait for all ranks."""
        return self._run("barrier", [], opts, TorchOperation("Ibarrier", ()))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; rank 0 names the ranks that did not come within the timeout, which may be zero."""
        limit_s = -1 if timeout is None else timeout.total_seconds()
        self._monitored.wait(limit_s if limit_s >= 0 else self._limit_s, names_all=wait_all_ranks)

    def send(self, tensors: Tensors, rank: int, tag: int) -> Work:
        """Send a tensor."""
        return self._message("Isend", tensors, rank, tag)

    def recv(self, tensors: Tensors, rank: int, tag: int) -> Work:
        """Receive a tensor."""
        return self._message("Irecv", tensors, rank, tag)

    def recv_anysource(self, tensors: Tensors, tag: int) -> Work:
        """Receive a tensor from whichever rank sends one."""
        return self._message("Irecv", tensors, MPI.ANY_SOURCE, tag)

    def _message(self, method: str, tensors: Tensors, rank: int, tag: int) -> Work:
        what = method[1:]
        if len(tensors) != 1:
            raise ArgumentError(f"rank {self._me.rank}: {what} needs one tensor, got {len(tensors)}")
        with self._depths.all[0].inside:
            begun = begin_message(method, self._comm, tensors[0], rank, tag, **_stream(tensors))
            return self._under_way(what, self._limit_s, *begun)

    def _start_coalescing(self, device: torch.device) -> None:
        """Begin to collect operations that are waited for together."""
        self._started = []

    def _end_coalescing(self, device: torch.device) -> Work:
        """Return the work of all operations since `_start_coalescing`."""
        works = self._started or []
        self._started = None
        return Work.of_all(f"rank {self._me.rank}: coalesced operations", self._limit_s, works)

    def split_group(
        self, ranks: Sequence[int], timeout: timedelta | None = None, group_name: str = "", **opts: Any
    ) -> "Group | None":
        """Return a group of some ranks of this one, or None on other ranks; collective over its members."""
        if self._me.rank not in ranks:
            return None
        limit = timeout or timedelta(seconds=self._limit_s)
        made = Group(_communicator(self._comm, ranks), limit, self._store, self._order)
        made._set_group_name(group_name)
        return made

    def _get_sequence_number_for_group(self) -> int:
        """Return how many operations there were."""
        return self._ncalls

    def shutdown(self) -> None:
        """Free the communicators; all members call it."""
        if self._monitored.left_messages:
            self.abort()
        elif self._comm != MPI.COMM_NULL and not MPI.Is_finalized():
            for depth in self._depths.all:
                depth.free()

    def abort(self) -> None:
        """Close the communicators of this rank without telling the others; nothing that they use is freed."""
        for depth in self._depths.all:
            depth.comm._context.close("the process group was aborted")

    # Names of older versions of torch.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    allreduce_coalesced = allreduce
    alltoall_base = all_to_all_single


def _flat(lists: Sequence[Tensors]) -> list[torch.Tensor]:
    return [tensor for each in lists for tensor in each]


def _stream(tensors: Tensors) -> dict[str, int]:
    """Return the keyword that orders a call on GPUs by the current stream."""
    if not tensors or not tensors[0].is_cuda:
        return {}
    return {"stream": torch.cuda.current_stream(tensors[0].device).cuda_stream}
