"""Flow control of shared-memory rings: the step at which the receiver of a message frees its ring slot.

Ranks of a node exchange messages in rings of `ir.RING_SLOTS` slots, one ring per ordered pair of ranks and channel. A message takes a slot
when it is sent, and frees it when its receiver has used it. A send that finds no free slot waits, and its channel with it.

    RING_SLOTS = 2          0: send a   send b   send c (waits)              send c
                       1:                           recv a (frees)               recv b   recv c

A reduction may read received data in its slot. So the messages that one reduction reads are used, and their slots free, when it ends:

    recv   send   recv   recv   reduce   recv_reduce(-> x)   recv_reduce(-> x)   recv_reduce(-> y)
    0      -      4      4      -        6                   6                   7                    used when this step ends

Segments that follow one another in a ring need no proof of their own: a message waits for earlier messages only, and all messages of the
earlier segment are used without any step of the later one.
"""

from collections.abc import Sequence

from hpcoll.schedules.ir import Op, Step

_SEND, _RECV_REDUCE, _COPY, _REDUCE = Op.SEND, Op.RECV_REDUCE, Op.COPY, Op.REDUCE


def used_at(steps: Sequence[Step]) -> list[int]:
    """Return, for each step of a channel, the step at whose end its received message has been used.

    That is the step itself, or the end of its run. Receives directly before REDUCE steps are one run with them, whatever the REDUCE reads,
    since nothing is used later than that. Elsewhere consecutive RECV_REDUCE steps into one chunk are a run.
    """
    ends = list(range(len(steps)))
    following, reduced, end = None, False, 0  # the next step, whether its run ends with a REDUCE, and the end of its run
    for i in range(len(steps) - 1, -1, -1):
        step = steps[i]
        op = step.op
        if following is None or op is _SEND or op is _COPY:
            joins = False
        elif op is _REDUCE:
            joins = following.op is _REDUCE
        else:
            joins = reduced or (op is following.op is _RECV_REDUCE and step.dst == following.dst)
        if joins:
            ends[i] = end
        else:
            reduced, end = op is _REDUCE, i
        following = step
    return ends
