"""Verification by symbolic execution: proof that a schedule does what its collective means. No MPI, no data, no time.

All ranks run symbolically. A value is an item and the ranks that contributed to it. A send keeps its chunk in use until the peer has
received it (rendezvous), and a step that would overwrite a chunk in use waits for that, as the lowering makes it wait. A send also takes a
ring slot until the peer has used the message (`hpcoll.analysis.ring_slots`), and waits while there is none. Ranks on different nodes have
only the first kind of waiting, ranks of a node only the second. A proof has both, so it holds for any mixture. A channel always waits for
one thing, and its speed does not change what others can do, so one run speaks for all.

A run in place speaks for the call out of place, too, unless a step or the result tells them apart: by INPUT that was overwritten, or by
OUTPUT that was not written. Else all steps read the same in both, and out of place they wait for less.

Refused are: a message without its counterpart, unequal sizes, a deadlock, a read of nothing, a contribution counted twice, a write to
INPUT, channels that share a written chunk, a put that may wait, and an OUTPUT that is not what the collective
wants. Proven besides: whether every combination kept rank order (as operators that are not commutative need), whether all ranks
computed the same expression (bit-identical results), and whether that is the canonical one (`hpcoll.base.canonical`).

Idea: pre- and postconditions over (rank, chunk) as in Microsoft's MSCCL; the in-use rule and the comparison of expressions are ours.
"""

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from typing import ClassVar, NamedTuple

from hpcoll.analysis.ring_slots import check_puts, used_at
from hpcoll.analysis.symbolic_values import RankMemory, Values
from hpcoll.base.canonical import fold
from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.base.text import counted
from hpcoll.schedules.collectives import Collective
from hpcoll.schedules.ir import RING_SLOTS, Buffer, Chunk, Op, Schedule, Step

_SOURCES = (1, 0, 1, 1, 2, 0)  # runs that each Op reads; a REDUCE may read more
# looking up members of an enum is slow
_SEND, _RECV_REDUCE, _COPY, _REDUCE = (
    Op.SEND,
    Op.RECV_REDUCE,
    Op.COPY,
    Op.REDUCE,
)
_INPUT = Buffer.INPUT
_HINT = "; a size is named by a chunk that has it: w.scratch(1) is as large as chunk 1, which may be shorter than chunk 0"


class Proof(NamedTuple):
    """The proven properties of a set of schedules."""

    messages: int  # messages that all ranks send together
    rounds: int  # longest chain of dependent messages
    ordered: bool  # every combination kept rank order
    reproducible: bool  # all ranks computed the same expression for the same item
    chunks_sent: int  # largest number of chunks that a rank sends
    canonical: bool = False  # every chunk of OUTPUT has the canonical expression of its ranks' contributions
    told_apart: bool = False  # in place a step or OUTPUT has what it would not have out of place, so this says nothing of such a call


def in_all(proofs: Sequence[Proof]) -> Proof:
    """Return the last of some proofs, with the promises that hold in all of them."""
    ordered, reproducible = (
        all(proof.ordered for proof in proofs),
        all(proof.reproducible for proof in proofs),
    )
    return proofs[-1]._replace(
        ordered=ordered, reproducible=reproducible, canonical=all(proof.canonical for proof in proofs)
    )


class ChannelRun:
    """A channel of a rank: its position, the length of its chain of messages, and whether a chunk in use or a missing slot holds it up."""

    __slots__ = (
        "depth",
        "ended",
        "followers",
        "held_up",
        "index",
        "link",
        "pc",
        "rank",
        "received",
        "steps",
        "used_at",
    )

    def __init__(self, rank: RankMemory, index: int) -> None:
        self.rank, self.index, self.steps = rank, index, rank.schedule.channels[index]
        self.link = rank.schedule.links[index] if rank.schedule.links else index
        self.pc = self.depth = 0
        self.used_at = used_at(self.steps)
        self.received: list[
            tuple[ChannelRun, Link]
        ] = []  # senders and links of messages that are not used yet
        self.followers: list[ChannelRun] = []  # channels that wait for steps of this one
        self.ended = self.held_up = False


class Link:
    """The messages under way from one rank to another in a channel, each with sender, cells, values and depth; the taken slots."""

    __slots__ = ("messages", "receiver", "slots")

    def __init__(self) -> None:
        self.messages: deque[tuple[ChannelRun, slice, list[int], int]] = deque()
        self.receiver: ChannelRun | None = None  # waits for the next one
        self.slots = 0


class Machine:
    """All ranks of a collective, run until every channel has ended or none can move."""

    memory: ClassVar[type[RankMemory]] = RankMemory

    def __init__(
        self, schedules: Sequence[Schedule], collective: Collective, in_place: bool, uniform: bool, slots: int
    ) -> None:
        self.collective, self.slots = collective, slots
        self.values = Values(self.collective.idempotent)
        self.ranks = [self.memory(s, self.collective, self.values, in_place, uniform) for s in schedules]
        self.channels = [
            ChannelRun(rank, c) for rank in self.ranks for c in range(len(rank.schedule.channels))
        ]
        self.ready = deque(self.channels)
        self.links: dict[tuple[int, int, int], Link] = defaultdict(Link)  # by (sender, receiver, link)
        self.nranks, self.messages = len(schedules), 0

    def run_channels(self) -> None:
        """Run every channel to its end."""
        while self.ready:
            channel = self.ready.popleft()
            start = channel.pc
            try:
                for pc in range(start, len(channel.steps)):
                    channel.pc = pc
                    if not self._execute(channel, channel.steps[pc]):
                        break
                else:
                    channel.ended = True
            except ArgumentError:
                raise
            except (ValueError, TypeError) as error:  # TypeError: an index is no integer
                raise self._refusal(channel, str(error)) from None
            if channel.followers and (channel.pc > start or channel.ended):
                self.ready.extend(channel.followers)
                channel.followers.clear()
        self._check_ended()

    def _refusal(self, channel: ChannelRun, text: str) -> ScheduleError:
        """Return the error of the step that a channel is at."""
        return ScheduleError(text, rank=channel.rank.rank, step=channel.pc, op=str(channel.steps[channel.pc]))

    def _execute(self, channel: ChannelRun, step: Step) -> bool:
        """Run a step; return False, and leave it for later, if it must wait."""
        op, peer, dst, srcs, received_first, _, _ = step
        rank = channel.rank
        if op <= _RECV_REDUCE and (peer == rank.rank or not 0 <= peer < self.nranks):
            raise ValueError(f"peer must be another rank below {self.nranks}, got {peer}")
        if len(srcs) != _SOURCES[op] and (op is not _REDUCE or len(srcs) < 2):
            raise ValueError(f"reads {len(srcs)} runs of chunks, not {_SOURCES[op]}")
        if (dst is None) is not (op is _SEND):
            raise ValueError("only a send, and every send, writes nothing here")
        if dst is None:
            return self._send(channel, peer, srcs[0])
        link = self.links[peer, rank.rank, channel.link] if op <= _RECV_REDUCE else None
        if link and not link.messages:
            link.receiver = channel
            return False
        if (
            op is _COPY
            and dst[0] is not _INPUT
            and (cells := rank.span(dst, channel.index)) == rank.span(srcs[0], channel.index)
        ):
            if rank.rewritten:
                # out of place other channels must not use them
                rank.told_apart |= rank.shared or any(rank.rewritten[cells])
                rank.rewritten[cells] = b"\2" * dst.n
            return True  # in place there is nothing to copy
        cells = rank.span(dst, channel.index, write=True)
        if any(rank.in_use[cells]):
            channel.held_up = True
            return False
        extents, operands = rank.extents[cells], list[list[int]]()
        for src in srcs:
            span = rank.span(src, channel.index)
            if rank.extents[span] != extents:
                sizes = f"{src} has {rank.extents[span]}, {dst} has {extents}"
                raise ValueError(f"source and destination differ in size: {sizes}{_HINT}")
            operands.append(rank.read(span, src))
        if link:
            operands.insert(0 if received_first else 1, self._receive(channel, link, extents))
        new = operands[0] if len(operands) == 1 else fold(self.values.combine, operands)
        rank.values[cells] = new
        if rank.rewritten:
            rank.rewritten[cells] = b"\1" * len(new)
        if channel.received and channel.used_at[channel.pc] == channel.pc:
            self._free_slots(channel)
        return True

    def _send(self, channel: ChannelRun, peer: int, src: Chunk) -> bool:
        rank = channel.rank
        link, cells = self.links[rank.rank, peer, channel.link], rank.span(src, channel.index)
        if link.slots == self.slots:
            channel.held_up = True
            return False
        link.slots += 1
        for cell in range(cells.start, cells.stop):
            rank.in_use[cell] += 1
        self._deliver(channel, link, cells, src)
        return True

    def _deliver(self, channel: ChannelRun, link: Link, cells: slice, src: Chunk) -> None:
        """Put a message on a link, and let its receiver go on; a signal, which has no chunks, is not counted."""
        n = cells.stop - cells.start
        link.messages.append((channel, cells, channel.rank.read(cells, src), channel.depth + bool(n)))
        self.messages += bool(n)
        channel.rank.sent += n
        if link.receiver:
            self.ready.append(link.receiver)
            link.receiver = None

    def _receive(self, channel: ChannelRun, link: Link, extents: list[Hashable]) -> list[int]:
        sender, cells, values, depth = link.messages.popleft()
        if sender.rank.extents[cells] != extents:
            raise ValueError(
                f"expects sizes of {extents}, rank {sender.rank.rank} sends {sender.rank.extents[cells]}{_HINT}"
            )
        for cell in range(cells.start, cells.stop):
            sender.rank.in_use[cell] -= 1
        channel.received.append((sender, link))
        self._go_on(sender)
        channel.depth = max(channel.depth, depth)
        return values

    def _free_slots(self, channel: ChannelRun) -> None:
        for sender, link in channel.received:
            link.slots -= 1
            self._go_on(sender)
        channel.received.clear()

    def _go_on(self, channel: ChannelRun) -> None:
        if channel.held_up:
            channel.held_up = False
            self.ready.append(channel)

    def _check_ended(self) -> None:
        stuck = [channel for channel in self.channels if not channel.ended]
        if stuck:
            # first sends, which wait for slots, then what must not overwrite a message
            stuck.sort(key=lambda channel: (channel.steps[channel.pc].op is not _SEND, not channel.held_up))
            raise self._refusal(stuck[0], f"deadlock: {self._cause(stuck[0], stuck)}")
        for (src, dst, channel), link in self.links.items():
            if link.messages:
                raise ScheduleError(
                    f"{len(link.messages)} message(s) to rank {dst} in channel {channel} are never received",
                    rank=src,
                )

    def _cause(self, channel: ChannelRun, stuck: Sequence[ChannelRun]) -> str:
        """Say why a channel waits for ever, and what helps; ``stuck``: the channels that have not ended."""
        rank, (op, peer, dst, *_) = channel.rank, channel.steps[channel.pc]
        if dst is not None and channel.held_up:
            cells = range(*rank.span(dst, channel.index).indices(len(rank.values)))
            reader = next(
                to
                for (source, to, _), link in self.links.items()
                if source == rank.rank
                for _, sent, *_ in link.messages
                if sent.start < cells.stop and cells.start < sent.stop
            )
            what, verb = ("what is received", "receive") if op <= _RECV_REDUCE else ("the result", "write it")
            in_place = "in place, " if rank.are_shared(cells) else ""
            return (
                f"{in_place}{what} overwrites what is still being sent to rank {reader}: {verb} into scratch"
            )
        theirs = next(
            (self._whereabouts(machine) for machine in stuck if machine.rank.rank == peer),
            f"rank {peer} has ended",
        )
        if op is _SEND:
            taken = self.links[rank.rank, peer, channel.link].slots
            return f"{counted(taken, 'message')} to rank {peer} not used yet, while {theirs}: let ranks receive between their sends"
        return f"no message comes, since {theirs}"

    def _whereabouts(self, channel: ChannelRun) -> str:
        return f"rank {channel.rank.rank} waits at step {channel.pc}: {channel.steps[channel.pc]}"

    def judge(self) -> Proof:
        """Compare every chunk of OUTPUT with what the collective wants."""
        of_item: dict[Hashable, set[int]] = defaultdict(set)  # the ranks' values of each item
        ordered = canonical = True
        for rank in self.ranks:
            s = rank.schedule
            for index, value in enumerate(
                rank.values[rank.bases[Buffer.OUTPUT] :][: rank.counts[Buffer.OUTPUT]]
            ):
                wanted = (
                    self.collective.output_item(s.rank, index),
                    self.collective.wanted(s.rank, index, s.nranks, s.root),
                )
                facts = self.values.facts[value]
                if wanted[1] and facts[:2] != wanted:
                    got = self._name(facts[0], facts[1]) if value else "nothing"
                    raise ScheduleError(
                        f"output[{index}] must hold {self._name(*wanted)}, holds {got}", rank=s.rank
                    )
                if wanted[1]:
                    rank.told_apart |= bool(rank.rewritten) and not rank.rewritten[rank.bases[1] + index]
                    ordered, canonical = ordered and facts[2], canonical and facts[3]
                    of_item[wanted].add(value)
        different = [values for values in of_item.values() if len(values) > 1]
        shapes = self.values.shapes() if different else []
        reproducible = self.collective.idempotent or all(
            len({shapes[value] for value in values}) == 1 for values in different
        )
        rounds = max(channel.depth for channel in self.channels)
        sent, told_apart = max(rank.sent for rank in self.ranks), any(rank.told_apart for rank in self.ranks)
        return Proof(self.messages, rounds, ordered, reproducible, sent, canonical, told_apart)

    def _name(self, item: Hashable, mask: int) -> str:
        return f"item {item} of ranks {[r for r in range(self.nranks) if mask >> r & 1]}"


def verify_schedules(
    schedules: Sequence[Schedule], *, in_place: bool, uniform: bool = False, slots: int = RING_SLOTS
) -> Proof:
    """Prove a call, from the schedules of all ranks.

    Args:
        schedules: The schedules of a collective, in rank order.
        in_place: The chunks that the collective's ``aliases`` names are one memory.
        uniform: All blocks have one size; else blocks of different ranks may differ.
        slots: Messages from one rank to another in one channel that may wait to be used, ``>= 1``.

    Returns:
        The properties that hold whatever the ranks' timing.

    Raises:
        ScheduleError: names rank, step and cause.
    """
    check_puts(schedules)
    machine = Machine(schedules, schedules[0].meaning, in_place, uniform, slots)
    machine.run_channels()
    return machine.judge()
