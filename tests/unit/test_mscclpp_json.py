"""MSCCL++ execution plans: what the verifier proves of them holds in every run of an interpreter that knows nothing of messages."""

import contextlib
import copy
import json
import random
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcoll.analysis.one_lane import one_lane
from hpcoll.analysis.verify import verify_schedules
from hpcoll.analysis.verify_program import verify_program
from hpcoll.base.errors import ArgumentError, HpcollError, ScheduleError
from hpcoll.formats.mscclpp.plans import read_mscclpp_json

_N = 6  # numbers in a chunk of the interpreter
_Op = dict[str, Any]


def op(
    name: str, src: Any = None, dst: Any = None, *, kind: str = "memory", ids: list[int] | None = None, tbg: Any = None, **more: Any
) -> _Op:
    """An operation; ``src`` and ``dst``: runs ``(buffer or number of a remote one, index, size)``."""
    found: _Op = {"name": name, "channel_type": kind, **more}
    for key, runs in (("src_buff", src), ("dst_buff", dst)):
        if runs is not None:
            found[key] = [{"type" if isinstance(b, str) else "buffer_id": b, "index": i, "size": n} for b, i, n in runs]
    if ids is not None:
        found["channel_ids"] = ids
    if tbg:
        found["tbg_info"] = {"tb_id": tbg[0], "tbg_size": tbg[1]}
    return found


def gpu(
    rank: int, chunks: tuple[int, int, int], peers: list[int], remotes: list[tuple[int, str]], blocks: list[list[_Op]], **more: Any
) -> Any:
    """A gpu: each thread block has a channel of each kind to each peer, and all remote buffers."""
    kinds = ("memory", "port")
    return {
        "id": rank, "input_chunks": chunks[0], "output_chunks": chunks[1], "scratch_chunks": chunks[2],
        "channels": [{"channel_type": kind, "connected_to": peers * len(blocks)} for kind in kinds],
        "remote_buffers": [{"rank": owner, "type": buffer, "access_channel_types": list(kinds)} for owner, buffer in remotes],
        "threadblocks": [
            {
                "id": number, "ops": ops,
                "channels": [
                    {"channel_type": kind, "channel_ids": [number * len(peers) + i for i in range(len(peers))]} for kind in kinds
                ],
                "remote_buffer_refs": [{"access_channel_type": kind, "remote_buffer_ids": list(range(len(remotes)))} for kind in kinds],
            }
            for number, ops in enumerate(blocks)
        ],
        **more,
    }  # fmt: skip


def plan(collective: str, gpus: list[Any], in_place: bool = True) -> Any:
    """A plan."""
    return {"name": "test", "collective": collective, "protocol": "Simple", "inplace": in_place, "gpus": gpus}


def meet(kind: str = "memory", ids: tuple[int, ...] = (0,)) -> list[_Op]:
    """A signal to peers, and a wait for theirs."""
    return [op("nop"), op("signal", kind=kind, ids=list(ids)), op("wait", kind=kind, ids=list(ids)), op("nop")]


def read_reduce() -> Any:
    """Each of two gpus reduces half of the chunks into both memories."""

    def half(rank: int) -> list[_Op]:
        runs = [("i", 2 * rank, 2), (0, 2 * rank, 2)]
        return [*meet(), op("rres", runs, runs), *meet()]

    return plan("allreduce", [gpu(rank, (4, 4, 0), [1 - rank], [(1 - rank, "i")], [half(rank)]) for rank in range(2)])


def packets() -> Any:
    """Each of two gpus sends the other's half in packets, reduces its own, and sends that in packets; two thread blocks."""

    def blocks(rank: int) -> list[list[_Op]]:
        mine, theirs = rank, 1 - rank
        first = [op("ppkt", [("i", theirs, 1)], [(0, 0, 1)]), op("respkt", [("i", mine, 1), ("s", 0, 1)], [("i", mine, 1), (0, 1, 1)])]
        return [first, [op("upkt", [("s", 1, 1)], [("i", theirs, 1)])]]

    return plan("allreduce", [gpu(rank, (2, 2, 2), [1 - rank], [(1 - rank, "s")], blocks(rank)) for rank in range(2)])


def ports() -> Any:
    """Three gpus gather through ports, out of place; the last flush lets a gpu end only when its own chunk has left."""

    def block(rank: int) -> list[_Op]:
        sends = [
            op("pws", [("o", rank, 1)], [(0, rank, 1)], kind="port", ids=[0]),
            op("put", [("o", rank, 1)], [(1, rank, 1)], kind="port", ids=[1]),
        ]
        ends = [op("signal", kind="port", ids=[1]), op("wait", kind="port", ids=[0, 1]), op("flush", kind="port", ids=[0, 1])]
        return [op("copy", [("i", 0, 1)], [("o", rank, 1)]), op("nop"), *meet(ids=(0, 1)), *sends, *ends]

    def one(rank: int) -> Any:
        peers = [(rank + 1) % 3, (rank + 2) % 3]
        return gpu(rank, (1, 3, 0), peers, [(peer, "o") for peer in peers], [block(rank)])

    return plan("allgather", [one(rank) for rank in range(3)], in_place=False)


def groups() -> Any:
    """Two thread blocks share copies and gets of an alltoall; a barrier stands before the signals, which the first one alone sends."""

    def blocks(rank: int) -> list[list[_Op]]:
        def both(number: int, *runs: Any) -> list[_Op]:
            return [op("copy", runs[0], runs[1], tbg=(number, 2)), op("nop")]

        def block(number: int) -> list[_Op]:
            barrier = op("barrier", barrier_id=0, num_threadblocks=2)
            head = [*both(number, [("i", 1 - rank, 1)], [("s", 0, 1)]), *both(number, [("i", rank, 1)], [("o", rank, 1)]), barrier]
            get = op("get", [(0, 0, 1)], [("o", 1 - rank, 1)], ids=[0], tbg=(number, 2))
            return [*head, *(meet() if number == 0 else []), barrier, get, op("nop"), barrier, *(meet() if number == 0 else [])]

        return [block(0), block(1)]

    return plan("alltoall", [gpu(rank, (2, 2, 1), [1 - rank], [(1 - rank, "s")], blocks(rank)) for rank in range(2)], in_place=False)


def pipeline() -> Any:
    """A thread block copies units to scratch, a second one exchanges them with the other gpu's, a third one reduces them."""

    def blocks(rank: int) -> list[list[_Op]]:
        def each(*ops: _Op) -> list[_Op]:
            return [{"name": "pipeline", "iter_context": {"unit_size": 2, "num_chunks": 1}, "ops": list(ops)}]

        copy_in = [op("copy", [("i", 0, 1)], [("s", 0, 1)]), op("nop"), op("sem_release", semaphore_ids=[0])]
        exchange = [op("put", [("s", 0, 1)], [(0, 1, 1)]), *meet(), op("sem_release", semaphore_ids=[1])]
        reduce = [op("re", [("i", 0, 1), ("s", 1, 1)], [("o", 0, 1)]), op("nop"), op("sem_release", semaphore_ids=[2])]
        waits = [[op("sem_acquire", semaphore_ids=[number]), op("nop")] for number in range(3)]
        return [each(*waits[2], *copy_in), each(*waits[0], *exchange), each(*waits[1], *reduce)]

    semaphores = {"semaphores": [{"init_value": n} for n in (0, 0, 2)]}
    gpus = [gpu(rank, (1, 1, 2), [1 - rank], [(1 - rank, "s")], blocks(rank), **semaphores) for rank in range(2)]
    return plan("allreduce", gpus, in_place=False)


def own_input() -> Any:
    """A reduce_scatter in place: each of two gpus adds its chunk of the other's input to its own, and then writes the rest of its input."""

    def block(rank: int) -> list[_Op]:
        reduce = op("rre", [("i", rank, 1), (0, rank, 1)], [("o", 0, 1)])
        return [*meet(), reduce, *meet(), op("copy", [("i", rank, 1)], [("i", 1 - rank, 1)])]

    return plan("reducescatter", [gpu(rank, (2, 1, 0), [1 - rank], [(1 - rank, "i")], [block(rank)]) for rank in range(2)])


PLANS = {"input": own_input, "read-reduce": read_reduce, "packets": packets, "ports": ports, "groups": groups, "pipeline": pipeline}


class Interpreter:
    """Numbers in shared memory, moved by thread blocks and ports that take turns at random."""

    def __init__(self, content: Any, seed: int) -> None:
        self.random, self.plan = random.Random(seed), content
        self.nranks, self.in_place, self.coll = len(content["gpus"]), content["inplace"], content["collective"]
        self.memory: dict[tuple[int, str, int], int] = {}
        self.signals: dict[Any, int] = defaultdict(int)
        self.queues: dict[Any, deque[Any]] = defaultdict(deque)
        self.arrived: dict[Any, int] = defaultdict(int)
        self.inputs = {}
        for rank, one in enumerate(content["gpus"]):
            for number, semaphore in enumerate(one.get("semaphores", ())):
                self.signals["semaphore", rank, number] = semaphore["init_value"]
            for cell in range(one["input_chunks"] * _N):
                self.inputs[rank, cell] = self.memory[self.at(rank, "i", cell)] = self.random.randrange(1 << 40)
        self.first = dict(self.signals)

    def at(self, rank: int, buffer: str, cell: int) -> tuple[int, str, int]:
        """The place of a number: in place, input and output are one memory."""
        if buffer == "o" and self.in_place and self.coll == "reducescatter":
            return rank, "i", cell + rank * _N
        if self.coll == "reducescatter":
            return rank, buffer, cell
        if buffer == "i" and self.in_place:
            return rank, "o", cell + (rank * _N if self.coll == "allgather" else 0)
        return rank, buffer, cell

    def right(self) -> bool:
        """Run to the end; say whether every gpu had the right output when its thread blocks had ended."""
        threads: dict[Any, Iterator[bool]] = {}
        for rank, one in enumerate(self.plan["gpus"]):
            for block in one["threadblocks"]:
                for part in ("data", "control"):
                    threads[rank, block["id"], part] = self.block(rank, block, part)
                for peer in range(len(block["channels"][1]["channel_ids"])):
                    threads[rank, "port", block["id"], peer] = self.port((rank, block["id"], peer))
        left = {rank: 2 * len(one["threadblocks"]) for rank, one in enumerate(self.plan["gpus"])}
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
        return not any(left.values()) and all(count == self.first.get(key, 0) for key, count in self.signals.items())

    def complete(self, rank: int) -> bool:
        """Say whether a gpu's output is right; what it holds is the caller's then, and changes."""
        for cell in range(self.plan["gpus"][rank]["output_chunks"] * _N):
            block, inner = divmod(cell, self.plan["gpus"][0]["input_chunks"] * _N)
            if self.coll in ("allreduce", "reducescatter"):
                first = rank * _N if self.coll == "reducescatter" else 0
                wanted = sum(self.inputs[other, first + cell] for other in range(self.nranks))
            else:
                block, inner = (block, inner) if self.coll == "allgather" else (cell // _N, rank * _N + cell % _N)
                wanted = self.inputs[block, inner]
            if self.memory.get(self.at(rank, "o", cell)) != wanted:
                return False
            self.memory[self.at(rank, "o", cell)] = -1
        return True

    def port(self, key: Any) -> Iterator[bool]:
        """Do what was pushed to a port, in order."""
        while True:
            if self.queues[key]:
                yield from self.queues[key][0]
                self.queues[key].popleft()
                yield True
            else:
                yield False

    def block(self, rank: int, block: Any, part: str) -> Iterator[bool]:
        """Run all threads of a block, or the first ones, which signal and wait: only a nop or a barrier orders them."""
        for one in block["ops"]:
            for unit in range(3) if one["name"] == "pipeline" else (None,):
                for inner in one.get("ops", [one]):
                    if inner["name"] in ("nop", "barrier"):
                        yield from self.meet((rank, block["id"]), 2)
                    if inner["name"] == "barrier":
                        yield from self.meet((rank,), 2 * inner["num_threadblocks"])
                    elif inner["name"] != "nop" and part == (
                        "data" if "src_buff" in inner and inner["channel_type"] != "port" else "control"
                    ):
                        yield from self.operation(rank, block, inner, unit)

    def meet(self, name: Any, count: int) -> Iterator[bool]:
        """Wait until so many have come."""
        self.arrived[name] += 1
        goal = -(-self.arrived[name] // count) * count
        yield True
        while self.arrived[name] < goal:
            yield False

    def operation(self, rank: int, block: Any, one: _Op, unit: int | None) -> Iterator[bool]:
        name, gpus = one["name"], self.plan["gpus"]
        peers = gpus[rank]["channels"][0]["connected_to"]
        npeers = len(block["channels"][0]["channel_ids"])
        port = one["channel_type"] == "port"
        keys = [(rank, block["id"], i) for i in one.get("channel_ids", ())]
        if name in ("signal", "wait"):
            for i in one["channel_ids"]:
                ends = (rank, peers[i % npeers]) if name == "signal" else (peers[i % npeers], rank)
                yield from self.push(
                    port and name == "signal", (rank, block["id"], i), self.count((one["channel_type"], block["id"], *ends), name)
                )
        elif name == "flush":
            while any(self.queues[key] for key in keys):
                yield False
        elif name.startswith("sem_"):
            for i in one["semaphore_ids"]:
                yield from self.count(("semaphore", rank, i), "signal" if name == "sem_release" else "wait")
        else:
            srcs, dsts = ([self.cells(rank, run, one, unit) for run in one[key]] for key in ("src_buff", "dst_buff"))
            checked = [name == "upkt" or (name == "respkt" and i > 0) for i in range(len(srcs))]
            yield from self.push(port, keys[0] if port else None, self.move(srcs, dsts, checked))
            if name == "pws":
                yield from self.push(True, keys[0], self.count(("port", block["id"], rank, peers[keys[0][2] % npeers]), "signal"))

    def push(self, port: bool, key: Any, work: Iterator[bool]) -> Iterator[bool]:
        """Do something, or let a port do it."""
        if port:
            self.queues[key].append(work)
            yield True
        else:
            yield from work

    def count(self, key: Any, name: str) -> Iterator[bool]:
        while name == "wait" and not self.signals[key]:
            yield False
        self.signals[key] += 1 if name == "signal" else -1
        yield True

    def cells(self, rank: int, run: Any, one: _Op, unit: int | None) -> list[tuple[int, str, int]]:
        owner, buffer = rank, run.get("type")
        if buffer is None:
            remote = self.plan["gpus"][rank]["remote_buffers"][run["buffer_id"]]
            owner, buffer = remote["rank"], remote["type"]
        part, parts = (unit, 3) if unit is not None else one.get("tbg_info", {"tb_id": 0, "tbg_size": 1}).values()
        n = run["size"] * _N // parts
        return [self.at(owner, buffer, run["index"] * _N + part * n + i) for i in range(n)]

    def move(self, srcs: Any, dsts: Any, checked: list[bool]) -> Iterator[bool]:
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


def proven(content: Any, path: Path) -> bool:
    """Say whether a plan is proven, rather than refused."""
    path.write_text(json.dumps(content))
    try:
        program = read_mscclpp_json(path)
        verify_program(program.schedules, program.meaning, in_place=program.in_place)
    except HpcollError:
        return False
    return True


def mutants(content: Any) -> Iterator[tuple[str, Any]]:
    """Changes of the first gpu: an operation is left out, or comes after the next one, or one of its runs begins a chunk earlier or later.

    On all gpus a signal and a wait are left out together.
    """
    for g, one in enumerate(content["gpus"][:1]):
        for b, block in enumerate(one["threadblocks"]):
            nested = block["ops"][0].get("ops") if block["ops"] else None
            for i, operation in enumerate(nested or block["ops"]):
                where = f"gpu {g}, thread block {b}, {operation['name']} {i}"
                changes: list[Any] = ["left out"] if operation["name"] == "nop" else ["left out", "later"]
                changes += [(key, r, by) for key in ("src_buff", "dst_buff") for r in range(len(operation.get(key, ()))) for by in (-1, 1)]
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
                    yield f"{where}, {change}", found
    for first in range(2):
        found = copy.deepcopy(content)
        for one in found["gpus"]:
            for block in one["threadblocks"]:
                ops = block["ops"][0].get("ops", block["ops"])
                for name in ("signal", "wait"):
                    at = [i for i, operation in enumerate(ops) if operation["name"] == name]
                    if at:
                        del ops[at[-first]]
        yield f"without signals and waits {first}", found


@pytest.mark.parametrize("name", PLANS)
def test_plans_are_proven_and_run(name: str, tmp_path: Path) -> None:
    """A right plan is proven, in one lane, too, and gives right numbers in the interpreter."""
    content, path = PLANS[name](), tmp_path / "plan.json"
    assert all(Interpreter(content, seed).right() for seed in range(20))
    path.write_text(json.dumps(content))
    program = read_mscclpp_json(path)
    proof = verify_program(program.schedules, program.meaning, in_place=program.in_place)
    lanes = one_lane(program.schedules, program.meaning, in_place=program.in_place)
    assert verify_schedules(lanes, in_place=False, uniform=True).messages == proof.messages


@pytest.mark.parametrize("name", PLANS)
def test_what_is_proven_runs(name: str, tmp_path: Path) -> None:
    """Of many changes those that are proven give right numbers in every run, and those that are refused a wrong one in some run."""
    verdicts = [(where, proven(mutant, tmp_path / "plan.json"), mutant) for where, mutant in mutants(PLANS[name]())]
    for where, verdict, mutant in verdicts:
        assert verdict == all(Interpreter(mutant, seed).right() for seed in range(25)), where
    assert 3 < sum(verdict for _, verdict, _ in verdicts) < len(verdicts) / 2


def old_packets() -> Any:
    """The plan `packets` in the first generation of the format, with one thread block."""

    def one(rank: int) -> Any:
        mine, theirs, ends = rank, 1 - rank, {"o_buff": {"src": "i", "dst": "s"}, "ctype": "sm", "cnt": 1}
        local = {"srcbuff": "i", "srcoff": mine, "dstbuff": "i", "dstoff": mine}
        ops = [
            {"name": "ppkt", **ends, "srcs": [{"buff": "i", "off": theirs}], "o_cids": [{"id": 0, "off": 0}]},
            {"name": "rspkt", **ends, **local, "srcs": [{"buff": "s", "off": 0}], "o_cids": [{"id": 0, "off": 1}]},
            {"name": "nop", "deps": [{"tb": 0, "step": 1}]},
            {"name": "cpkt", "srcbuff": "s", "srcoff": 1, "dstbuff": "i", "dstoff": theirs, "ctype": "none", "cnt": 1},
        ]
        channels = [{"srcbuff": "i", "dstbuff": "s", "type": "sm", "connectedTo": [1 - rank]}]
        block = {"id": 0, "ops": ops, "channels": [{"src": "i", "dst": "s", "ctype": "sm", "cids": [0]}]}
        return {"id": rank, "inputChunks": 2, "outputChunks": 0, "scratchChunks": 2, "channels": channels, "threadblocks": [block]}

    return {"name": "old", "colletive": "allreduce", "protocol": "LL", "inplace": True, "gpus": [one(0), one(1)]}


def test_first_generation(tmp_path: Path) -> None:
    """A plan of the first generation is the same program; packets that nobody writes are a deadlock there, too."""
    content = old_packets()
    assert proven(content, tmp_path / "plan.json")
    content["gpus"][1]["threadblocks"][0]["ops"][1]["o_cids"][0]["off"] = 0
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(ScheduleError, match=r"plan.json, gpu 0, thread block 0, step 1: race: .* scratch\[0\] of gpu 0.* written 2 times"):
        read_mscclpp_json(tmp_path / "plan.json")


def test_relaxed_signals_order_nothing(tmp_path: Path) -> None:
    """A relaxed signal may say that a gpu has begun; behind data it is no order."""
    content = read_reduce()
    ops = content["gpus"][0]["threadblocks"][0]["ops"]
    ops[1]["name"], content["gpus"][1]["threadblocks"][0]["ops"][2]["name"] = "rlxsignal", "rlxwait"
    assert proven(content, tmp_path / "plan.json")
    ops[6]["name"] = "rlxsignal"
    assert not proven(content, tmp_path / "plan.json")


def test_sendrecv(tmp_path: Path) -> None:
    """sendrecv gives each gpu the input of the one before it in the ring."""

    def one(rank: int) -> Any:
        block = [op("pws", [("i", 0, 1)], [(0, 0, 1)], kind="port", ids=[1]), op("wait", kind="port", ids=[0])]
        return gpu(rank, (1, 1, 0), [(rank + 2) % 3, (rank + 1) % 3], [((rank + 1) % 3, "o")], [block])

    content = plan("sendrecv", [one(rank) for rank in range(3)], in_place=False)
    assert proven(content, tmp_path / "plan.json")
    content["gpus"][2]["remote_buffers"][0]["rank"] = 1
    assert not proven(content, tmp_path / "plan.json")


def _changed(change: Any) -> Any:
    content = read_reduce()
    change(content, content["gpus"][0]["threadblocks"][0]["ops"])
    return content


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda plan, ops: plan.pop("gpus"), "plan.json: field gpus: expected a list, got none"),
        (lambda plan, ops: plan.update(inplace=1), "plan.json: field inplace: expected true or false, got 1"),
        (lambda plan, ops: plan.update(collective="transfer"), "plan.json: expected coll to be one of .*, got 'transfer'"),
        (lambda plan, ops: plan["gpus"][1].update(id=0), "plan.json, gpu 1: field id: expected an integer from 1 to 1, got 0"),
        (lambda plan, ops: plan["gpus"][1].update(input_chunks=3), "plan.json: expected 4 chunks of input .* gpu 1, got 3 and 4"),
        (lambda plan, ops: plan["gpus"][0].update(scratch_chunks=10**9), "gpu 0: field scratch_chunks: expected an integer from 0 to"),
        (lambda plan, ops: plan["gpus"][0].update(threadblocks=[{"id": 0}]), "gpu 0, thread block 0: field ops: expected a list, got none"),
        (lambda plan, ops: ops[1].update(channel_ids=[7]), "thread block 0, step 1: field channel_ids: expected integers below 1, got 7"),
        (lambda plan, ops: ops[4].update(name="glres"), "thread block 0, step 4: glres needs the multicast of a switch"),
        (lambda plan, ops: ops[4].update(name="shuffle"), "thread block 0, step 4: expected an operation of MSCCL"),
        (lambda plan, ops: ops[4]["src_buff"][1].update(buffer_id=3), "step 4: field buffer_id: expected an integer below 1, got 3"),
        (lambda plan, ops: ops[4]["src_buff"][1].update(size=1), "step 4: expected runs of one size"),
        (lambda plan, ops: ops[4]["src_buff"][1].update(index=3), "step 4: .* of gpu 1 is outside its buffer of 4 chunks"),
        (lambda plan, ops: ops[4].update(tbg_info={"tb_id": 2, "tbg_size": 2}), "field tbg_info.tb_id: expected an integer from 0 to 1"),
        (lambda plan, ops: ops.append(ops[2]), "step 9: deadlock: memory channel 0 from gpu 1 to gpu 0 has 2 signals .* 3 waits"),
    ],
)  # fmt: skip
def test_bad_plans(change: Any, text: str, tmp_path: Path) -> None:
    """What is no plan, or a wrong one, is an error of one line with its place."""
    (tmp_path / "plan.json").write_text(json.dumps(_changed(change)))
    with pytest.raises((ArgumentError, ScheduleError), match=text) as caught:
        read_mscclpp_json(tmp_path / "plan.json")
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_no_type_is_a_traceback(tmp_path: Path) -> None:
    """Whatever stands in place of any member of a plan, the error is one of ours."""

    def members(content: Any) -> Iterator[tuple[Any, Any]]:
        for key, value in content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ():
            yield content, key
            yield from members(value)

    path = tmp_path / "plan.json"
    for base in (old_packets(), pipeline()):
        for holder, key in list(members(base)):
            kept = holder[key]
            for value in (None, 1 << 70, "x", [{}]):
                holder[key] = value
                path.write_text(json.dumps(base))
                with contextlib.suppress(HpcollError):
                    read_mscclpp_json(path)
            holder[key] = kept
