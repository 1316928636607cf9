"""Steps of calls in a trace: the rows of programs that ranks have run, each a slice on a row below that of its call."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcoll.base.text import format_nbytes
from hpcoll.comm.plans.plan import MessageContext
from hpcoll.comm.team.resources import Resources
from hpcoll.comm.telemetry.trace_lines import line, lines, thousandths, whole
from hpcoll.comm.telemetry.trace_rows import MIX, Lines, slice_form
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import Code

_BATCH = 8192  # steps that are formatted at once
_CODE, _SEGMENT = (1 << f.STEP_SEGMENT_AT) - 1, (1 << f.STEP_PEER_AT - f.STEP_SEGMENT_AT) - 1
_KINDS = {  # of an operation: its kind, and its name
    Code.RECV: ("receive", "receive{nbytes} from {peer}"),
    Code.SEND: ("send", "send{nbytes} to {peer}"),
    Code.POST: ("send", "send{nbytes} to {peer}"),
    Code.WAIT: ("wait", "wait for {peer}"),
    Code.AWAIT: ("wait", "wait for {peer}"),
    Code.DRAIN: ("wait", "wait until {peer} has read"),
    Code.UNREAD: ("wait", "wait until {peer} has read"),
    Code.RESERVE: ("wait", "wait for room"),
    Code.COPY: ("copy", "copy{nbytes}"),
    Code.STAGE: ("copy", "copy{nbytes}"),
    Code.REDUCE: ("reduce", "reduce{nbytes}"),
}


class StepRow:
    """The row of the steps of calls on a message context.

    Args:
        at: Where the row is, as fields of an event.
        common: Returns times of this host on the clock of all hosts.
    """

    def __init__(self, at: dict[str, Any], common: Callable[[np.ndarray], np.ndarray]) -> None:
        self.at, self._common, self._lost = at, common, 0

    def lines(self, resources: Resources, on: MessageContext) -> Lines:
        """Return the steps that have ended and were not returned before, and how many found no room meanwhile."""
        steps, found = on.log.take_steps(), Lines()
        for at in range(0, len(steps), _BATCH):
            found.append(self._slices(resources, on, steps[at : at + _BATCH]))
        lost = on.log.lost_steps - self._lost
        if lost and len(steps):
            self._lost += lost
            ts = int(self._common(steps[-1:, f.STEP_END])[0]) / 1000
            found.append(
                line(
                    ph="i",
                    s="t",
                    cat="missing steps",
                    name=f"{lost} steps are missing",
                    **self.at,
                    ts=ts,
                    args={"steps": lost},
                )
            )
        return found

    def _slices(self, resources: Resources, on: MessageContext, steps: np.ndarray) -> np.ndarray:
        what, nbytes = steps[:, f.STEP_WHAT], steps[:, f.STEP_NBYTES]
        _, first, which = np.unique(what ^ nbytes * MIX[0], return_index=True, return_inverse=True)
        forms = [self._form(resources, on, int(what[i]), int(nbytes[i])) for i in first]
        begin, took = self._common(steps[:, f.STEP_BEGIN]), steps[:, f.STEP_END] - steps[:, f.STEP_BEGIN]
        return lines(forms, which, whole(steps[:, f.STEP_CALL]), thousandths(begin), thousandths(took))

    def _form(self, resources: Resources, on: MessageContext, what: int, nbytes: int) -> tuple[bytes, ...]:
        code, segment, peer = (
            what & _CODE,
            (what >> f.STEP_SEGMENT_AT & _SEGMENT) - 1,
            (what >> f.STEP_PEER_AT) - 1,
        )
        kind, text = _KINDS[Code(code)]
        if peer >= 0:
            rank = (
                peer
                if code < Code.STAGE
                else next(rank for rank, local in on.local_peers.items() if local == peer)
            )
            peer = resources.team.world_ranks[rank]
        size = f" {format_nbytes(nbytes)}" if nbytes >= 0 else ""
        name = text.format(nbytes=size, peer=peer) + (f" segment {segment}" if segment >= 0 else "")
        known = {"kind": kind, "peer": peer, "segment": segment, "bytes": nbytes}
        known = {name: value for name, value in known.items() if value != -1}
        return slice_form({"cat": "step", "name": name, **self.at, "args": known}, numbered=True)
