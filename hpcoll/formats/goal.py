"""Schedules as GOAL, the input of LogGOPSim and ATLAHS: sends, receives and calculations of each rank, and which of them need which.

GOAL has bytes and no data. A chunk has its share of the message, and a message at least one byte. A reduction is a ``calc``, a copy takes
no time, as in hpcoll's own simulation.
"""

from collections.abc import Iterator, Sequence

from hpcoll.base.errors import ArgumentError
from hpcoll.schedules.ir import Op, Schedule, cells_of

LONGEST = 1e9  # time units for a byte


def goal_text(schedules: Sequence[Schedule], nbytes: int, calc: float) -> str:
    """Return the GOAL text of a call.

    Args:
        schedules: The schedules of all ranks.
        nbytes: Bytes of the whole message; for block collectives of all ranks' blocks together.
        calc: Time for combining a byte, in the simulator's units.

    Raises:
        ArgumentError: there are no bytes, or the time is none.
    """
    if nbytes < 1 or not 0 <= calc < LONGEST:
        raise ArgumentError(
            f"GOAL needs a message of at least 1 byte, and a time from 0 to {LONGEST:g} for each, got {nbytes} and {calc}"
        )
    lines = [f"num_ranks {len(schedules)}"]
    for s in schedules:
        lines += ["", f"rank {s.rank} {{", *_rank_lines(s, nbytes / s.nchunks, calc), "}"]
    return "\n".join(lines) + "\n"


def _rank_lines(s: Schedule, chunk: float, calc: float) -> Iterator[str]:
    """Write a rank's operations, ``l0``, ``l1``, ..., and their dependencies; ``chunk``: bytes of one.

    A step needs the last receive or local step of its channel. A send needs besides that the one before it has begun. A step that
    overwrites a chunk needs the last send of that chunk.
    """
    starts, total, orders = [], 0, list[str]()  # labels must stand before the orders that name them
    for steps in s.channels:
        starts.append(total)
        total += sum(1 + (step.op is Op.RECV_REDUCE) for step in steps)
    for channel, steps in enumerate(s.channels):
        link, label = s.links[channel] if s.links else channel, starts[channel]
        blocking, sending, sent = -1, -1, dict[tuple[int, int], int]()
        for step in steps:
            needs = {blocking}
            nbytes = max(1, round(chunk * (step.dst or step.srcs[0]).n)) if step.op is not Op.AFTER else 0
            if step.op is Op.SEND:
                yield f"l{label}: send {nbytes}b to {step.peer} tag {link}"
                if sending >= 0:
                    orders.append(f"l{label} irequires l{sending}")
                sent.update(dict.fromkeys(cells_of(step.srcs[0]), label))
                sending = label
            elif step.op in (Op.RECV, Op.RECV_REDUCE):
                yield f"l{label}: recv {nbytes}b from {step.peer} tag {link}"
            else:
                work = nbytes * (len(step.srcs) - 1) if step.op is Op.REDUCE else 0
                yield f"l{label}: calc {round(work * calc)}"
            if step.dst:
                needs |= {sent.get(cell, -1) for cell in cells_of(step.dst)}
            if step.op is Op.AFTER:
                begun, needed = _passed(s, step.after, starts)
                needs.add(needed)
                if begun >= 0:
                    orders.append(f"l{label} irequires l{begun}")
            orders += [f"l{label} requires l{need}" for need in sorted(needs - {-1})]
            if step.op is Op.RECV_REDUCE:
                yield f"l{label + 1}: calc {round(nbytes * calc)}"
                orders.append(f"l{label + 1} requires l{label}")
                label += 1
            if step.op is not Op.SEND:
                blocking = label
            label += 1
    yield from orders


def _passed(s: Schedule, after: tuple[int, int], starts: Sequence[int]) -> tuple[int, int]:
    """Return the labels of the last send and of the last other step among the steps that an AFTER waits for; -1: none."""
    channel, count = after
    label, begun, needed = starts[channel], -1, -1
    for step in s.channels[channel][:count]:
        label += step.op is Op.RECV_REDUCE
        if step.op is Op.SEND:
            begun = label
        else:
            needed = label
        label += 1
    return begun, needed
