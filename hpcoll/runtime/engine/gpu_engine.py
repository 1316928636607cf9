"""The engine for arrays in GPU memory: a program bound to streams, events, a kernel and scratch."""

import weakref
from collections.abc import Sequence

import numpy as np

from hpcoll.base.errors import DeviceError, HpcollError
from hpcoll.kernels import MAX_DESTINATIONS, MAX_SOURCES
from hpcoll.kernels.one_shot_layout import NPARAMETERS
from hpcoll.runtime.engine.entry import advance_address
from hpcoll.runtime.engine.host_engine import Binding, HostEngine
from hpcoll.runtime.engine.wait_policy import WaitPolicy
from hpcoll.runtime.gpu.channel import Channel
from hpcoll.runtime.gpu.device import Gpu, Memory, Temporary, kernels, release
from hpcoll.runtime.gpu.ipc import Directory
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import Program
from hpcoll.runtime.transports.mpi import Library

# destinations and their number, sources and their number, count
_NPARAMETERS = MAX_DESTINATIONS + MAX_SOURCES + 3
_WORD = (1 << 63) - 1
_LONGER = 40  # how much a pass that asks the driver for an event takes, in passes that look at memory: a microsecond or so; not measured


def asking_the_driver(wait_policy: WaitPolicy) -> WaitPolicy:
    """Return the wait policy where passes ask the driver for events: a rank keeps its core for about as long, in fewer passes."""
    return wait_policy._replace(
        stays=max(wait_policy.stays // _LONGER, min(wait_policy.spins, wait_policy.stays)),
        lingers=max(1, wait_policy.lingers // _LONGER),
    )


class GpuEngine(HostEngine):
    """A GPU program, ready to run on any GPU buffers of its sizes.

    ``function`` is the handle of its reduction kernel, or 0; it uses the streams of the message context of that number.
    """

    def __init__(
        self,
        program: Program,
        library: Library,
        wait_policy: WaitPolicy,
        binding: Binding,
        function: int,
        gpu: Gpu,
        message_context: int,
        directory: Directory | None,
    ) -> None:
        super().__init__(program, library, asking_the_driver(wait_policy), binding)
        self.gpu, self._directory = gpu, directory
        self._channel: Channel | None = None
        gpu.enter()
        self._streams = np.array(gpu.streams(message_context, program.window), np.uint64)
        self._events = np.array(
            [gpu.driver.event() for _ in range(program.window * program.nevents)], np.uint64
        )
        weakref.finalize(self, release, gpu, "cuEventDestroy_v2", self._events.tolist()).atexit = False
        self._events[:: program.nevents] = self._events[0]
        self._values = np.zeros(_NPARAMETERS, np.int64)
        self._parameters = self._values.ctypes.data + 8 * np.arange(_NPARAMETERS, dtype=np.int64)
        self._pinned = (
            Memory(gpu, program.window * program.pinned_nbytes, pinned=True)
            if program.pinned_nbytes
            else None
        )
        self._table = np.zeros(f.GPU_NFIELDS, np.int64)
        driver = gpu.driver
        fields = {
            f.CONTEXT: gpu.context,
            f.SET_CURRENT: driver.address("cuCtxSetCurrent"),
            f.GET_CURRENT: driver.address("cuCtxGetCurrent"),
            f.COPY_ASYNC: driver.address("cuMemcpyAsync"),
            f.LAUNCH: driver.address("cuLaunchKernel"),
            f.RECORD_EVENT: driver.address("cuEventRecord"),
            f.QUERY_EVENT: driver.address("cuEventQuery"),
            f.WAIT_EVENT: driver.address("cuStreamWaitEvent"),
            f.FUNCTION: function,
            f.STREAMS: self._streams.ctypes.data,
            f.NSTREAMS: len(self._streams),
            f.EVENTS: self._events.ctypes.data,
            f.NEVENTS: program.nevents,
            f.MOST_BLOCKS: gpu.most_blocks,
            f.BLOCK_THREADS: kernels().BLOCK,
            f.PARAMETERS: self._parameters.ctypes.data,
            f.VALUES: self._values.ctypes.data,
            f.PINNED: self._pinned.address if self._pinned else 0,
            f.PINNED_PER_LANE: program.pinned_nbytes,
            **(directory.fields if directory else {}),
        }
        for field, value in fields.items():
            self._table[field] = value
        # its steps only begin work, and are not noted
        self.state[f.GPU], self.state[f.ADVANCE] = (
            self._table.ctypes.data,
            advance_address,
        )

    def bind_one_shot(self, function: int, channel: Channel, values: Sequence[int]) -> None:
        """Let the program launch a one-shot kernel on a channel; ``values`` are its parameters from ``nbytes`` to ``part``."""
        self._channel = channel
        self._values[0], self._values[3 : 3 + len(values)] = channel.address, values
        self._table[f.FUNCTION], self._table[f.STOP] = function, channel.stop.ctypes.data

    @property
    def first_event(self) -> int:
        """The handle of the event that is recorded behind the caller's earlier work."""
        return int(self._events[0])

    def capture(self, stream: int, source: int, target: int) -> None:
        """Put the one-shot kernel on a stream that is captured into a graph."""
        assert self._channel is not None
        signature, counts = self.signed
        check = (signature ^ counts * f.SPREAD) & _WORD  # of this call alone, in every launch of the graph
        source += int(self.program.rows[0, f.DISPL])
        values = [self._channel.address, source, target, *self._values[3 : NPARAMETERS - 1].tolist(), check]
        grid = int(self.program.rows[0, f.GRID])
        with self.gpu.entered():
            self.gpu.launch(int(self._table[f.FUNCTION]), values, grid, kernels().BLOCK, stream)

    def unmet(self) -> set[int]:
        """Return the ranks that the one-shot kernel waits for."""
        return set() if self._channel is None else self._channel.missing()

    def stop(self, most_s: float) -> bool:
        """End a one-shot kernel that waits for other ranks, and do as `HostEngine.stop`."""
        if self._channel is not None:
            self._channel.stop[0] = 1
        return super().stop(most_s)

    def after(self, stream: int) -> None:
        """Let the next run start when the work that is on a stream of the current context by now has ended."""
        self.gpu.driver("cuEventRecord", self.first_event, stream)

    def fresh(self, nbytes: int) -> Temporary:
        """Return new GPU memory for `bind_scratch`."""
        return self.gpu.temporary(nbytes)

    def bind_scratch(self, memory: Temporary) -> None:  # type: ignore[override]
        """Use memory as scratch, and export it to local peers."""
        self.scratch = memory  # type: ignore[assignment]
        self.state[f.SCRATCH] = memory.address
        directory = self._directory
        if (
            directory is not None
            and directory.readers
            and not directory.export(memory.address, memory.nbytes, reserved=True)
        ):
            raise DeviceError(f"scratch memory cannot be exported: {directory.problem}")

    def failure(self) -> HpcollError:
        """Return the error that a run which failed raises: of the driver, or as `HostEngine.failure`."""
        if self.error < 0:
            return DeviceError(
                f"the CUDA driver failed with {self.gpu.driver.error_name(-self.error)}", code=-self.error
            )
        if self.error == f.UNMAPPED:
            return DeviceError(
                f"GPU memory of a rank of this node cannot be mapped: {self._directory.problem if self._directory else ''}"
            )
        return super().failure()
