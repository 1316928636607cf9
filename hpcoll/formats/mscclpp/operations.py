"""The operations of MSCCL++ execution plans, of both generations, as one-sided actions (`hpcoll.formats.mscclpp.one_sided`).

The first generation (2024) names channels and offsets for each operation (``i_cids``, ``o_cids``, ``srcs``), the second (2025) runs of
chunks (``src_buff``, ``dst_buff``) of its own buffers or of remote ones. Their operations have one meaning:

* ``copy``, ``put``, ``get``: pairs of sources and destinations. ``pws`` is a put with a signal behind it, ``pwsf`` one with a flush, too.
* ``re``, ``rs``, ``res``: fold the sources, write the result to all destinations; ``rre``, ``rrc``, ``rrcs``, ``rres`` read other gpus'
  memory for it. With ``pkt`` all sources but the first are packets, and all destinations but the first.
* ``ppkt``, ``tpkt``, ``cpkt`` to scratch write packets; ``upkt``, ``ucpkt``, ``cpkt`` from scratch read them, ``rppkt`` sends them on.
* ``signal``, ``wait``, ``rlxsignal``, ``rlxwait``, ``flush``, ``sem_acquire``, ``sem_release``, ``barrier``; ``nop`` is one of a block's
  threads.
* ``pipeline``: operations on one unit of their chunks after another. A chunk has three units here.

The thread blocks of a group share an operation: each has a part of its chunks. Multicast (``glres``, ``gstore``) is not understood.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from hpcoll.base.budget import TURNS, Budget
from hpcoll.base.errors import ArgumentError
from hpcoll.base.json_fields import integer, member
from hpcoll.base.text import MAX_CHUNKS, quoted
from hpcoll.formats.mscclpp.channels import Action, Direction, Local, MemoryRun
from hpcoll.formats.mscclpp.gpus import BUFFERS, KINDS, PlanGpu, PlanPeer, at, entries, integers, one_of
from hpcoll.formats.program import FilePlace
from hpcoll.schedules.ir import Buffer, Chunk

UNITS = 3  # of a chunk in a pipeline
_NONE = 99  # packets among no more runs


class _Form(NamedTuple):
    """The form of a move: whether it folds its sources, and the first of its sources and of its destinations that is packets."""

    folds: bool
    packets_in: int = _NONE
    packets_out: int = _NONE


_MOVES = {
    **dict.fromkeys(("copy", "put", "pws", "pwsf", "get"), _Form(False)),
    **dict.fromkeys(("re", "rs", "res", "rre", "rrc", "rrs", "rrcs", "rres"), _Form(True)),
    **dict.fromkeys(("rpkt", "rspkt", "repkt", "respkt", "recpkt", "recspkt"), _Form(True, 1, 1)),
    **dict.fromkeys(("tpkt", "ppkt"), _Form(False, _NONE, 0)),
    **dict.fromkeys(("upkt", "ucpkt", "cpkt"), _Form(False, 0)),
    "rppkt": _Form(False, 0, 0),
}
_SYNCS = {"signal": "signal", "rlxsignal": "signal", "wait": "wait", "rlxwait": "wait", "flush": "flush"}
_MULTICAST = ("glres", "gstore", "gstorepkt")


class _Range(NamedTuple):
    """A run of chunks as the file has it; ``peer``: the channel to its gpu, where the file names one."""

    gpu: int
    buffer: Buffer
    first: int
    n: int
    peer: PlanPeer | None = None


class _Part(NamedTuple):
    """The share of an operation that a thread block does: a unit of each chunk, or a part of all chunks; all by default."""

    unit: int = -1
    number: int = 0
    parts: int = 1


class PlanBlock:
    """A thread block of a plan: what the numbers in its operations stand for."""

    def __init__(self, gpu: PlanGpu, content: Any, factor: int, budget: Budget) -> None:
        """Read a thread block but for its operations; ``factor``: chunks into which one of the file is divided."""
        self.gpu, self.factor, self._budget = gpu, factor, budget
        self.channels: dict[Hashable, list[PlanPeer]] = defaultdict(list)
        for entry in entries(content, "channels"):
            kind, key = gpu.key(entry, "channel_type" if gpu.new else "ctype", "src", "dst")
            ids = next((name for name in ("channel_ids", "cids", "cid") if name in entry), "channel_ids")
            known = gpu.channels[key]
            self.channels[key] += (
                [known[i] for i in integers(entry, ids, len(known))] if kind != "switch" else []
            )
        self.remotes: dict[str, list[tuple[int, Buffer]]] = defaultdict(list)
        for entry in entries(content, "remote_buffer_refs", needed=False):
            mine = self.remotes[one_of(KINDS, entry, "access_channel_type")]
            mine += [gpu.remotes[i] for i in integers(entry, "remote_buffer_ids", len(gpu.remotes))]

    def actions(self, op: Any, place: FilePlace) -> Iterator[Action]:
        """Return the actions of an operation, of a pipeline those of all iterations; ArgumentError: it is not understood."""
        if member(op, "name", str, "") != "pipeline":
            yield from self._actions(op, place, _Part(-1, *_part(op)))
            return
        units = (
            integer(member(op, "iter_context", dict, ""), "num_chunks", "iter_context", 1, MAX_CHUNKS)
            * self.factor
        )
        ops = entries(op, "ops")
        self._budget.spend(units * max(1, len(ops)), TURNS)
        for unit in range(units):
            for inner in ops:
                if member(inner, "name", str, "") == "pipeline" or "tbg_info" in inner:
                    raise ArgumentError(
                        "a pipeline or a group of thread blocks in a pipeline is not understood"
                    )
                yield from self._actions(inner, place, _Part(unit))

    def _actions(self, op: Any, place: FilePlace, part: _Part) -> Iterator[Action]:
        name, gpu = member(op, "name", str, ""), self.gpu
        if name in _MOVES:
            yield from self._moves(name, op, place, part)
        elif name in _SYNCS:
            verb = _SYNCS[name]
            for peer in self._peers(op, "i" if verb == "wait" else "o"):
                if verb == "flush" and peer.kind != "port":
                    raise ArgumentError("expected a flush of a port, got one of another channel")
                direction = peer.direction(gpu.rank, verb)
                port = direction if peer.kind == "port" and verb != "wait" else None
                yield Action(verb, place, name=direction, port=port, relaxed=name.startswith("rlx"))
        elif name == "barrier":
            count = integer(op, "num_threadblocks" if gpu.new else "nthread_blocks", "", 1)
            yield Action(
                "barrier",
                place,
                name=Local("barrier", gpu.rank, integer(op, "barrier_id", "", 0)),
                count=count,
            )
        elif name in ("sem_acquire", "sem_release"):
            for i in integers(op, "semaphore_ids", len(gpu.semaphores)):
                yield Action(name[4:], place, name=Local("semaphore", gpu.rank, i), count=gpu.semaphores[i])
        elif name == "nop":
            yield Action("nop", place)
        else:
            raise ArgumentError(f"expected an operation of MSCCL++, got {quoted(name)}")

    def _moves(self, name: str, op: Any, place: FilePlace, part: _Part) -> Iterator[Action]:
        """Return the moves of an operation, and the signals and flushes behind them."""
        key = "channel_type" if self.gpu.new else "ctype"
        kind = one_of({**KINDS, "none": "none"}, op, key) if key in op else "none"
        srcs, dsts, form = self._ranges(op, "src", kind), self._ranges(op, "dst", kind), _MOVES[name]
        if form.folds and name.startswith("rr") and all(src.gpu != self.gpu.rank for src in srcs):
            srcs = dsts[:1] + srcs  # the oldest files have no local source: it is the destination
        if not srcs or not dsts or (not form.folds and len(srcs) not in (1, len(dsts))):
            raise ArgumentError(
                f"expected sources and destinations of {name}, got {len(srcs)} and {len(dsts)}"
            )
        if (kind == "port" and form.folds) or (kind != "port" and name in ("pws", "pwsf")):
            raise ArgumentError(f"{name} through a channel of kind {kind} is not understood")
        if name == "cpkt" and dsts[0].buffer is Buffer.SCRATCH:
            form = _MOVES["tpkt"]
        if name == "ppkt" and kind == "port":
            form = _MOVES["rppkt"]
        ports = self._ports(op, dsts) if kind == "port" else []
        together = form.folds or (len(srcs) == 1 and not ports)
        for i, dst in enumerate(dsts[:1] if together else dsts):
            runs = [
                self._run(src, part, n >= form.packets_in)
                for n, src in enumerate(srcs if together else srcs[i % len(srcs) :][:1])
            ]
            outs = [
                self._run(dst, part, n >= form.packets_out)
                for n, dst in enumerate(dsts if together else [dst])
            ]
            if len(sizes := {run.chunk.n for run in runs + outs}) > 1:
                raise ArgumentError(f"expected runs of one size, got {sorted(sizes)}")
            yield Action(
                "move",
                place,
                tuple(runs),
                tuple(outs),
                port=ports[i] if ports else None,
                checked=name != "ppkt",
            )
        for port in ports if name in ("pws", "pwsf") else ():
            yield Action("signal", place, name=port, port=port)
            if name == "pwsf":
                yield Action("flush", place, name=port, port=port)

    def _run(self, whole: _Range, part: _Part, packets: bool) -> MemoryRun:
        """Return a run's part, in chunks of the program."""
        if packets and whole.buffer is not Buffer.SCRATCH:
            raise ArgumentError(
                f"expected packets in scratch, got some in the {whole.buffer.name.lower()} buffer"
            )
        first, n = whole.first * self.factor, whole.n * self.factor
        if part.unit >= 0:
            return MemoryRun(whole.gpu, Chunk(whole.buffer, first + part.unit, 1), packets)
        return MemoryRun(
            whole.gpu, Chunk(whole.buffer, first + n // part.parts * part.number, n // part.parts), packets
        )

    def _ports(self, op: Any, dsts: list[_Range]) -> list[Direction]:
        """Return the port of each destination."""
        peers = [dst.peer for dst in dsts] if not self.gpu.new else self._peers(op, "o")
        if len(peers) != len(dsts) or any(not peer or peer.peer != dst.gpu for peer, dst in zip(peers, dsts)):
            raise ArgumentError("expected a channel to the gpu of each destination, got others")
        return [peer.direction(self.gpu.rank, "signal") for peer in peers if peer]

    def _peers(self, op: Any, side: str) -> list[PlanPeer]:
        """Return the channels of a signal, a wait, a flush or a port's writes; ``side``: i or o, in the first generation."""
        if self.gpu.new:
            known = self.channels[one_of(KINDS, op, "channel_type")]
            return [known[i] for i in integers(op, "channel_ids", len(known))]
        return [peer for peer, _, _ in self._named(op, side)]

    def _named(self, op: Any, side: str) -> list[tuple[PlanPeer, int, Buffer]]:
        """Return channels, offsets and the peer's buffer in an operation of the first generation."""
        buffers = (
            member(op, f"{side}_buff", dict, "")
            if f"{side}_buff" in op
            else {"src": op.get("srcbuff"), "dst": op.get("dstbuff")}
        )
        src, dst = one_of(BUFFERS, buffers, "src"), one_of(BUFFERS, buffers, "dst")
        known = self.channels[one_of(KINDS, op, "ctype"), src, dst]
        named = []
        for entry in entries(op, f"{side}_cids"):
            peer = at(known, entry, "id")
            named.append((peer, integer(entry, "off", "", 0, MAX_CHUNKS) if "off" in entry else 0, dst))
        return named

    def _ranges(self, op: Any, side: str, kind: str) -> list[_Range]:
        """Return the sources or the destinations of a move; ``side``: src or dst."""
        rank = self.gpu.rank
        if self.gpu.new:
            return [self._range(entry, kind) for entry in entries(op, f"{side}_buff")]
        n = integer(op, "cnt", "", 1, MAX_CHUNKS)
        ranges = []
        if f"{side}off" in op:
            ranges.append(
                _Range(
                    rank, one_of(BUFFERS, op, f"{side}buff"), integer(op, f"{side}off", "", 0, MAX_CHUNKS), n
                )
            )
        for entry in entries(op, f"{side}s", needed=False):
            ranges.append(
                _Range(rank, one_of(BUFFERS, entry, "buff"), integer(entry, "off", "", 0, MAX_CHUNKS), n)
            )
        letter = "i" if side == "src" else "o"
        for peer, first, buffer in self._named(op, letter) if f"{letter}_cids" in op else ():
            ranges.append(_Range(peer.peer, buffer, first, n, peer))
        return ranges

    def _range(self, entry: Any, kind: str) -> _Range:
        first, n = integer(entry, "index", "", 0, MAX_CHUNKS), integer(entry, "size", "", 1, MAX_CHUNKS)
        if "switch_channel_id" in entry:
            raise ArgumentError("the multicast of a switch (NVLS) is not understood")
        if "buffer_id" not in entry:
            return _Range(self.gpu.rank, one_of(BUFFERS, entry, "type"), first, n)
        return _Range(*at(self.remotes[kind], entry, "buffer_id"), first, n)


def factor_of(op: Any) -> int:
    """Return the number of chunks into which an operation divides a chunk of the file; ArgumentError: it is multicast."""
    for inner in [op, *entries(op, "ops", needed=False)]:
        if (name := member(inner, "name", str, "")) in _MULTICAST:
            raise ArgumentError(f"{name} needs the multicast of a switch (NVLS), which is not understood")
    if op["name"] == "pipeline":
        return UNITS
    _, parts = _part(op)
    runs = entries(op, "src_buff") + entries(op, "dst_buff") if parts > 1 else []
    return math.lcm(1, *(parts // math.gcd(parts, integer(run, "size", "", 1, MAX_CHUNKS)) for run in runs))


def _part(op: Any) -> tuple[int, int]:
    """Return the number of a thread block in its group, and the size of the group."""
    if "tbg_info" not in op:
        return 0, 1
    group = member(op, "tbg_info", dict, "")
    parts = integer(group, "tbg_size", "tbg_info", 1, 1024)
    return integer(group, "tb_id", "tbg_info", 0, parts - 1), parts
