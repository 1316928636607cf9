"""An interpreter of MSCCL XML that shares no code with the package: it runs thread blocks in a random order, on numbers.

It knows the format alone: counters of done steps, messages in order on each connection, and so many of them that may wait. Memory that
nobody wrote holds numbers of its own. A run's outcome is right where every wanted chunk of the output is the exact sum that the collective
wants, every thread block has ended and every message was received.
"""

import random
from collections import deque
from typing import NamedTuple
from xml.etree import ElementTree

_SENDS, _RECEIVES, _REDUCES = (
    ("s", "rcs", "rrs", "rrcs"),
    ("r", "rcs", "rrc", "rrs", "rrcs"),
    ("rrc", "rrs", "rrcs"),
)


class WrongRun(Exception):
    """A run that cannot go on, or with a wrong outcome."""


class _Task(NamedTuple):
    """A step with the steps of other thread blocks that it waits for, and its number in the file."""

    number: int
    attributes: dict[str, str]
    waits: list[tuple[str, int]]


class _Worker:
    """A thread block in a run."""

    def __init__(self, gpu: int, element: ElementTree.Element) -> None:
        self.gpu, self.id, self.chan = gpu, element.get("id", ""), element.get("chan")
        self.send, self.recv = int(element.get("send", "")), int(element.get("recv", ""))
        self.tasks, waits = [], []
        for number, step in enumerate(element):
            if step.get("depid") != "-1":
                waits.append((step.get("depid", ""), int(step.get("deps", ""))))
            if step.get("type") != "nop":
                self.tasks.append(_Task(number, dict(step.attrib), waits))
                waits = []
        self.pc, self.done, self.received = 0, -1, list[int]()


class Interpreter:
    """A program in a mode of calls."""

    def __init__(self, algo: ElementTree.Element, *, in_place: bool, slots: int = 4) -> None:
        self.algo, self.in_place, self.slots = algo, in_place, slots
        self.p, self.nchunks, self.coll = len(algo), int(algo.get("nchunksperloop", "")), algo.get("coll", "")
        self.parts = self.nchunks // self.p

    def run(self, rng: random.Random) -> None:
        """Run once, in an order of ``rng``; WrongRun: the outcome is wrong."""
        self.links: dict[tuple[int, int, str | None], deque[list[int]]] = {}
        self.memory = [self._memory(gpu, rng) for gpu in range(self.p)]
        initial = [
            [memory[self._at(gpu, "i", index)] for index in range(self._size(gpu, "i"))]
            for gpu, memory in enumerate(self.memory)
        ]
        self.workers = [_Worker(int(gpu.get("id", "")), block) for gpu in self.algo for block in gpu]
        self.by_id = {(worker.gpu, worker.id): worker for worker in self.workers}
        # some are far ahead of others
        haste = {worker: rng.choice([1, 1, 1, 30, 1000]) * rng.random() for worker in self.workers}
        ready = [one for one in self.workers if one.tasks]
        while ready:
            worker = max(ready, key=haste.__getitem__) if rng.random() < 0.8 else rng.choice(ready)
            if self._step(worker):
                ready = [one for one in self.workers if one.pc < len(one.tasks)]
            else:
                ready.remove(worker)
        if any(worker.pc < len(worker.tasks) for worker in self.workers):
            raise WrongRun("deadlock")
        if any(self.links.values()):
            raise WrongRun("a message is never received")
        self._check(initial)

    def _size(self, gpu: int, buffer: str) -> int:
        if buffer == "s":
            return int(self.algo[gpu].get("s_chunks", ""))
        if (self.coll, buffer) == ("reduce", "o"):
            return self.nchunks if gpu == 0 else 0
        whole = {"allgather": (self.parts, self.nchunks), "reducescatter": (self.nchunks, self.parts)}
        return whole.get(self.coll, (self.nchunks, self.nchunks))[buffer == "o"]

    def _at(self, gpu: int, buffer: str, offset: int) -> tuple[str, int]:
        """Return the memory of a chunk: in place, chunks of the output are chunks of the input."""
        if buffer == "i" and self.in_place:
            shift = {"allgather": gpu * self.parts, "reducescatter": -gpu * self.parts}.get(self.coll, 0)
            if 0 <= offset + shift < self._size(gpu, "o"):
                return "o", offset + shift
        return buffer, offset

    def _memory(self, gpu: int, rng: random.Random) -> dict[tuple[str, int], int]:
        return {
            self._at(gpu, buffer, i): rng.getrandbits(60)
            for buffer in "osi"
            for i in range(self._size(gpu, buffer))
        }

    def _step(self, worker: _Worker) -> bool:
        """Let a thread block do a part of its step; return False where it must wait."""
        task = worker.tasks[worker.pc]
        if any(
            self.by_id[worker.gpu, block].done < step
            for block, step in task.waits
            if (worker.gpu, block) in self.by_id
        ):
            return False
        if any((worker.gpu, block) not in self.by_id for block, _ in task.waits):
            raise WrongRun("waits for nobody")
        kind, n = task.attributes["type"], int(task.attributes["cnt"])
        if kind in _RECEIVES and not worker.received:
            arrived = self.links.setdefault((worker.recv, worker.gpu, worker.chan), deque())
            if not arrived:
                return False
            found = arrived.popleft()
            if len(found) != n:
                raise WrongRun("a message has another length")
            if kind in _REDUCES:
                found = [own + other for own, other in zip(self._read(worker, "src", n, task), found)]
            if kind != "rrs":
                self._write(worker, found, task)
            worker.received = found
            if kind in _SENDS:
                return True  # others may go on in between
        if kind in _SENDS:
            link = self.links.setdefault((worker.gpu, worker.send, worker.chan), deque())
            if worker.send < 0 or len(link) >= self.slots:
                return False
            link.append(self._read(worker, "src", n, task) if kind == "s" else worker.received)
        elif kind in ("re", "cpy"):
            found = self._read(worker, "src", n, task)
            self._write(
                worker,
                [a + b for a, b in zip(found, self._read(worker, "dst", n, task))] if kind == "re" else found,
                task,
            )
        worker.received = []
        if task.attributes["hasdep"] == "1":
            worker.done = task.number
        worker.pc += 1
        return True

    def _cells(self, worker: _Worker, side: str, n: int, task: _Task) -> list[tuple[str, int]]:
        buffer, offset = task.attributes[f"{side}buf"], int(task.attributes[f"{side}off"])
        found = [self._at(worker.gpu, buffer, offset + i) for i in range(n)]
        if not all(cell in self.memory[worker.gpu] for cell in found):
            raise WrongRun("an offset is outside its buffer")
        return found

    def _read(self, worker: _Worker, side: str, n: int, task: _Task) -> list[int]:
        return [self.memory[worker.gpu][cell] for cell in self._cells(worker, side, n, task)]

    def _write(self, worker: _Worker, found: list[int], task: _Task) -> None:
        self.memory[worker.gpu].update(zip(self._cells(worker, "dst", len(found), task), found))

    def _check(self, initial: list[list[int]]) -> None:
        for gpu, memory in enumerate(self.memory):
            for index in range(self._size(gpu, "o")):
                block, part = divmod(index, self.parts or 1)
                if self.coll in ("allreduce", "reduce"):
                    wanted = sum(chunks[index] for chunks in initial)
                elif self.coll == "reducescatter":
                    wanted = sum(chunks[gpu * self.parts + index] for chunks in initial)
                elif self.coll == "allgather":
                    wanted = initial[block][part]
                elif self.coll == "alltoall":
                    wanted = initial[block][gpu * self.parts + part]
                else:
                    assert self.coll == "broadcast"
                    wanted = initial[0][index]
                if memory["o", index] != wanted:
                    raise WrongRun(f"output {index} of gpu {gpu} is wrong")


def outcome(algo: ElementTree.Element, modes: list[bool], runs: int, seed: int = 0, slots: int = 4) -> str:
    """Return what is wrong in the first of some runs that is; the empty text if all are right."""
    for number in range(runs):
        try:
            Interpreter(algo, in_place=modes[number % len(modes)], slots=slots).run(
                random.Random(seed + number)
            )
        except WrongRun as error:
            return str(error)
    return ""
