"""A process group of torch.distributed that runs on a `Communicator`: what torch calls for each operation."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
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
from hpcoll.torch.messages import MonitoredBarrier, begin_receive, begin_send
from hpcoll.torch.operations import Me, Tensors, TorchOperation
from hpcoll.torch.rendezvous import check_world
from hpcoll.torch.sparse import add_up
from hpcoll.torch.work import Work

NAME, DEVICES = "hpcoll", ["cpu", "cuda"]
_CUSTOM = dist.ProcessGroup.BackendType.CUSTOM
# What a caller means who gives none.
_OPTIONS = SimpleNamespace(reduceOp=dist.ReduceOp.SUM, rootRank=0, timeout=timedelta(0))


def create(asked: Any, opts: Any = None) -> "Group":
    """The group that ``init_process_group`` or ``new_group`` asks for; collective over its members.

    Args:
        asked: torch's description: rank, size, timeout, and the members' ranks in the world, none for all of it.
        opts: Ignored.

    Raises:
        ArgumentError: the world is not ``MPI.COMM_WORLD``.
    """
    world, members = MPI.COMM_WORLD, list(asked.global_ranks_in_group)
    if not members:
        check_world(asked.group_rank, asked.group_size)
    return Group(_communicator(world, members or list(range(world.size))), asked.timeout, asked.store)


def _communicator(of: MPI.Intracomm, members: Sequence[int]) -> Communicator:
    """One of some ranks of another; its messages meet no others. Collective over them."""
    group = of.Get_group()
    chosen = group.Incl(members)
    try:
        return Communicator(MPI.Intracomm.Create_group(of, chosen))
    finally:
        chosen.Free()
        group.Free()


class _Behind(Backend):
    """What torch asks which devices a group serves, and by which name; operations go to the `Group` itself, which may answer more."""

    def getBackendName(self) -> str:
        return NAME

    def shutdown(self) -> None:
        """Nothing: the group is told, too."""

    abort = shutdown


class Group(dist.ProcessGroup):
    """What torch calls for each operation of a process group, which runs on a `Communicator`.

    Tensors may have gaps: they are packed. On GPUs, calls are ordered by the current stream.

    Args:
        comm: Of the group's ranks; freed with it.
        timeout: How long an operation may take that says nothing else.
        store: torch's key-value store of the group.
    """

    def __init__(self, comm: Communicator, timeout: timedelta, store: dist.Store) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm, self._me, self._store, self._name = comm, Me(comm.rank, comm.size), store, ""
        self._depths = Depths(comm)
        self._started: list[Work] | None = None  # since `start_coalescing`
        self._monitored, self._ncalls = MonitoredBarrier(comm), 0
        self.set_timeout(timeout)
        with suppress(TypeError):  # older versions of torch have no backends that Python can make, nor anything that asks for one
            for kind in DEVICES:
                self._register_backend(torch.device(kind), _CUSTOM, _Behind(comm.rank, comm.size))
            self._set_default_backend(_CUSTOM)

    def getBackendName(self) -> str:
        """As which it was registered."""
        return NAME

    def _get_backend(self, device: torch.device) -> "Group":
        """This, for it serves all devices itself."""
        return self

    get_backend = _get_backend
    supports_splitting = supports_coalescing = True

    def _set_group_name(self, name: str) -> None:
        self._name = name
        self._monitored.of(name)
        super()._set_group_name(name)

    @property
    def group_name(self) -> str:
        """By which torch finds it."""
        return self._name

    def get_group_store(self) -> dist.Store:
        """torch's key-value store of the group."""
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """How long an operation may take that says nothing else."""
        self._limit_s = timeout.total_seconds()
        for depth in self._depths.all:
            depth.comm._context.limit_s = self._limit_s

    _set_default_timeout = set_timeout

    def _run(self, what: str, tensors: Tensors, opts: Any, *every: TorchOperation) -> Work:
        """Begin operations, in this order: one rank may wait for them at once and another later, so all are calls in flight."""
        stream, here = _stream(tensors), self._depths.here
        with here.inside:
            self._ncalls += 1
            begun = [one.begin(here.comm, **stream) for one in every]
        requests, stores = [request for request, _ in begun], [store for _, store in begun if store]
        return self._under_way(what, self._limit_of(opts), tensors, requests, stores, self._depths)

    def _under_way(self, what: str, limit_s: float, tensors: Tensors, *rest: Any) -> Work:
        work = Work(f"rank {self._me.rank}: {what}, {self._me.nranks} ranks", limit_s, tensors, *rest)
        if self._started is not None:
            self._started.append(work)
        return work

    def _limit_of(self, opts: Any) -> float:
        asked = opts.timeout.total_seconds()
        return asked if asked > 0 else self._limit_s

    def allreduce(self, tensors: Tensors, opts: Any = _OPTIONS) -> Work:
        """Combine; sparse tensors are added up, and waited for."""
        if tensors[0].layout != torch.strided:
            here = self._depths.here
            with here.inside:
                for one in tensors:
                    add_up(here.comm, one, opts.reduceOp)
            return Work("all_reduce", self._limit_s, tensors)
        return self._run("all_reduce", tensors, opts, *(operations.allreduce(one, opts.reduceOp) for one in tensors))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = _OPTIONS) -> Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any = _OPTIONS) -> Work:
        every = (operations.reduce(self._me, one, opts.reduceOp, opts.rootRank) for one in tensors)
        return self._run("reduce", tensors, opts, *every)

    def broadcast(self, tensors: Tensors, opts: Any = _OPTIONS) -> Work:
        return self._run("broadcast", tensors, opts, *(operations.broadcast(self._me, one, opts.rootRank) for one in tensors))

    def allgather(self, outputs: Sequence[Tensors], given: Tensors, opts: Any = _OPTIONS) -> Work:
        every = (operations.allgather(self._me, *pair) for pair in zip(outputs, given, strict=True))
        return self._run("all_gather", _flat(outputs), opts, *every)

    def allgather_coalesced(self, outputs: Sequence[Tensors], given: Tensors, opts: Any = _OPTIONS) -> Work:
        """``outputs[i][j]`` is rank i's ``given[j]``."""
        return self.allgather([list(column) for column in zip(*outputs, strict=True)], given, opts)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = _OPTIONS) -> Work:
        return self._run("all_gather_single", [output], opts, operations.allgather_single(self._me, output, given))

    def all_gather_single_coalesced(self, outputs: Tensors, given: Tensors, opts: Any = _OPTIONS) -> Work:
        every = (operations.allgather_single(self._me, *pair) for pair in zip(outputs, given, strict=True))
        return self._run("all_gather_single_coalesced", outputs, opts, *every)

    def reduce_scatter(self, outputs: Tensors, given: Sequence[Tensors], opts: Any = _OPTIONS) -> Work:
        every = (operations.reduce_scatter(self._me, *pair, opts.reduceOp) for pair in zip(outputs, given, strict=True))
        return self._run("reduce_scatter", outputs, opts, *every)

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = _OPTIONS) -> Work:
        one = operations.reduce_scatter_single(self._me, output, given, opts.reduceOp)
        return self._run("reduce_scatter_single", [output], opts, one)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, given: Tensors, opts: Any = _OPTIONS) -> Work:
        every = (operations.reduce_scatter_single(self._me, *pair, opts.reduceOp) for pair in zip(outputs, given, strict=True))
        return self._run("reduce_scatter_single_coalesced", outputs, opts, *every)

    def alltoall(self, outputs: Tensors, given: Tensors, opts: Any = _OPTIONS) -> Work:
        return self._run("all_to_all", outputs, opts, operations.alltoall(self._me, outputs, given))

    def all_to_all_single(
        self, output: torch.Tensor, given: torch.Tensor, output_sizes: Sequence[int], input_sizes: Sequence[int],
        opts: Any = _OPTIONS,
    ) -> Work:  # fmt: skip
        one = operations.alltoall_single(self._me, output, given, output_sizes or (), input_sizes or ())
        return self._run("all_to_all_single", [output], opts, one)

    def gather_single(self, output: torch.Tensor | None, given: torch.Tensor, opts: Any = _OPTIONS) -> Work:
        """Outputs of all ranks one behind the other, at the root."""
        parts = [] if self._me.rank != opts.rootRank or output is None else [output.view(self._me.nranks, -1).unbind()]
        return self.gather(parts, [given], opts)

    def gather(self, outputs: Sequence[Tensors], given: Tensors, opts: Any = _OPTIONS) -> Work:
        root = opts.rootRank
        one = operations.gather(self._me, outputs[0] if outputs else (), given[0], root)
        return self._run("gather", _flat(outputs) or given, opts, one)

    def scatter(self, outputs: Tensors, given: Sequence[Tensors], opts: Any = _OPTIONS) -> Work:
        one = operations.scatter(self._me, outputs[0], given[0] if given else (), opts.rootRank)
        return self._run("scatter", outputs, opts, one)

    def barrier(self, opts: Any = _OPTIONS) -> Work:
        return self._run("barrier", [], opts, TorchOperation("Ibarrier", ()))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose rank 0 says who did not come; in no time, whoever is not there yet."""
        limit_s = -1 if timeout is None else timeout.total_seconds()
        self._monitored.wait(limit_s if limit_s >= 0 else self._limit_s, names_all=wait_all_ranks)

    def send(self, tensors: Tensors, rank: int, tag: int) -> Work:
        return self._message("send", begin_send, tensors, rank, tag)

    def recv(self, tensors: Tensors, rank: int, tag: int) -> Work:
        return self._message("recv", begin_receive, tensors, rank, tag)

    def recv_anysource(self, tensors: Tensors, tag: int) -> Work:
        return self._message("recv", begin_receive, tensors, MPI.ANY_SOURCE, tag)

    def _message(self, what: str, begin: Callable[..., Work], tensors: Tensors, rank: int, tag: int) -> Work:
        if len(tensors) != 1:
            raise ArgumentError(f"rank {self._me.rank}: {what} needs one tensor, got {len(tensors)}")
        with self._depths.all[0].inside:
            return begin(self._comm, tensors[0], rank, tag, partial(self._under_way, what, self._limit_s), **_stream(tensors))

    def _start_coalescing(self, device: torch.device) -> None:
        """What is begun from now on is waited for as one."""
        self._started = []

    def _end_coalescing(self, device: torch.device) -> Work:
        """What was begun since `_start_coalescing`."""
        works, self._started = self._started or [], None
        return Work.of_all(f"rank {self._me.rank}: coalesced operations", self._limit_s, works)

    def split_group(self, ranks: Sequence[int], timeout: timedelta | None = None, group_name: str = "", **opts: Any) -> "Group | None":
        """A group of some ranks of this one; None for others. Collective over its members."""
        if self._me.rank not in ranks:
            return None
        made = Group(_communicator(self._comm, ranks), timeout or timedelta(seconds=self._limit_s), self._store)
        made._set_group_name(group_name)
        return made

    def _get_sequence_number_for_group(self) -> int:
        """How many operations there were."""
        return self._ncalls

    def shutdown(self) -> None:
        """Free the communicators; all members call it."""
        if self._monitored.left_messages:
            self.abort()
        elif self._comm != MPI.COMM_NULL and not MPI.Is_finalized():
            for depth in self._depths.all:
                depth.free()

    def abort(self) -> None:
        """Refuse further use, without a word to the others, and keep what is theirs, too."""
        for depth in self._depths.all:
            depth.comm._context.close("the process group was aborted")

    # Names of older versions of torch.
    _allgather_base, allgather_into_tensor_coalesced = all_gather_single, all_gather_single_coalesced
    _reduce_scatter_base, reduce_scatter_tensor_coalesced = reduce_scatter_single, reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _flat(lists: Sequence[Tensors]) -> list[torch.Tensor]:
    return [one for each in lists for one in each]


def _stream(tensors: Tensors) -> dict[str, int]:
    """The keyword by which a call on GPUs is ordered."""
    return {"stream": torch.cuda.current_stream(tensors[0].device).cuda_stream} if tensors and tensors[0].is_cuda else {}
