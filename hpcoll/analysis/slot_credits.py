"""Flow control of shared-memory rings: when the receiver of a message gives its ring slot back to the sender.

Ranks of a node hand each other messages in rings of `ir.RING_SLOTS` slots, one ring per ordered pair and channel. A message takes
a slot when it is sent and frees it when its receiver has used it; a send that finds no free slot waits, and its channel with it.

    RING_SLOTS = 2          0: send a   send b   send c (waits)              send c
                       1:                           recv a (frees)               recv b   recv c

Received data may be reduced where it lies. So messages that one reduction reads are used, and their slots free, when it ends:

    recv   send   recv   recv   reduce   recv_reduce(-> x)   recv_reduce(-> x)   recv_reduce(-> y)
    0      -      4      4      -        6                   6                   7                    used when this step ends

Segments that run one after another in one ring need no proof of their own: a message waits for earlier ones only, and all messages
of the earlier segment are used without any step of the later one.
"""

from collections.abc import Sequence

from hpcoll.schedules.ir import Op, Step

_SEND, _RECV_REDUCE, _COPY, _REDUCE = Op.SEND, Op.RECV_REDUCE, Op.COPY, Op.REDUCE


def used_at(steps: Sequence[Step]) -> list[int]:
    """Per step of a channel the one at whose end the message that it receives has been used: itself, or where its run ends.

    Receives directly in front of one or more REDUCE steps are one run with them, whatever the REDUCE reads: nothing is used later
    than that. Elsewhere RECV_REDUCE steps in a row into one chunk are one.
    """
    ends = list(range(len(steps)))
    following, reduced, end = None, False, 0  # the step behind, whether its run ends with a REDUCE, and where its run ends
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
