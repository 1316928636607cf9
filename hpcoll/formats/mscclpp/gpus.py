"""The gpus of MSCCL++ execution plans: sizes, channels and the buffers of others that they use; and the members of JSON objects.

A gpu's channels of a kind to one peer are numbered in the order in which they stand in the file. The peer's channel of that number is the
other end.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from hpcoll.base.budget import CHANNELS, Budget
from hpcoll.base.errors import ArgumentError
from hpcoll.base.json_fields import integer, member, refused
from hpcoll.base.text import MAX_CHUNKS
from hpcoll.formats.mscclpp.channels import Direction
from hpcoll.schedules.ir import Buffer

KINDS = {
    "memory": "memory",
    "sm": "memory",
    "port": "port",
    "proxy": "port",
    "switch": "switch",
    "nvls": "switch",
}
BUFFERS = {"i": Buffer.INPUT, "o": Buffer.OUTPUT, "s": Buffer.SCRATCH}
_T = TypeVar("_T")


class PlanPeer(NamedTuple):
    """A channel of a gpu: its kind, its peer, and its number among the channels of that kind to that peer."""

    kind: str
    peer: int
    number: int

    def direction(self, gpu: int, verb: str) -> Direction:
        """Return the direction that a gpu signals, or waits for."""
        return Direction(self.kind, *((self.peer, gpu) if verb == "wait" else (gpu, self.peer)), self.number)


class PlanGpu:
    """A gpu of a plan.

    Attributes:
        rank: Its number.
        sizes: Chunks of its input, output and scratch, as the file counts them.
        blocks: The thread blocks, as they stand in the file.
    """

    def __init__(self, content: Any, rank: int, nranks: int, budget: Budget) -> None:
        """Read a gpu but for its thread blocks; ArgumentError: a field is missing or wrong."""
        integer(content, "id", "", rank, rank)
        self.rank, self.new = rank, "input_chunks" in content
        keys = (
            ("input_chunks", "output_chunks", "scratch_chunks")
            if self.new
            else ("inputChunks", "outputChunks", "scratchChunks")
        )
        self.sizes = [integer(content, key, "", 0, MAX_CHUNKS) for key in keys]
        # by kind, in the first generation by kind and buffers
        self.channels: dict[Hashable, list[PlanPeer]] = defaultdict(list)
        numbers: dict[tuple[str, int], int] = defaultdict(int)
        for entry in entries(content, "channels"):
            kind, key = self.key(
                entry, "channel_type" if "channel_type" in entry else "type", "srcbuff", "dstbuff"
            )
            for peer in (
                integers(entry, "connected_to" if self.new else "connectedTo", nranks)
                if kind != "switch"
                else ()
            ):
                if peer == rank:
                    raise ArgumentError(f"expected channels to other gpus, got one to gpu {rank} itself")
                budget.spend(1, CHANNELS)
                self.channels[key].append(PlanPeer(kind, peer, numbers[kind, peer]))
                numbers[kind, peer] += 1
        remotes = entries(content, "remote_buffers", needed=False)
        self.remotes = [
            (integer(entry, "rank", "", 0, nranks - 1), one_of(BUFFERS, entry, "type")) for entry in remotes
        ]
        self.semaphores = [
            integer(entry, "init_value", "", 0, MAX_CHUNKS)
            for entry in entries(content, "semaphores", needed=False)
        ]
        self.blocks = entries(content, "threadblocks")

    def key(self, entry: Any, kind: str, src: str, dst: str) -> tuple[str, Hashable]:
        """Return the kind of the channels of an entry, and their key."""
        name = one_of(KINDS, entry, kind)
        return name, name if self.new or name == "switch" else (
            name,
            one_of(BUFFERS, entry, src),
            one_of(BUFFERS, entry, dst),
        )


def entries(content: Any, key: str, needed: bool = True) -> list[dict[str, Any]]:
    """Return a list of objects; where it is not needed, an empty one for none."""
    items = member(content, key, list, "") if needed or key in content else []
    for entry in items:
        if not isinstance(entry, dict):
            raise refused(key, "a list of objects", entry)
    return list(items)


def integers(content: Any, key: str, most: int) -> list[int]:
    """Return a list of integers below ``most``."""
    numbers = member(content, key, list, "")
    for value in numbers:
        if type(value) is not int or not 0 <= value < most:
            raise refused(key, f"integers below {most}", value)
    return list(numbers)


def at(known: Sequence[_T], content: Any, key: str) -> _T:
    """Return what the number in a field stands for."""
    if (number := integer(content, key, "", 0)) >= len(known):
        raise refused(key, f"an integer below {len(known)}", number)
    return known[number]


def one_of(known: Mapping[str, _T], content: Any, key: str) -> _T:
    """Return what a text stands for."""
    text = member(content, key, str, "")
    if text not in known:
        raise refused(key, f"one of {', '.join(known)}", text)
    return known[text]
