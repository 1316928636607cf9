"""The slots of shared-memory rings: the step at which a receiver frees one, and the proof that a put waits only for its receiver to begin.

Ranks of a node exchange messages in rings of `ir.RING_SLOTS` slots, one ring per ordered pair of ranks and channel. A message takes a slot
when it is sent, and frees it when its receiver has used it. A send that finds no free slot waits, and its channel with it.

    RING_SLOTS = 2          0: send a   send b   send c (waits)              send c
                       1:                           recv a (frees)               recv b   recv c

A reduction may read received data in its slot. So the messages that one reduction reads are used, and their slots free, when it ends:

    recv   send   recv   recv   reduce   recv_reduce(-> x)   recv_reduce(-> x)   recv_reduce(-> y)
    0      -      4      4      -        6                   6                   7                    used when this step ends

Segments that follow one another in a ring need no proof of their own: a message waits for earlier messages only, and all messages of the
earlier segment are used without any step of the later one.

At the start the receiver of a put tells its sender where to write. That announcement takes a slot in the ring for messages to that rank:

    rank 0: send(1, input[1])    recv(1, input[0])   reduce   send(1, output[0], put)   recv(1, output[1], put)
    to 1:   message, memory for output[1]                     1 uses them by its recv and its send with put

So both ranks must name messages and announcements in one order, the ring must have room for all, and no other step may use that memory
before the put.
"""

from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter

from hpcoll.base.errors import ScheduleError
from hpcoll.schedules.ir import RING_SLOTS, Buffer, Chunk, Op, Schedule, Step

_SEND, _RECV, _RECV_REDUCE, _REDUCE = Op.SEND, Op.RECV, Op.RECV_REDUCE, Op.REDUCE
_INPUT, _OUTPUT = Buffer.INPUT, Buffer.OUTPUT
_put = attrgetter("put")
_MESSAGE, _MEMORY = "a message", "memory for a put"


def check_puts(schedules: Sequence[Schedule]) -> None:
    """Refuse puts that could wait, or that only one end knows of, in the schedules of all ranks, which are in rank order.

    The ScheduleError names the rank, and the step if one step is wrong.
    """
    if not any(any(map(_put, steps)) for s in schedules for steps in s.channels):
        return
    announced: dict[tuple[int, int, int], list[str]] = defaultdict(list)  # channel, from, to
    used: dict[tuple[int, int, int], list[str]] = defaultdict(list)
    # ``put`` of sends, and of their receives
    flags: dict[tuple[int, int, int], list[list[bool]]] = defaultdict(lambda: [[], []])
    for s in schedules:
        for channel, steps in enumerate(s.channels):
            _check_memory(s, channel)
            for op, peer, _, _, _, put, _ in steps:
                to, back = (channel, s.rank, peer), (channel, peer, s.rank)
                if op is _SEND:
                    flags[to][0].append(put)
                    (used[back] if put else announced[to]).append(_MEMORY if put else _MESSAGE)
                elif op is _RECV or op is _RECV_REDUCE:
                    flags[back][1].append(put)
                    (announced[to] if put else used[back]).append(_MEMORY if put else _MESSAGE)
    for (channel, source, target), (sent, received) in flags.items():
        if sent != received:
            raise ScheduleError(
                f"of messages to rank {target} in channel {channel} one end puts and the other does not know",
                rank=source,
            )
    for (channel, source, target), texts in announced.items():
        if _MEMORY in texts and texts != used[channel, source, target]:
            theirs = used[channel, source, target]
            raise ScheduleError(
                f"tells rank {target} in channel {channel} of {texts}, which uses {theirs}", rank=source
            )
        if _MEMORY in texts and len(texts) > RING_SLOTS:
            what = f"tells rank {target} of {len(texts)} things in channel {channel}, and a ring has {RING_SLOTS} slots"
            raise ScheduleError(what, rank=source)


def _check_memory(s: Schedule, channel: int) -> None:
    """Refuse a put into memory that earlier steps use for more than sends to its sender."""
    find_aliases = s.meaning.aliases
    aliases = dict(find_aliases(s.rank, s.nranks, s.root, s.nchunks)) if find_aliases else {}
    users: dict[int, int] = {}  # cell -> the only peer that it was sent to, -1 for other uses
    for index, step in enumerate(s.channels[channel]):
        user = step.peer if step.op is _SEND else -1
        for run in step.runs:
            for cell in _cells(run, aliases):
                if step.put and step.op is _RECV and users.get(cell, step.peer) != step.peer:
                    what = "a put into what was used before, for more than a message to its sender"
                    raise ScheduleError(what, rank=s.rank, step=index, op=str(step))
                users[cell] = user if users.get(cell, user) == user else -1


def _cells(run: Chunk, aliases: dict[int, int]) -> list[int]:
    """Return a number for each cell of a run; a cell of INPUT that is one of OUTPUT in place has the number of that."""
    buffer, first, n = run
    if buffer is _INPUT and aliases:
        return [3 * aliases[i] + _OUTPUT if i in aliases else 3 * i for i in range(first, first + n)]
    return list(range(3 * first + buffer, 3 * (first + n) + buffer, 3))


def used_at(steps: Sequence[Step]) -> list[int]:
    """Return, for each step of a channel, the step at whose end its received message has been used.

    That is the step itself, or the end of its run. Receives directly before a REDUCE step are one run with it, whatever it reads, since
    nothing is used later than that. Elsewhere consecutive RECV_REDUCE steps into one chunk are a run.
    """
    ends = list(range(len(steps)))
    # the next step, whether it is a REDUCE or a receive in its run, and the end of its run
    following, reduced, end = (
        None,
        False,
        0,
    )
    for i in range(len(steps) - 1, -1, -1):
        step = steps[i]
        op = step.op
        joins = (
            reduced
            if op is _RECV
            else following is not None and op is following.op is _RECV_REDUCE and step.dst == following.dst
        )
        if joins:
            ends[i] = end
        else:
            reduced, end = op is _REDUCE, i
        following = step
    return ends
