"""An interpreter of MSCCL++ plans of the second generation, on numbers: an independent judge of what the verifier says.

It knows memory, threads, ports and counters, and neither messages nor clocks. Everything takes turns at random, and one gpu is slow.
"""

import copy
import random
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

N = 6  # numbers in a chunk: each of two thread blocks has half, each of three units of a pipeline a third
_FOLDS = ("re", "res", "rre", "rres", "respkt", "repkt", "recpkt", "recspkt")
_Cell = tuple[int, str, int]


class Interpreter:
    """Numbers in shared memory, moved by the threads of blocks and by ports."""

    def __init__(self, content: Any, seed: int) -> None:
        self.random, self.gpus = random.Random(seed), content["gpus"]
        self.nranks, self.in_place, self.coll = len(self.gpus), content["inplace"], content["collective"]
        self.memory: dict[_Cell, int] = {}
        self.counters: dict[Any, int] = defaultdict(int)  # signals of channels' directions, and semaphores
        self.queues: dict[Any, deque[Iterator[bool]]] = defaultdict(deque)  # of ports
        self.arrived: dict[Any, int] = defaultdict(int)
        self.inputs: dict[tuple[int, int], int] = {}
        self.ends: dict[
            tuple[int, str], list[tuple[int, int]]
        ] = {}  # of each channel of a kind: the peer, and its number among those
        for rank, gpu in enumerate(self.gpus):
            for kind in ("memory", "port"):
                peers = [
                    peer
                    for entry in gpu["channels"]
                    if entry.get("channel_type", entry.get("type")) == kind
                    for peer in entry["connected_to"]
                ]
                self.ends[rank, kind] = [(peer, peers[:i].count(peer)) for i, peer in enumerate(peers)]
            for number, semaphore in enumerate(gpu.get("semaphores", ())):
                self.counters["semaphore", rank, number] = semaphore["init_value"]
            for cell in range(gpu["input_chunks"] * N):
                self.inputs[rank, cell] = self.memory[self.at(rank, "i", cell)] = self.random.randrange(
                    1 << 40
                )
        self.first = dict(self.counters)

    def at(self, rank: int, buffer: str, cell: int) -> _Cell:
        """The place of a number: in place, input and output are one memory."""
        shift = rank * self.gpus[0]["input_chunks"] * N if self.coll == "allgather" else 0
        if self.coll == "reducescatter" and self.in_place and buffer == "o":
            return rank, "i", cell + rank * self.gpus[0]["output_chunks"] * N
        return (
            (rank, "o", cell + shift)
            if buffer == "i" and self.in_place and self.coll != "reducescatter"
            else (rank, buffer, cell)
        )

    def right(self) -> bool:
        """Run to the end; say whether every gpu had the right output when its thread blocks had ended."""
        threads: dict[Any, Iterator[bool]] = {}
        for rank, gpu in enumerate(self.gpus):
            threads |= {
                (rank, b, part): self.block(rank, block, part)
                for b, block in enumerate(gpu["threadblocks"])
                for part in range(2)
            }
            threads |= {(rank, "port", end): self.port((rank, *end)) for end in self.ends[rank, "port"]}
        left = {rank: 2 * len(gpu["threadblocks"]) for rank, gpu in enumerate(self.gpus)}
        idle: set[Any] = set()
        slow = self.random.randrange(self.nranks)
        while len(idle) < len(threads):
            ready = sorted(set(threads) - idle, key=str)
            fast = [name for name in ready if name[0] != slow or self.random.random() < 0.02]
            name = self.random.choice(fast or ready)
            for _ in range(self.random.choice((1, 3, 40))):
                moved = next(threads[name], None)
                if not moved:
                    idle.add(name)
                    break
                idle.clear()
            if moved is None:
                del threads[name]
                idle.discard(name)
                left[name[0]] -= 1
                if not left[name[0]] and not self.complete(name[0]):
                    return False
        return not any(left.values()) and all(
            count == self.first.get(key, 0) for key, count in self.counters.items()
        )

    def complete(self, rank: int) -> bool:
        """Say whether a gpu's output is right; what it holds is the caller's then, and changes."""
        # of one gpu
        block = self.gpus[0]["input_chunks"] * N // (1 if self.coll == "allgather" else self.nranks)
        first = rank * block if self.coll == "reducescatter" else 0
        for cell in range(self.gpus[rank]["output_chunks"] * N):
            if self.coll in ("allreduce", "reducescatter"):
                wanted = sum(self.inputs[other, first + cell] for other in range(self.nranks))
            else:
                wanted = self.inputs[
                    cell // block, cell % block + (0 if self.coll == "allgather" else rank * block)
                ]
            if self.memory.get(self.at(rank, "o", cell)) != wanted:
                return False
            self.memory[self.at(rank, "o", cell)] = -1
        return True

    def port(self, name: Any) -> Iterator[bool]:
        """Do what was pushed to a port, in order."""
        while True:
            if self.queues[name]:
                yield from self.queues[name][0]
                self.queues[name].popleft()
                yield True
            else:
                yield False

    def block(self, rank: int, block: Any, part: int) -> Iterator[bool]:
        """Run all threads of a block, or the first ones, which signal and wait: only a nop or a barrier orders them. True: it has moved."""
        for outer in block["ops"]:
            for unit in range(3) if outer["name"] == "pipeline" else (None,):
                for op in outer.get("ops", [outer]):
                    if op["name"] in ("nop", "barrier"):
                        yield from self.meet((rank, block["id"]), 2)
                    if op["name"] == "barrier":
                        yield from self.meet((rank, "barrier", op["barrier_id"]), 2 * op["num_threadblocks"])
                    elif op["name"] != "nop" and part == (
                        "src_buff" not in op or op.get("channel_type") == "port"
                    ):
                        yield from self.operation(rank, block, op, unit)

    def meet(self, name: Any, count: int) -> Iterator[bool]:
        """Wait until so many have come."""
        self.arrived[name] += 1
        goal = -(-self.arrived[name] // count) * count
        yield True
        while self.arrived[name] < goal:
            yield False

    def operation(self, rank: int, block: Any, op: Any, unit: int | None) -> Iterator[bool]:
        """Run an operation."""
        name, kind = op["name"], op.get("channel_type", "memory")
        mine = [
            i for entry in block["channels"] if entry["channel_type"] == kind for i in entry["channel_ids"]
        ]
        ends = [self.ends[rank, kind][mine[i]] for i in op.get("channel_ids", ())]
        if name.endswith(("signal", "wait")):
            for peer, number in ends:
                verb = "signal" if name.endswith("signal") else "wait"
                work = self.count((kind, *((rank, peer) if verb == "signal" else (peer, rank)), number), verb)
                yield from self.push(
                    (rank, peer, number) if kind == "port" and verb == "signal" else None, work
                )
        elif name == "flush":
            yield from self.flush(rank, ends)
        elif name.startswith("sem_"):
            for i in op["semaphore_ids"]:
                yield from self.count(("semaphore", rank, i), "signal" if name == "sem_release" else "wait")
        else:
            srcs, dsts = (
                [self.cells(rank, block, run, op, unit) for run in op[key]]
                for key in ("src_buff", "dst_buff")
            )
            groups = (
                [(srcs, dsts)]
                if name in _FOLDS
                else [([src], [dst]) for src, dst in zip(srcs * (len(dsts) // len(srcs)), dsts)]
            )
            checked = [
                name in ("upkt", "rppkt") or (name.endswith("pkt") and i > 0) for i in range(len(srcs))
            ]
            for i, (mine, theirs) in enumerate(groups):
                yield from self.push(
                    (rank, *ends[i]) if kind == "port" else None, self.move(mine, theirs, checked)
                )
                if name in ("pws", "pwsf"):
                    yield from self.push((rank, *ends[i]), self.count(("port", rank, *ends[i]), "signal"))
            if name == "pwsf":
                yield from self.flush(rank, ends)

    def flush(self, rank: int, ends: list[tuple[int, int]]) -> Iterator[bool]:
        """Wait until nothing is left in ports."""
        while any(self.queues[(rank, *end)] for end in ends):
            yield False

    def push(self, port: Any, work: Iterator[bool]) -> Iterator[bool]:
        """Do something, or let a port do it."""
        if port:
            self.queues[port].append(work)
            yield True
        else:
            yield from work

    def count(self, name: Any, verb: str) -> Iterator[bool]:
        """Count a counter up, or wait for it and count it down."""
        while verb == "wait" and not self.counters[name]:
            yield False
        self.counters[name] += 1 if verb == "signal" else -1
        yield True

    def cells(self, rank: int, block: Any, run: Any, op: Any, unit: int | None) -> list[_Cell]:
        """The numbers of a run of chunks, as far as they are this block's in a group and this unit's in a pipeline."""
        owner, buffer = rank, run.get("type")
        if buffer is None:
            kinds = [
                entry
                for entry in block["remote_buffer_refs"]
                if entry["access_channel_type"] == op["channel_type"]
            ]
            remote = self.gpus[rank]["remote_buffers"][
                [i for entry in kinds for i in entry["remote_buffer_ids"]][run["buffer_id"]]
            ]
            owner, buffer = remote["rank"], remote["type"]
        group = op.get("tbg_info", {"tb_id": 0, "tbg_size": 1})
        part, parts = (unit, 3) if unit is not None else (group["tb_id"], group["tbg_size"])
        n = run["size"] * N // parts
        return [self.at(owner, buffer, run["index"] * N + part * n + i) for i in range(n)]

    def move(self, srcs: list[list[_Cell]], dsts: list[list[_Cell]], checked: list[bool]) -> Iterator[bool]:
        """Add the sources, number by number, and write the sums to all destinations; packets are there once they have been written."""
        for i in range(len(srcs[0])):
            total = 0
            for src, check in zip(srcs, checked):
                while check and src[i] not in self.memory:
                    yield False
                total += self.memory.get(src[i], 1)
                yield True
            for dst in dsts:
                self.memory[dst[i]] = total
                yield True


def mutants(content: Any, gpus: int = 1) -> Iterator[tuple[str, Any]]:
    """Changes of the first gpus: an operation is left out, or comes after the next one, or one of its runs begins a chunk earlier or later.

    On all gpus a signal and a wait are left out together.
    """
    for g, gpu in enumerate(content["gpus"][:gpus]):
        for b, block in enumerate(gpu["threadblocks"]):
            nested = block["ops"][0].get("ops") if block["ops"] else None
            for i, op in enumerate(nested or block["ops"]):
                changes: list[Any] = ["left out"] if op["name"] == "nop" else ["left out", "later"]
                changes += [
                    (key, r, by)
                    for key in ("src_buff", "dst_buff")
                    for r in range(len(op.get(key, ())))
                    for by in (-1, 1)
                ]
                for change in changes:
                    found = copy.deepcopy(content)
                    ops = found["gpus"][g]["threadblocks"][b]["ops"]
                    ops = ops[0]["ops"] if nested else ops
                    if change == "left out":
                        del ops[i]
                    elif change == "later":
                        ops[i : i + 2] = reversed(ops[i : i + 2])
                    else:
                        run = ops[i][change[0]][change[1]]
                        run["index"] += change[2]
                        if not 0 <= run["index"] < 2:
                            continue  # outside of the smaller buffers
                    yield f"gpu {g}, thread block {b}, {op['name']} {i}, {change}", found
    for first in range(2):
        found = copy.deepcopy(content)
        for gpu in found["gpus"]:
            for block in gpu["threadblocks"]:
                ops = block["ops"][0].get("ops", block["ops"]) if block["ops"] else []
                for verb in ("signal", "wait"):
                    at = [i for i, op in enumerate(ops) if op["name"] == verb]
                    if at:
                        del ops[at[-first]]
        yield f"without signals and waits {first}", found
