"""Engines of blocking calls: one per plan, with scratch that they share where it is large."""

from typing import Any

from hpcoll.comm.plan import MessageContext, Plan
from hpcoll.runtime.engine.host_engine import HostEngine

_OWN_SCRATCH = 64 << 10  # bytes; engines that need more share one memory, for only one of them runs at a time


class BlockingEngines:
    """Engines by plan, made when first asked for."""

    def __init__(self) -> None:
        self._engines: dict[int, HostEngine] = {}  # by id of the plan
        self._shared: dict[type, Any] = {}  # scratch by kind of engine

    def __contains__(self, plan: Plan) -> bool:
        """Whether the engine of a plan is kept."""
        return id(plan) in self._engines

    def engine(self, plan: Plan, context: MessageContext) -> HostEngine:
        """The plan's engine, ready to run; its messages travel on a message context."""
        engine = self._engines.get(id(plan))
        if engine is None:
            engine = plan.build(context)
            if engine.scratch_nbytes <= _OWN_SCRATCH:
                engine.bind_scratch(engine.fresh(engine.scratch_nbytes))
            else:
                self._share(engine)
            if plan.kept:
                self._engines[id(plan)] = engine
        return engine

    def _share(self, engine: HostEngine) -> None:
        """Bind the scratch that engines of one kind have in common, made large enough."""
        kind = type(engine)
        memory = self._shared.get(kind)
        if memory is None or memory.nbytes < engine.scratch_nbytes:
            memory = self._shared[kind] = engine.fresh(engine.scratch_nbytes)
            for other in self._engines.values():
                if type(other) is kind and other.scratch_nbytes > _OWN_SCRATCH:
                    other.bind_scratch(memory)
        engine.bind_scratch(memory)

    def forget(self) -> None:
        """Drop the engines."""
        self._engines.clear()

    def free(self) -> None:
        """Drop the engines and the memory that they share."""
        self.forget()
        self._shared.clear()
