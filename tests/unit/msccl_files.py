"""Programs in MSCCL XML for tests, and mutations of them. The package writes none of these, so reader and writer are tried apart."""

import random
from collections.abc import Iterator
from copy import deepcopy
from xml.etree import ElementTree

Where = tuple[str, int]  # buffer and offset
NOWHERE = ("i", -1)


class XmlProgram:
    """A program, written step by step."""

    def __init__(
        self, coll: str, nranks: int, nchunks: int, sizes: tuple[int, int, int], **attributes: object
    ) -> None:
        known = {
            "name": coll,
            "proto": "Simple",
            "nchannels": 1,
            "nchunksperloop": nchunks,
            "ngpus": nranks,
            "coll": coll,
            **attributes,
        }
        self.algo = ElementTree.Element("algo", {key: str(value) for key, value in known.items()})
        self.gpus = []
        for gpu in range(nranks):
            chunks = dict(zip(("i_chunks", "o_chunks", "s_chunks"), map(str, sizes)))
            self.gpus.append(ElementTree.SubElement(self.algo, "gpu", {"id": str(gpu), **chunks}))

    def block(self, gpu: int, send: int = -1, recv: int = -1, chan: int = 0) -> int:
        """Open a thread block, and return its id."""
        known = {"id": len(self.gpus[gpu]), "send": send, "recv": recv, "chan": chan}
        ElementTree.SubElement(self.gpus[gpu], "tb", {key: str(value) for key, value in known.items()})
        return len(self.gpus[gpu]) - 1

    def step(
        self,
        gpu: int,
        block: int,
        kind: str,
        src: Where = NOWHERE,
        dst: Where = NOWHERE,
        cnt: int = 1,
        after: tuple[int, int] = (-1, -1),
    ) -> tuple[int, int]:
        """Append a step that waits for ``after``, a thread block and its step, and return its own such pair."""
        steps = self.gpus[gpu][block]
        names = "s type srcbuf srcoff dstbuf dstoff cnt depid deps hasdep".split()
        values = (len(steps), kind, *src, *dst, cnt, *after, 0)
        ElementTree.SubElement(steps, "step", dict(zip(names, map(str, values))))
        if after[0] >= 0:
            self.gpus[gpu][after[0]][after[1]].set("hasdep", "1")
        return block, len(steps) - 1

    def text(self) -> str:
        """Return the file."""
        ElementTree.indent(self.algo)
        return ElementTree.tostring(self.algo, encoding="unicode")


def ring_allreduce(p: int) -> XmlProgram:
    """A ring by fused steps, for calls in place and out of place: s, rrs, rrcs, rcs, r."""
    program = XmlProgram("allreduce", p, p, (p, p, 0), inplace=1, outofplace=1)
    for gpu in range(p):
        block = program.block(gpu, (gpu + 1) % p, (gpu - 1) % p)
        for turn in range(2 * p - 1):
            chunk = (gpu - turn) % p
            kind = (
                "s"
                if not turn
                else "rrs"
                if turn < p - 1
                else "rrcs"
                if turn == p - 1
                else "rcs"
                if turn < 2 * p - 2
                else "r"
            )
            program.step(gpu, block, kind, ("i", chunk), ("o", chunk))
    return program


def pairs_allreduce(p: int, parts: int = 2) -> XmlProgram:
    """All pairs through scratch, in place: a thread block per peer, dependencies of nops, fused reductions, and counts."""
    program = XmlProgram("allreduce", p, p * parts, (p * parts, 0, (p - 1) * parts), inplace=1)
    for gpu in range(p):
        peers = [peer for peer in range(p) if peer != gpu]
        for peer in peers:
            program.block(gpu, peer, peer)
        arrived = []
        for block, peer in enumerate(peers):
            program.step(gpu, block, "s", ("i", peer * parts), cnt=parts)
            arrived.append(program.step(gpu, block, "r", dst=("s", block * parts), cnt=parts))
        done = []
        for part in range(parts):
            for one in arrived[1:-1]:
                program.step(gpu, 0, "nop", cnt=0, after=one)
            for block in range(p - 1):
                after = arrived[-1] if not block and p > 2 else (-1, -1)
                done.append(
                    program.step(
                        gpu, 0, "re", ("s", block * parts + part), ("i", gpu * parts + part), after=after
                    )
                )
        for block, peer in enumerate(peers):
            program.step(
                gpu, block, "s", ("i", gpu * parts), cnt=parts, after=done[-1] if block else (-1, -1)
            )
            program.step(gpu, block, "r", dst=("i", peer * parts), cnt=parts)
    return program


def ring_allgather(p: int) -> XmlProgram:
    """A ring in place that names chunks of the output alone; one thread block sends, another receives."""
    program = XmlProgram("allgather", p, p, (0, p, 0), inplace=1, outofplace=0)
    for gpu in range(p):
        sender, receiver = program.block(gpu, send=(gpu + 1) % p), program.block(gpu, recv=(gpu - 1) % p)
        after = (-1, -1)
        for turn in range(p - 1):
            program.step(gpu, sender, "s", ("o", (gpu - turn) % p), after=after)
            after = program.step(gpu, receiver, "r", dst=("o", (gpu - turn - 1) % p))
    return program


def hops_alltoall(p: int) -> XmlProgram:
    """Messages to the rank after the next go by way of the next one, out of place: two channels and a copy. Of 4 ranks."""
    assert p == 4
    program = XmlProgram("alltoall", p, p, (p, p, 1), inplace=0, nchannels=2)
    for gpu in range(p):
        near, far = (
            program.block(gpu, (gpu + 1) % p, (gpu - 1) % p),
            program.block(gpu, (gpu - 1) % p, (gpu + 1) % p, 1),
        )
        program.step(gpu, near, "s", ("i", (gpu + 1) % p))
        program.step(gpu, near, "r", dst=("o", (gpu - 1) % p))
        program.step(gpu, near, "s", ("i", (gpu + 2) % p))
        arrived = program.step(gpu, near, "r", dst=("s", 0))
        program.step(gpu, near, "s", ("s", 0), after=(-1, -1))
        program.step(gpu, near, "r", dst=("o", (gpu - 2) % p))
        program.step(gpu, far, "s", ("i", (gpu - 1) % p))
        program.step(gpu, far, "r", dst=("o", (gpu + 1) % p))
        program.step(gpu, far, "cpy", ("i", gpu), ("o", gpu), after=arrived)
    return program


def ring_reduce_scatter(p: int) -> XmlProgram:
    """A ring in place that sums in the input; separate thread blocks."""
    program = XmlProgram("reducescatter", p, p, (p, 1, 0), inplace=1, outofplace=0)
    for gpu in range(p):
        sender, receiver = program.block(gpu, send=(gpu + 1) % p), program.block(gpu, recv=(gpu - 1) % p)
        after = (-1, -1)
        for turn in range(p - 1):
            program.step(gpu, sender, "s", ("i", (gpu - turn - 1) % p), after=after)
            chunk = ("i", (gpu - turn - 2) % p)
            after = program.step(gpu, receiver, "rrc", chunk, chunk)
    return program


def chain_broadcast(p: int) -> XmlProgram:
    """A chain from rank 0, out of place."""
    program = XmlProgram("broadcast", p, 2, (2, 2, 0), inplace=0)
    for gpu in range(p):
        block = program.block(gpu, gpu + 1 if gpu < p - 1 else -1, gpu - 1)
        for chunk in range(2):
            kind = "s" if not gpu else "rcs" if gpu < p - 1 else "r"
            program.step(gpu, block, kind, ("i", chunk), ("o", chunk))
        if not gpu:
            program.step(gpu, block, "cpy", ("i", 0), ("o", 0), cnt=2)
    return program


def chain_reduce(p: int) -> XmlProgram:
    """A chain to rank 0, in place: the others sum in their input, too."""
    program = XmlProgram("reduce", p, 2, (2, 2, 0), inplace=1, outofplace=0)
    for gpu in range(p):
        sender, receiver = (
            program.block(gpu, send=gpu - 1),
            program.block(gpu, recv=gpu + 1 if gpu < p - 1 else -1),
        )
        for chunk in range(2):
            here = ("i", chunk)
            done = program.step(gpu, receiver, "rrc", here, here) if gpu < p - 1 else (-1, -1)
            if gpu:
                program.step(gpu, sender, "s", here, after=done)
    return program


PROGRAMS = (
    ring_allreduce,
    pairs_allreduce,
    ring_allgather,
    hops_alltoall,
    ring_reduce_scatter,
    chain_broadcast,
    chain_reduce,
)


def mutants(
    algo: ElementTree.Element, rng: random.Random, number: int
) -> Iterator[tuple[str, ElementTree.Element]]:
    """Yield single mutations of a program, each a copy of it, of all kinds in turn."""
    kinds = (_drop_step, _swap_offsets, _lose_dependency, _lose_signal, _wrong_peer, _change_type)
    for turn in range(number):
        found = deepcopy(algo)
        kind = kinds[turn % len(kinds)]
        if what := kind(found, rng):
            yield f"{kind.__name__[1:]} {what}", found


def _places(
    algo: ElementTree.Element, rng: random.Random
) -> Iterator[tuple[str, ElementTree.Element, ElementTree.Element, int]]:
    """Yield all steps in random order, with their place in words and their thread block."""
    found = [
        (f"of gpu {gpu.get('id')}, thread block {block.get('id')}, step {s}", gpu, block, s)
        for gpu in algo
        for block in gpu
        for s in range(len(block))
    ]
    rng.shuffle(found)
    yield from found


def _drop_step(algo: ElementTree.Element, rng: random.Random) -> str:
    """Drop a step; the others are numbered anew, and dependencies follow them."""
    where, gpu, block, s = next(_places(algo, rng))
    kind = block[s].get("type")
    block.remove(block[s])
    for number, step in enumerate(block):
        step.set("s", str(number))
    for other in gpu.iter("step"):
        if other.get("depid") == block.get("id") and int(other.get("deps", "")) > s:
            other.set("deps", str(int(other.get("deps", "")) - 1))
    return f"{kind} {where}"


def _swap_offsets(algo: ElementTree.Element, rng: random.Random) -> str:
    """Swap an offset of two steps of a thread block."""
    key = rng.choice(["srcoff", "dstoff"])
    for where, _, block, s in _places(algo, rng):
        others = [
            step
            for step in block
            if "-1" not in (step.get(key), block[s].get(key)) and step.get(key) != block[s].get(key)
        ]
        if others:
            other, own = rng.choice(others), block[s].get(key, "")
            block[s].set(key, other.get(key, ""))
            other.set(key, own)
            return f"{key} {where}, and {other.get('s')}"
    return ""


def _lose_dependency(algo: ElementTree.Element, rng: random.Random) -> str:
    for where, _, block, s in _places(algo, rng):
        if block[s].get("depid") != "-1":
            block[s].set("depid", "-1")
            block[s].set("deps", "-1")
            return where
    return ""


def _lose_signal(algo: ElementTree.Element, rng: random.Random) -> str:
    for where, _, block, s in _places(algo, rng):
        if block[s].get("hasdep") == "1":
            block[s].set("hasdep", "0")
            return where
    return ""


def _wrong_peer(algo: ElementTree.Element, rng: random.Random) -> str:
    where, gpu, block, _ = next(_places(algo, rng))
    key = rng.choice([key for key in ("send", "recv") if block.get(key) != "-1"] or ["send"])
    others = [str(peer) for peer in range(len(algo)) if str(peer) not in (gpu.get("id"), block.get(key))]
    if not others:
        return ""
    block.set(key, rng.choice(others))
    return f"{key} {where}"


def _change_type(algo: ElementTree.Element, rng: random.Random) -> str:
    """Change r to rrc, rrc to r, rcs to rrcs, rrcs or rrs to rcs, re to cpy, and back."""
    changes = {"r": "rrc", "rrc": "r", "rcs": "rrcs", "rrcs": "rcs", "rrs": "rcs", "re": "cpy", "cpy": "re"}
    for where, _, block, s in _places(algo, rng):
        step = block[s]
        if (kind := step.get("type", "")) in changes:
            step.set("type", changes[kind])
            if kind == "r":
                step.set("srcbuf", step.get("dstbuf", ""))
                step.set("srcoff", step.get("dstoff", ""))
            if kind == "rrs":
                step.set("dstbuf", step.get("srcbuf", ""))
                step.set("dstoff", step.get("srcoff", ""))
            return f"{kind} {where}"
    return ""
