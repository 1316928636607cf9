"""Calls on GPU arrays: they run by a program for GPU memory, or by the host's way on mirrors.

All ranks of a call decide alike, from what they all know: the communicator, the collective, the size. A communicator is **mixed**
where some rank has no GPU, or where the program says that ranks will pass different kinds of memory; there, all calls take the host's
way, which does not ask what memory the others have. Calls on host arrays never come here.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from hpcoll.analysis.cost import NEVER
from hpcoll.base.errors import ArgumentError
from hpcoll.base.ops import EXACT_SUM
from hpcoll.comm.arguments.call import Call
from hpcoll.comm.arguments.memory import buffer_of, with_buffer
from hpcoll.comm.arguments.methods import Method
from hpcoll.comm.gpu import staging
from hpcoll.comm.gpu.mirror import Mirror, mirror_of
from hpcoll.comm.gpu.one_shot import COLLECTIVES, one_shot
from hpcoll.comm.gpu.repeated import (
    SHORT_NBYTES,
    Copies,
    KnownCalls,
    OneShotCall,
    SeenCall,
    ShortCalls,
    look,
)
from hpcoll.comm.gpu.resources import GpuEngines, Gpus
from hpcoll.comm.gpu.staging import Launch, Lifted
from hpcoll.comm.planning.planner import Planner
from hpcoll.comm.plans.plan import Prepared
from hpcoll.comm.plans.signature import Purpose
from hpcoll.comm.requests.call_hooks import BeginningCall
from hpcoll.comm.requests.persistent_request import Starts
from hpcoll.comm.team.resources import Resources
from hpcoll.comm.team.symmetric_memory import ArrayForm
from hpcoll.kernels import MAX_SOURCES
from hpcoll.runtime.engine.call_cache import CallTable, Key
from hpcoll.runtime.engine.gpu_engine import GpuEngine
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.gpu import cuda
from hpcoll.runtime.gpu.arrays import DeviceArray, KnownArray, is_capturing, stream_of
from hpcoll.runtime.gpu.device import Gpu, Memory, array_over, gpu_of
from hpcoll.runtime.gpu.local_gpu import local_device
from hpcoll.runtime.program import copy_fields as g
from hpcoll.schedules.catalogue import algorithms, find
from hpcoll.schedules.row import Algorithm
from hpcoll.selection.config import DEVICE, HOST, NATIVE, name_of

Arrays: TypeAlias = dict[int, DeviceArray]  # by position among the arguments
# `Planner.known_nbytes`
_UNTOLD = (
    "Gatherv",
    "Scatterv",
    "Alltoallv",
    "Alltoallw",
    "Neighbor_allgatherv",
    "Neighbor_alltoallv",
    "Neighbor_alltoallw",
)


class GpuCalls:
    """The GPU part of a communicator.

    Attributes:
        short_nbytes: Most bytes of a message that runs by the host's way.

    Args:
        resources: Of the communicator.
        planner: Keeps its plans.
    """

    def __init__(self, resources: Resources, planner: Planner) -> None:
        self._resources, self._planner = resources, planner
        self._routes: Gpus | None = None
        self._known = KnownCalls()
        self._short = ShortCalls()
        path = resources.config.cuda_path
        self._by_host = resources.mixed or path == HOST
        self._picks, self._one_shot = path in (None, DEVICE), path == DEVICE
        self.short_nbytes = NEVER if self._by_host else SHORT_NBYTES

    def may_copy(self, seen: SeenCall) -> bool:
        """Say whether a call like one may be found by its copies."""
        return seen.is_copied and max(seen.sizes) <= self.short_nbytes

    def look(self, method: str, arguments: tuple[Any, ...], stream: Any) -> SeenCall | None:
        """Return a call as a look at its arguments tells it; arguments and result as of `hpcoll.comm.gpu.repeated.look`."""
        return look(self._resources.caller, method, arguments, stream)

    def one_shot(self, key: Key, seen: SeenCall) -> OneShotCall | None:
        """Return a call of a form that a one-shot kernel has served before; None where there is none."""
        return self._known.one_shot.get((key, seen.form))

    def known(self, key: Key, seen: SeenCall) -> Prepared | None:
        """Return a call that was prepared before, on memory that is the same still; None where there is none."""
        found = self._known.find(key, seen)
        if found is None or self._routes is None or is_capturing(self._routes.gpu.driver, seen.stream):
            return None
        (prepared, exported), streams = found, {seen.stream}
        assert prepared.described is not None
        described = prepared.described._replace(keep=seen.arguments)
        call = self._launching(described, self._routes, seen.spans, streams)
        return prepared._replace(call=call) if call.exported == exported else None

    def note(
        self,
        key: Key,
        method: str,
        arguments: tuple[Any, ...],
        stream: Any,
        prepared: Prepared,
        engine: HostEngine,
    ) -> None:
        """Let calls like one be found by `known` or `one_shot`, if it ran by an engine for GPU memory."""
        seen = self.look(method, arguments, stream) if prepared.context_pool is self._routes else None
        if seen is not None:
            self._known.add(key, seen, prepared, engine)

    def take_copies(self, seen: SeenCall, table: CallTable) -> Copies | None:
        """Return copies for a short call that a table may find; None where it has none. They are to be given back."""
        return self._short.take(self._resources.caller, seen, table) if table.calls else None

    def give_copies(self, seen: SeenCall, table: CallTable, copies: Copies) -> None:
        """Take back the copies of a call that has ended."""
        self._short.give(seen, table, copies)

    def starts(self, asked: BeginningCall, prepared: Prepared, engine: HostEngine) -> Starts | None:
        """Return a function that says how a persistent request is started, on its host copies or by its one-shot kernel.

        None where each start describes the call.
        """
        call, seen = prepared.on_host, self.look(asked.method, asked.arguments, asked.stream)
        if seen is None:
            return None
        form = seen.form
        if isinstance(engine, GpuEngine):
            if not _is_bare(prepared.call):
                return None
            copies: Copies | OneShotCall = OneShotCall(seen, engine, prepared.plan, None)
        else:
            if call is None or call.finish is not None or not call.as_given or not seen.is_copied:
                return None
            runs = {g.ENGINE: engine.address, g.SEND: call.send, g.RECV: call.recv}
            copies = Copies(seen, prepared.arguments, runs, apart=True)

        def starts() -> tuple[int, ...] | None:
            """Return what compiled code takes, with the streams of now."""
            seen = self.look(asked.method, asked.arguments, asked.stream)
            return None if seen is None or seen.form != form else copies.started(seen)

        return starts

    def captures(self, asked: BeginningCall, prepared: Prepared, engine: HostEngine) -> Callable[[], bool]:
        """Return a function that puts a persistent request into the graph that its stream is captured into; it says whether one is."""

        def capture() -> bool:
            """Launch the kernel into the graph, if the stream of now is captured and one kernel is all of the call."""
            seen = self.look(asked.method, asked.arguments, asked.stream)
            if seen is None or not isinstance(engine, GpuEngine) or not _is_bare(prepared.call):
                return False  # the usual way says what is wrong
            if not is_capturing(engine.gpu.driver, seen.stream):
                return False
            sent, received = seen.addresses
            engine.capture(seen.stream, sent or received, received or sent)
            return True

        return capture

    def forget(self) -> None:
        """Forget the calls that are known."""
        self._known.forget()
        self._short.forget()

    def prepare(
        self, row: Method, arguments: tuple[Any, ...], arrays: Arrays, asked: BeginningCall
    ) -> Prepared:
        """Describe a call on GPU arrays and find how it runs; errors as of `hpcoll.comm.context.context.Context.prepare`.

        Args:
            row: Method that the program calls.
            arguments: Positional arguments of the program.
            arrays: The GPU arrays among the arguments, by position.
            asked: The call, with the caller's keywords.
        """
        known = list(arguments)
        for position, array in arrays.items():
            # it came by an interface that is not told which stream will use it
            if array.owner is buffer_of(arguments[position]):
                known[position] = with_buffer(arguments[position], KnownArray(array))
        prepared = self._for_program(row, tuple(known), arrays, asked.algorithm)
        if prepared is not None:
            return self._by_program(row, arguments, arrays, asked, *prepared)
        return self._by_mirror(row, arguments, tuple(known), asked)

    def _by_mirror(
        self, row: Method, arguments: tuple[Any, ...], known: tuple[Any, ...], asked: BeginningCall
    ) -> Prepared:
        mirror = mirror_of(row.name, known, asked.stream, self._resources.rank)
        assert mirror is not None
        mirror.fetch()
        on_host = self._planner.describe(row, mirror.arguments, asked)
        call = None if on_host is None else _mirrored(on_host, mirror)
        if call is not None and asked.in_flight:
            call = call._replace(native=False)  # the library's own request would not bring results to the GPU
        if call is None and asked.in_flight:
            why = f"{row.name} of GPU arrays cannot be in flight where only the MPI library can serve it"
            raise ArgumentError(f"rank {self._resources.rank}: {why}")
        plan = self._planner.plan(
            call, row.name, mirror.arguments, asked.algorithm, asked.segment, waits=not asked.in_flight
        )
        describe = partial(self._describe_mirrored, row, arguments, asked)
        return Prepared(call, plan, mirror.arguments, describe, self._resources, mirror.store, on_host)

    def _by_program(
        self,
        row: Method,
        arguments: tuple[Any, ...],
        arrays: Arrays,
        asked: BeginningCall,
        on_gpu: "_OnGpu",
        call: Call,
    ) -> Prepared:
        routes = self.routes(on_gpu.gpu)
        described = self._planner.ordered(call, row, asked)
        if not (self._forced(row, asked.algorithm) or asked.segment):
            described = described._replace(one_shot=self._by_kernel(described))
        resources = self._resources

        def launching(call: Call, arrays: Arrays) -> Call:
            """Return a call on arrays, with the streams of now."""
            streams = {stream_of(array, asked.stream, resources.rank) for array in arrays.values()}
            return self._launching(call, routes, [array.span for array in arrays.values()], streams, on_gpu)

        call = launching(described, arrays)
        seen = self.look(row.name, arguments, asked.stream) if asked.in_flight else None

        def describe() -> Call | None:
            """Return the same call where memory and streams are the same, for one run of it ends before the next begins."""
            now = None if seen is None else self.look(row.name, arguments, asked.stream)
            if (
                now is not None
                and seen is not None
                and now.known_by == seen.known_by
                and not is_capturing(routes.gpu.driver, now.stream)
                and routes.exported(call, now.spans) == call.exported
            ):
                return call
            anew = on_gpu.describe()
            if anew is None:
                return None
            anew = anew._replace(one_shot=described.one_shot)
            return launching(anew, row.gpu_arrays(arguments, resources.rank))

        engines = GpuEngines(routes, resources.topology, resources.wait_policy, resources.lock)
        plan = self._planner.plan(
            call,
            row.name,
            arguments,
            asked.algorithm,
            asked.segment,
            engines.build,
            waits=not asked.in_flight,
        )
        own = not on_gpu.fills and on_gpu.received is None
        return Prepared(call, plan, arguments, describe, routes, described=described if own else None)

    def _may_fold_once(self, row: Method, algorithm: str | Algorithm | None) -> bool:
        """Say whether half types may travel as they are: one kernel reads all, and no other algorithm is asked for."""
        if not row.one_fold or self._resources.nranks > MAX_SOURCES:
            return False
        forced = self._forced(row, algorithm)
        return forced is None or (
            forced in algorithms(row.collective) and find(row.collective, forced).one_fold
        )

    def _forced(self, row: Method, algorithm: str | Algorithm | None) -> str | None:
        """Return the name of the algorithm that the call or the environment asks for."""
        return name_of(algorithm, row.collective) or self._resources.config.algorithms.get(row.collective)

    def _by_kernel(self, call: Call) -> bool:
        """Say whether one kernel of each rank can do a call."""
        return self._one_shot and one_shot(call, self._resources.rank, self._resources.nranks) is not None

    def _for_program(
        self, row: Method, arguments: tuple[Any, ...], arrays: Arrays, algorithm: str | Algorithm | None
    ) -> "tuple[_OnGpu, Call] | None":
        """Return the call, if a program for GPU memory runs it."""
        if (
            self._by_host
            or algorithm == NATIVE
            or any(argument is EXACT_SUM for argument in arguments)
            or self._is_short(row, arrays)
        ):
            return None
        folds_once = self._may_fold_once(row, algorithm)
        on_gpu = self._lift(row, arguments, arrays, folds_once=folds_once)
        call = on_gpu.describe()
        if call is None:
            return None
        nbytes = self._planner.known_nbytes(call)
        small = nbytes is not None and nbytes <= SHORT_NBYTES and self._picks and not self._by_kernel(call)
        return None if small else (on_gpu, call)

    def _is_short(self, row: Method, arrays: Arrays) -> bool:
        """Say whether a look at the arrays tells that the call runs by the host's way; describing it, which takes longer, says the same."""
        tells = (
            self._picks and row.name not in _UNTOLD and not (self._one_shot and row.collective in COLLECTIVES)
        )
        graph = self._resources.caller.graph() if row.neighbours else None
        most = self._resources.nranks if graph is None else graph.degree
        return tells and most * max(array.nbytes for array in arrays.values()) <= SHORT_NBYTES

    def _lift(self, row: Method, arguments: tuple[Any, ...], arrays: Arrays, *, folds_once: bool) -> "_OnGpu":
        """Return the call on copies of its host arrays on the GPU, and of an array with gaps that is sent."""
        resources, gpu = self._resources, gpu_of(next(iter(arrays.values())).ordinal)
        theirs, fills, received = list(arguments), list[Launch](), None
        sent_at, received_at = row.buffers(arguments, resources.rank)
        for position in {sent_at, received_at} - {None}:
            assert position is not None
            array = arrays.get(position)
            if array is None:
                theirs[position], lift = staging.lifted(gpu, arguments[position])
                if lift is not None:
                    fills.append(lift.fill)
                    received = lift if position == received_at else received
            elif (
                not array.order
                and position != received_at
                and buffer_of(arguments[position]) is arguments[position]
            ):
                packed = staging.pack(gpu, array)
                fills.append(packed.fill)
                memory = packed.memory
                theirs[position] = KnownArray(
                    array._replace(pointer=memory.address, strides=None, owner=memory)
                )

        def describe() -> Call | None:
            call = row.describe(resources.caller, *theirs)
            if call is None or call.op is None:
                return call
            return staging.reduction(call, resources.nranks, one_fold=folds_once)

        return _OnGpu(gpu, describe, fills, received)

    def _describe_mirrored(
        self, row: Method, arguments: tuple[Any, ...], asked: BeginningCall
    ) -> Call | None:
        """Describe a call anew, with the streams and the data of now."""
        mirror = mirror_of(row.name, arguments, asked.stream, self._resources.rank)
        assert mirror is not None
        mirror.fetch()
        call = self._planner.describe(row, mirror.arguments, asked)
        return None if call is None else _mirrored(call, mirror)

    def _launching(
        self,
        call: Call,
        routes: Gpus,
        spans: list[tuple[int, int]],
        streams: set[int],
        on_gpu: "_OnGpu | None" = None,
    ) -> Call:
        """Return a call on arrays of some spans, behind streams, with the kernels that are launched before and after it."""
        gpu, (first, *others) = routes.gpu, streams
        call = staging.settled(call, gpu, self._resources.rank)
        launches, finish = call.before, call.finish
        if on_gpu is not None:
            launches = *on_gpu.fills, *launches
            received = on_gpu.received
            finish = finish if received is None else staging.finisher(gpu, [received.bring_home], finish)

        def start(engine: Any) -> None:
            with gpu.entered():
                for other in others:
                    gpu.order(first, other)
                for launch in launches:
                    launch(first)
                engine.after(first)

        exported = routes.exported(call, spans)
        call = call._replace(start=start, finish=finish, exported=exported, gpus=routes.gpus)
        return call._replace(native=False, as_given=False)

    def routes(self, gpu: Gpu) -> Gpus:
        """Return the routes between the GPUs; collective when first asked for.

        Raises:
            ArgumentError: they are those of another GPU.
        """
        resources = self._resources
        if self._routes is None:
            self._routes = Gpus(resources, gpu)
        mine = self._routes.gpu.ordinal
        if gpu.ordinal != mine:
            raise ArgumentError(
                f"rank {resources.rank}: this communicator uses GPU {mine}, got an array on GPU {gpu.ordinal}: use one each"
            )
        return self._routes

    def array(self, form: ArrayForm) -> Any:
        """Return an array in symmetric GPU memory; collective.

        Raises:
            ArgumentError: on every rank, where some rank has no GPU or no memory on it.
        """
        resources = self._resources
        driver = cuda.driver() if cuda.is_likely() else None
        if not resources.service_collectives.everywhere(
            np.array([driver is not None]), Purpose.GPU, f"an array in GPU memory with {form}"
        )[0]:
            raise ArgumentError(
                f"rank {resources.rank}: device 'cuda' needs a GPU on every rank"
                + ("" if driver else ", got none here")
            )
        assert driver is not None
        ordinal = driver.current_ordinal()
        gpu = gpu_of(local_device(resources.native) if ordinal is None else ordinal)
        routes = None if self._by_host else self.routes(gpu)
        return array_over(
            Memory(gpu, form.nbytes) if routes is None else routes.symmetric(form.nbytes),
            form.shape,
            form.dtype,
        )


def _mirrored(call: Call, mirror: Mirror) -> Call:
    """Return a call on a mirror, which brings the results home when it ends."""
    first, store = call.finish, mirror.store

    def finish() -> None:
        if first is not None:
            first()
        store()

    return call._replace(finish=finish, as_given=False, keep=(*call.keep, mirror), mirrored=True)


def _is_bare(call: Call | None) -> bool:
    """Say whether a one-shot kernel is all that a call is."""
    return call is not None and call.one_shot and call.finish is None and not call.before


class _OnGpu(NamedTuple):
    """A call on GPU arrays, and on copies on the GPU of its host arrays.

    Attributes:
        gpu: Where it runs.
        describe: Describes it.
        fills: Launches that fill the copies.
        received: The copy of a host array that is received into, or None.
    """

    gpu: Gpu
    describe: Callable[[], Call | None]
    fills: Sequence[Launch]
    received: Lifted | None
