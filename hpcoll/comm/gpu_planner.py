"""How calls on GPU arrays run: by a program for GPU memory, or by the host's way on mirrors.

All ranks of a call decide alike, from what they all know: the communicator, the collective, the size. A communicator is **mixed**
where some rank has no GPU, or where the program says that ranks will pass different kinds of memory; there, all calls take the host's
way, which does not ask what memory the others have.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.calls import gpu_staging
from hpcoll.comm.calls.buffers import resolve
from hpcoll.comm.calls.call import Call, is_in_place
from hpcoll.comm.calls.exporters import UNREADABLE
from hpcoll.comm.calls.gpu_staging import Lifted
from hpcoll.comm.calls.host_mirror import Mirror, mirror_of, positions
from hpcoll.comm.calls.methods import DESCRIBE, Caller
from hpcoll.comm.gpu_routes import Gpus
from hpcoll.comm.plan import MessageContext, Plan
from hpcoll.comm.planner import IN_FLIGHT, Planner
from hpcoll.comm.symmetric import Form
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.gpu import cuda
from hpcoll.runtime.gpu.arrays import DeviceArray, device_array, stream_of
from hpcoll.runtime.gpu.device import Gpu, Memory, array_over, gpu_of
from hpcoll.runtime.gpu.local_gpu import local_device
from hpcoll.runtime.program.fields import MOST_SOURCES
from hpcoll.schedules.catalogue import algorithms, find
from hpcoll.selection.choose import Choice
from hpcoll.selection.config import HOST, NATIVE

FIRST_PERSISTENT = 2 * (1 + IN_FLIGHT)  # number of the first message_context behind those that host and GPU arrays have
_FOLDED_ONCE = {"Allreduce": "allreduce", "Reduce": "reduce", "Reduce_scatter_block": "reduce_scatter"}
GPU_NBYTES = 64 << 10  # messages from here on run by a program for GPU memory


class Planned(NamedTuple):
    """A call and how it runs.

    Attributes:
        call, plan: None where only the MPI library understands it.
        arguments: For the MPI library's own method: the caller's, or mirrors.
        mirror: Host copies of GPU arrays, or None.
        describe: Describes the call anew, with the streams and the data of then.
    """

    call: Call | None
    plan: Plan | None
    arguments: tuple[Any, ...]
    mirror: Mirror | None
    describe: Callable[[], Call | None]


class GpuPlanner(Planner):
    """Finds how the calls of one communicator run, on host and on GPU arrays. Made collectively.

    Args:
        comm: The communicator.
        mixed: Whether ranks may pass different kinds of memory in one call; equal on all ranks.
    """

    def __init__(self, comm: MPI.Intracomm, mixed: bool) -> None:
        super().__init__(comm)
        self.asked_mixed = mixed
        likely = self.comm.allgather(cuda.is_likely())
        self.mixed, self._mixes = mixed or not all(likely), any(likely) and (mixed or not all(likely))
        self._gpus: Gpus | None = None
        self._folding = _FoldingOnce(self)

    def serve(
        self, method: str, arguments: tuple[Any, ...], algorithm: str | None, segment: Any, stream: Any, *, in_flight: bool = False
    ) -> Planned:
        """Describe a call and find how it runs.

        Args:
            method, arguments: mpi4py's name and positional arguments.
            algorithm, segment, stream: The caller's keywords.
            in_flight: The call is to return before it has ended.
        Raises:
            ArgumentError: the arguments are wrong or the forced algorithm cannot serve them.
            DeviceError: the GPU failed.
        """
        arrays = self._gpu_arrays(method, arguments)
        describe: Callable[[], Call | None] = partial(DESCRIBE[method], self, *arguments)
        mirror = None
        if not arrays:
            call = describe()
        elif (found := self._for_program(method, arguments, arrays, algorithm)) is not None:
            on_gpu, call = found
            describe = partial(self._describe_on_gpu, method, arguments, on_gpu, stream)
            call = self._describe_on_gpu(method, arguments, on_gpu, stream, call, arrays)
        else:
            mirror = mirror_of(method, arguments, stream, self.rank)
            assert mirror is not None
            describe = partial(self._describe_mirrored, method, arguments, stream)
            call = self._describe_mirrored(method, arguments, stream, mirror)
            arguments = mirror.arguments
        if call is not None and in_flight and (mirror is not None or self._mixes):
            call = call._replace(native=False)  # the library's own request would not bring results to the GPU
        if call is None and mirror is not None and in_flight:
            raise ArgumentError(f"rank {self.rank}: {method} of GPU arrays cannot be in flight where only the MPI library can serve it")
        return Planned(call, self.plan(call, method, algorithm, segment), arguments, mirror, describe)

    def _may_fold_once(self, method: str, algorithm: str | None) -> bool:
        """Whether half types may travel as they are: one kernel reads all contributions, and no other algorithm is asked for."""
        collective = _FOLDED_ONCE.get(method)
        if collective is None or self.nranks > MOST_SOURCES:
            return False
        forced = algorithm or self.config.algorithms.get(collective)
        return forced is None or (forced in algorithms(collective) and find(collective, forced).one_fold)

    def _for_program(
        self, method: str, arguments: tuple[Any, ...], arrays: dict[int, DeviceArray], algorithm: str | None
    ) -> "tuple[_OnGpu, Call] | None":  # fmt: skip
        """The call, if a program for GPU memory runs it."""
        if self.mixed or self.config.cuda_path == HOST or algorithm == NATIVE:
            return None
        on_gpu = self._lift(method, arguments, arrays, self._folding if self._may_fold_once(method, algorithm) else self)
        call = on_gpu.describe()
        if call is None:
            return None
        nbytes = self.known_nbytes(call)
        small = nbytes is not None and nbytes < GPU_NBYTES and self.config.cuda_path is None
        return None if small else (on_gpu, call)

    def _lift(self, method: str, arguments: tuple[Any, ...], arrays: dict[int, DeviceArray], caller: Caller) -> "_OnGpu":
        gpu = gpu_of(next(iter(arrays.values())).ordinal)
        theirs, lifts, received = list(arguments), list[Lifted](), None
        sent_at, received_at = positions(method, arguments, self.rank)
        for position in {sent_at, received_at} - {None, *arrays}:
            assert position is not None
            theirs[position], lift = gpu_staging.lifted(gpu, arguments[position])
            if lift is not None:
                lifts.append(lift)
                received = lift if position == received_at else received
        return _OnGpu(gpu, partial(DESCRIBE[method], caller, *theirs), lifts, received)

    def _describe_mirrored(self, method: str, arguments: tuple[Any, ...], stream: Any, mirror: Mirror | None = None) -> Call | None:
        mirror = mirror or mirror_of(method, arguments, stream, self.rank)  # with the streams of now, also when started anew
        assert mirror is not None
        mirror.fetch()
        call = DESCRIBE[method](self, *mirror.arguments)
        if call is None:
            return None
        first, store = call.finish, mirror.store

        def finish() -> None:
            if first is not None:
                first()
            store()

        return call._replace(finish=finish, direct=False, keep=(*call.keep, mirror))

    def _describe_on_gpu(
        self, method: str, arguments: tuple[Any, ...], on_gpu: "_OnGpu", stream: Any,
        call: Call | None = None, arrays: dict[int, DeviceArray] | None = None,
    ) -> Call | None:  # fmt: skip
        """The call with what is launched before and after; ``call`` and ``arrays`` where they are of now."""
        call = call or on_gpu.describe()
        if call is None:
            return None
        gpu, received = on_gpu.gpu, on_gpu.received
        gpus = self.gpus(gpu)
        call = gpu_staging.settled(call, gpu)
        arrays = arrays or self._gpu_arrays(method, arguments)
        first, *others = {stream_of(array, stream, self.rank) for array in arrays.values()}
        launches = (*(lift.fill for lift in on_gpu.lifts), *call.before)
        if received is not None:
            call = call._replace(finish=gpu_staging.finisher(gpu, [received.bring_home], call.finish))

        def start(engine: Any) -> None:
            with gpu.entered():
                for other in others:
                    gpu.order(first, other)
                for launch in launches:
                    launch(first)
                engine.after(first)

        return call._replace(start=start, exported=gpus.exported(call, arrays.values()), native=False, direct=False)

    def _gpu_arrays(self, method: str, arguments: tuple[Any, ...]) -> dict[int, DeviceArray]:
        """The GPU arrays that this rank sends from and receives into, by position."""
        places = {place for place in positions(method, arguments, self.rank) if place is not None}
        found = {place: _gpu_array(arguments[place]) for place in sorted(places)}
        return {place: array for place, array in found.items() if array is not None}

    def counted(self, method: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments with the counts that a Reduce_scatter may leave out, so that describing it again asks no other rank; collective."""
        if method != "Reduce_scatter" or arguments[2] is not None or is_in_place(arguments[0]):
            return arguments
        own = resolve(arguments[1], name="recvbuf", rank=self.rank, writable=True)
        return *arguments[:2], None if own is None else self.comm.allgather(own.count), arguments[3]

    def gpus(self, gpu: Gpu) -> Gpus:
        """Ways between the GPUs; collective when first asked for.

        Raises:
            ArgumentError: they are those of another GPU.
        """
        if self._gpus is None:
            first = 1 + IN_FLIGHT
            shares = self.message_contexts[0].rings is not None
            which = self.comm, self.node, self.topology.nodes, gpu, self.config.cuda_path
            self._gpus = Gpus(*which, self.new_message_contexts, first, first, shares=shares)
        mine = self._gpus.gpu.ordinal
        if gpu.ordinal != mine:
            raise ArgumentError(f"rank {self.rank}: this communicator uses GPU {mine}, got an array on GPU {gpu.ordinal}: use one each")
        return self._gpus

    def gpu_array(self, form: Form) -> Any:
        """An array in symmetric GPU memory; collective.

        Raises:
            ArgumentError: on every rank, where some rank has no GPU or no memory on it.
        """
        found = cuda.driver() if cuda.is_likely() else None
        if not all(self.comm.allgather(found is not None)):
            raise ArgumentError(f"rank {self.rank}: device 'cuda' needs a GPU on every rank" + ("" if found else ", got none here"))
        assert found is not None
        ordinal = found.current_ordinal()
        gpu = gpu_of(local_device(self.caller) if ordinal is None else ordinal)
        ways = None if self.mixed or self.config.cuda_path == HOST else self.gpus(gpu)
        return array_over(Memory(gpu, form.nbytes) if ways is None else ways.symmetric(form.nbytes), form.shape, form.dtype)

    def message_contexts_of(self, call: Call) -> list[MessageContext]:
        """Channels on which a call may travel: the blocking one first."""
        return self.message_contexts if call.exported is None or self._gpus is None else self._gpus.message_contexts

    def more_message_contexts(self, call: Call, index: int) -> list[MessageContext]:
        """A message_context of its own for a persistent call; collective."""
        return (self.new_message_contexts if call.exported is None or self._gpus is None else self._gpus.new_message_contexts)(index, 1)

    def _builder(self, call: Call, choice: Choice, sizes: tuple[int, ...], account: np.ndarray) -> Callable[[MessageContext], HostEngine]:
        if call.exported is None:
            return super()._builder(call, choice, sizes, account)
        assert self._gpus is not None
        return partial(self._gpus.build, call, choice, sizes, call.exported, self._handle, self._wait_policy, self.lock, account)


class _FoldingOnce(Caller):
    """A caller whose half types travel as they are."""

    one_fold = True

    def __init__(self, of: Caller) -> None:
        self.comm, self.rank, self.nranks, self.token = of.comm, of.rank, of.nranks, of.token


class _OnGpu(NamedTuple):
    """A call on GPU arrays, and on copies on the GPU of its host arrays.

    Attributes:
        gpu: Where it runs.
        describe: Describes it.
        lifts, received: The copies, and the one that is received into.
    """

    gpu: Gpu
    describe: Callable[[], Call | None]
    lifts: Sequence[Lifted]
    received: Lifted | None


def _gpu_array(argument: Any) -> DeviceArray | None:
    """The GPU array in a buffer argument; what is wrong with it is found when the call is described."""
    buffer = argument[0] if isinstance(argument, list | tuple) and argument else argument
    if isinstance(buffer, np.ndarray) or buffer is None or buffer is MPI.IN_PLACE:
        return None
    try:
        return device_array(buffer)
    except UNREADABLE:
        return None
