"""The C functions about work: copies, kernels, streams and events."""

from __future__ import annotations

import ctypes
from itertools import count
from typing import TYPE_CHECKING, Any

from cuda_double import kernels
from cuda_double.calls import Calls
from cuda_double.failures import (
    ILLEGAL_ADDRESS,
    INVALID_HANDLE,
    INVALID_PTX,
    INVALID_VALUE,
    NOT_FOUND,
    NOT_READY,
    require,
)
from cuda_double.streams import Event, Stream

if TYPE_CHECKING:
    from cuda_double.double import Double

_MAX_THREADS = 1024


class WorkCalls(Calls):
    """Functions that queue work, and that wait for it."""

    def __init__(self, double: Double) -> None:
        super().__init__(double)
        self._modules: dict[int, dict[str, list[str]]] = {}
        self._functions: dict[int, tuple[str, list[str], int]] = {}
        self._events: dict[int, Event] = {}
        self._handles = count(0x52000010, 0x10)

    def _stream(self, handle: int | None) -> Stream:
        return self.streams.get(handle or 0, self._ordinal() if self.streams.is_default(handle or 0) else 0)

    def _event(self, handle: int | None) -> Event:
        require(handle in self._events, INVALID_HANDLE, f"no event {handle or 0:#x}")
        return self._events[handle or 0]

    def _add(self, table: dict[int, Any], value: Any) -> int:
        handle = next(self._handles)
        table[handle] = value
        return handle

    def cuMemcpyAsync(self, target: int, source: int, nbytes: int, stream: int | None) -> None:
        self._ordinal()
        for address in (target, source):
            freed = self.memory.was_freed(address) and not self.memory.find(address)
            require(
                address and not freed,
                INVALID_VALUE,
                f"copies from {source:#x} to {target:#x}, {address:#x} is nobody's",
            )
            self.memory.view(address, nbytes)
        pageable_source, pageable_target = not self.memory.find(source), not self.memory.find(target)
        staged = self.memory.view(source, nbytes).copy() if pageable_source else None

        def run() -> None:
            data = self.memory.view(source, nbytes) if staged is None else staged
            self.memory.view(target, nbytes)[...] = data

        reads = () if pageable_source else ((source, source + nbytes),)
        one = self.streams.put(self._stream(stream), "copy", run, reads, ((target, target + nbytes),))
        if pageable_target:
            self.streams.finish(one)

    def cuMemsetD8Async(self, target: int, value: int, nbytes: int, stream: int | None) -> None:
        self.memory.check_reach(target, nbytes, self._ordinal())
        self.streams.put(
            self._stream(stream),
            "fill",
            lambda: self.memory.view(target, nbytes).fill(value),
            writes=((target, target + nbytes),),
        )

    def cuModuleLoadData(self, module: Any, image: int) -> None:
        self._ordinal()
        text = ctypes.string_at(image).decode()
        require(".version" in text and ".target" in text, INVALID_PTX, f"not a module: {text[:40]!r}")
        module[0] = self._add(self._modules, kernels.entries(text))

    def cuModuleGetFunction(self, function: Any, module: int | None, name: int) -> None:
        entry = ctypes.string_at(name).decode()
        require(module in self._modules, INVALID_HANDLE, f"no module {module or 0:#x}")
        entries = self._modules[module or 0]
        require(entry in entries, NOT_FOUND, f"the module has no kernel {entry}, only {list(entries)}")
        function[0] = self._add(self._functions, (entry, entries[entry], self._ordinal()))

    def cuLaunchKernel(self, function: int | None, *rest: Any) -> None:
        *shape, _shared_nbytes, handle, parameters, extra = rest
        require(function in self._functions, INVALID_HANDLE, f"no kernel {function or 0:#x}")
        entry, declared, ordinal = self._functions[function or 0]
        require(
            min(shape) > 0 and shape[3] * shape[4] * shape[5] <= _MAX_THREADS,
            INVALID_VALUE,
            f"grid and block {shape}",
        )
        require(not extra, INVALID_VALUE, "parameters in a buffer")
        self._ordinal()
        stream = self._stream(handle)
        require(
            stream.ordinal == ordinal,
            INVALID_HANDLE,
            f"{entry} of GPU {ordinal} on {stream.name} of GPU {stream.ordinal}",
        )
        values = kernels.operands(entry, parameters, declared)
        if stream.capturing:
            stream.graph.append(lambda: self._launch(entry, ordinal, stream, shape[0], values))
        else:
            self._launch(entry, ordinal, stream, shape[0], values)

    def _launch(self, entry: str, ordinal: int, stream: Stream, grid: int, values: list[int]) -> None:
        launch = kernels.launch(entry, values, self.memory, grid)
        for lo, hi in (*launch.reads, *launch.writes):
            if hi > lo:
                self.memory.check_reach(lo, hi - lo, ordinal)
        for lo, hi in launch.reads:
            for low, high in launch.writes:
                apart = hi <= low or high <= lo or (lo, hi) == (low, high) or launch.in_place
                require(
                    apart,
                    ILLEGAL_ADDRESS,
                    f"{entry} reads {lo:#x} to {hi:#x} and writes {low:#x} to {high:#x}",
                )
        self.streams.put(stream, entry, launch.run, launch.reads, launch.writes)

    def cuStreamCreate(self, stream: Any, flags: int) -> None:
        require(flags in (0, 1), INVALID_VALUE, f"flags {flags}")
        stream[0] = self.streams.create(self._ordinal(), blocking=flags == 0)

    def cuCtxGetStreamPriorityRange(self, least: Any, greatest: Any) -> None:
        self._ordinal()
        least[0], greatest[0] = 0, -5

    def cuStreamCreateWithPriority(self, stream: Any, flags: int, priority: int) -> None:
        self.cuStreamCreate(stream, flags)

    def cuStreamDestroy_v2(self, stream: int | None) -> None:
        self.streams.destroy(stream or 0)

    def cuStreamSynchronize(self, stream: int | None) -> None:
        self.streams.finish(self.streams.put(self._stream(stream), "the host's waiting"))

    def cuStreamQuery(self, stream: int | None) -> int:
        return 0 if self.streams.is_idle(self._stream(stream)) else NOT_READY

    def cuStreamWaitEvent(self, stream: int | None, event: int | None, flags: int) -> None:
        require(flags == 0, INVALID_VALUE, f"flags {flags}")
        mark = self._event(event).mark
        waiting = self._stream(stream)
        if mark:
            self.streams.put(waiting, "a wait", behind=mark)

    def cuStreamIsCapturing(self, stream: int | None, status: Any) -> None:
        status[0] = int(self._stream(stream).capturing)

    def cuEventCreate(self, event: Any, flags: int) -> None:
        require(flags < 8, INVALID_VALUE, f"flags {flags}")
        event[0] = self._add(self._events, Event(self._ordinal()))

    def cuEventDestroy_v2(self, event: int | None) -> None:
        self._event(event)
        del self._events[event or 0]

    def cuEventRecord(self, event: int | None, stream: int | None) -> None:
        one, behind = self._event(event), self._stream(stream)
        require(
            one.ordinal == behind.ordinal,
            INVALID_HANDLE,
            f"an event of GPU {one.ordinal} on {behind.name} of GPU {behind.ordinal}",
        )
        self.streams.record(one, behind)

    def cuEventQuery(self, event: int | None) -> int:
        return 0 if self.streams.query(self._event(event)) else NOT_READY

    def cuEventSynchronize(self, event: int | None) -> None:
        self.streams.finish(self._event(event).mark)
