"""MSCCL++ execution plans: what the verifier proves of them holds in every run of an interpreter that knows nothing of messages."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mscclpp_interpreter import Interpreter, mutants

from hpcoll.analysis.one_lane import one_lane
from hpcoll.analysis.verify import verify_schedules
from hpcoll.analysis.verify_program import verify_program
from hpcoll.base.errors import ArgumentError, HpcollError, ScheduleError
from hpcoll.formats.mscclpp.plans import read_mscclpp_json

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


def proven(content: Any, path: Path) -> bool:
    """Say whether a plan is proven, rather than refused."""
    path.write_text(json.dumps(content))
    try:
        program = read_mscclpp_json(path)
        verify_program(program.schedules, program.meaning, in_place=program.in_place)
    except HpcollError:
        return False
    return True


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


def test_blocks_that_wait_for_one_another(tmp_path: Path) -> None:
    """Two thread blocks that wait for one another before they do anything are a deadlock."""
    content = read_reduce()
    for one in content["gpus"]:
        one["semaphores"] = [{"init_value": 0}, {"init_value": 0}]
        one["threadblocks"][0]["ops"][:0] = [op("sem_release", semaphore_ids=[0]), op("sem_acquire", semaphore_ids=[1])]
        ops = [op("sem_acquire", semaphore_ids=[0]), op("sem_release", semaphore_ids=[1])]
        one["threadblocks"].append({"id": 1, "channels": [], "ops": ops})
    assert proven(content, tmp_path / "plan.json")
    ops = content["gpus"][0]["threadblocks"][0]["ops"]
    ops[:2] = reversed(ops[:2])
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
