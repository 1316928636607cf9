"""Engines of blocking calls: those of each plan, with scratch that they share where it is large."""

from typing import Any

from hpcoll.comm.arguments.call import Call
from hpcoll.comm.plans.plan import MOST_ENGINES, MessageContext, Plan, addressed
from hpcoll.runtime.engine.entry import RUN, call_compiled
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program.fields import AS_BEFORE, NO_ROOM, UNFIT

_OWN_SCRATCH = 64 << 10  # bytes; engines that need more share one memory, for only one of them runs at a time


class EnginePool:
    """Engines by plan, made when first needed."""

    def __init__(self) -> None:
        self._engines: dict[tuple[int, int], list[HostEngine]] = {}  # by id of the plan and message context, the latest first
        self._shared: dict[type, Any] = {}  # scratch by kind of engine

    def run(self, plan: Plan, call: Call, context: MessageContext) -> tuple[HostEngine, int]:
        """Run a call by an engine of its plan, whose messages travel on a message context; the engine, and what it answered."""
        key = id(plan), context.index
        engines = self._engines.get(key, [])
        counts = addressed(call.counts)
        for i, engine in enumerate(engines):
            status = self._try(engine, call, counts.buffer_info()[0])
            if status != UNFIT:
                engines.insert(0, engines.pop(i))
                return engine, status
        engine = plan.build(call, context)
        self._bind(engine, engine.scratch_nbytes)
        if plan.kept:
            self._engines[key] = [engine, *engines[: MOST_ENGINES - 1]]
        return engine, self._try(engine, call, AS_BEFORE)

    def _try(self, engine: HostEngine, call: Call, counts: int) -> int:
        if call.start is not None:
            call.start(engine)
        status: int = call_compiled(RUN, engine.address, call.send, call.recv, counts)
        while status == NO_ROOM:
            needed = engine.make_room()
            if needed:
                self._bind(engine, 2 * needed if needed <= _OWN_SCRATCH // 2 else needed)
            status = call_compiled(RUN, engine.address, call.send, call.recv, counts)
        return status

    def _bind(self, engine: HostEngine, nbytes: int) -> None:
        """Give an engine scratch: its own, or what engines of one kind have in common, made large enough."""
        if nbytes <= _OWN_SCRATCH:
            engine.bind_scratch(engine.fresh(nbytes))
            return
        memory = self._shared.get(type(engine))
        if memory is None or memory.nbytes < nbytes:
            before, memory = memory, engine.fresh(nbytes)
            self._shared[type(engine)] = memory
            for engines in self._engines.values():
                for other in engines:
                    if before is not None and other.scratch is before:
                        other.bind_scratch(memory)
        engine.bind_scratch(memory)

    def made(self) -> list[HostEngine]:
        """Those there are."""
        return [engine for engines in self._engines.values() for engine in engines]

    def forget(self) -> None:
        """Drop the engines."""
        self._engines.clear()

    def free(self) -> None:
        """Drop the engines and the memory that they share."""
        self.forget()
        self._shared.clear()
