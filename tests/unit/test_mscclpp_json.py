"""MSCCL++ execution plans: what the verifier proves of them holds in every run of an interpreter that knows nothing of messages."""

import json
from pathlib import Path
from typing import Any

import pytest
from mscclpp_files import PLANS, gpu, old_packets, op, plan, read_reduce
from mscclpp_interpreter import Interpreter, mutants

from hpcoll.analysis.programs.lanes import in_lanes
from hpcoll.analysis.programs.proof import verify_program
from hpcoll.analysis.verify import verify_schedules
from hpcoll.base.errors import ArgumentError, HpcollError, ScheduleError
from hpcoll.formats.reading import read_program


def proven(content: Any, path: Path) -> bool:
    """Say whether a plan is proven, rather than refused."""
    path.write_text(json.dumps(content))
    try:
        program = read_program(path)
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
    program = read_program(path)
    proof = verify_program(program.schedules, program.meaning, in_place=program.in_place)
    lanes = in_lanes(program.schedules, program.meaning, in_place=program.in_place)
    assert verify_schedules(lanes, in_place=False, uniform=True).messages == proof.messages


@pytest.mark.parametrize("name", PLANS)
def test_what_is_proven_runs(name: str, tmp_path: Path) -> None:
    """Of many changes those that are proven give right numbers in every run, and those that are refused a wrong one in some run."""
    verdicts = [
        (where, proven(mutant, tmp_path / "plan.json"), mutant) for where, mutant in mutants(PLANS[name]())
    ]
    for where, verdict, mutant in verdicts:
        assert verdict == all(Interpreter(mutant, seed).right() for seed in range(25)), where
    assert 3 < sum(verdict for _, verdict, _ in verdicts) < len(verdicts) / 2


def test_first_generation(tmp_path: Path) -> None:
    """A plan of the first generation is the same program; packets that nobody writes are a deadlock there, too."""
    content = old_packets()
    assert proven(content, tmp_path / "plan.json")
    content["gpus"][1]["threadblocks"][0]["ops"][1]["o_cids"][0]["off"] = 0
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(
        ScheduleError,
        match=r"plan.json, gpu 0, thread block 0, step 1: race: .* scratch\[0\] of gpu 0.* written 2 times",
    ):
        read_program(tmp_path / "plan.json")


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
        one["threadblocks"][0]["ops"][:0] = [
            op("sem_release", semaphore_ids=[0]),
            op("sem_acquire", semaphore_ids=[1]),
        ]
        ops = [op("sem_acquire", semaphore_ids=[0]), op("sem_release", semaphore_ids=[1])]
        one["threadblocks"].append({"id": 1, "channels": [], "ops": ops})
    assert proven(content, tmp_path / "plan.json")
    ops = content["gpus"][0]["threadblocks"][0]["ops"]
    ops[:2] = reversed(ops[:2])
    assert not proven(content, tmp_path / "plan.json")


def test_sendrecv(tmp_path: Path) -> None:
    """sendrecv gives each gpu the input of the one before it in the ring."""

    def one(rank: int) -> Any:
        block = [
            op("pws", [("i", 0, 1)], [(0, 0, 1)], kind="port", ids=[1]),
            op("wait", kind="port", ids=[0]),
        ]
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
        (
            lambda plan, ops: plan.update(collective="transfer"),
            "plan.json: expected coll to be one of .*, got 'transfer'",
        ),
        (
            lambda plan, ops: plan["gpus"][1].update(id=0),
            "plan.json, gpu 1: field id: expected an integer from 1 to 1, got 0",
        ),
        (
            lambda plan, ops: plan["gpus"][1].update(input_chunks=3),
            "plan.json: expected 4 chunks of input .* gpu 1, got 3 and 4",
        ),
        (
            lambda plan, ops: plan["gpus"][0].update(scratch_chunks=10**9),
            "gpu 0: field scratch_chunks: expected an integer from 0 to",
        ),
        (
            lambda plan, ops: plan["gpus"][0].update(threadblocks=[{"id": 0}]),
            "gpu 0, thread block 0: field ops: expected a list, got none",
        ),
        (
            lambda plan, ops: ops[1].update(channel_ids=[7]),
            "thread block 0, step 1: field channel_ids: expected integers below 1, got 7",
        ),
        (
            lambda plan, ops: ops[4].update(name="glres"),
            "thread block 0, step 4: glres needs the multicast of a switch",
        ),
        (
            lambda plan, ops: ops[4].update(name="shuffle"),
            "thread block 0, step 4: expected an operation of MSCCL",
        ),
        (
            lambda plan, ops: ops[4]["src_buff"][1].update(buffer_id=3),
            "step 4: field buffer_id: expected an integer below 1, got 3",
        ),
        (lambda plan, ops: ops[4]["src_buff"][1].update(size=1), "step 4: expected runs of one size"),
        (
            lambda plan, ops: ops[4]["src_buff"][1].update(index=3),
            "step 4: .* of gpu 1 is outside its buffer of 4 chunks",
        ),
        (
            lambda plan, ops: ops[4].update(tbg_info={"tb_id": 2, "tbg_size": 2}),
            "field tbg_info.tb_id: expected an integer from 0 to 1",
        ),
        (
            lambda plan, ops: ops.append(ops[2]),
            "step 9: deadlock: memory channel 0 from gpu 1 to gpu 0 has 2 signals .* 3 waits",
        ),
    ],
)
def test_bad_plans(change: Any, text: str, tmp_path: Path) -> None:
    """What is no plan, or a wrong one, is an error of one line with its place."""
    (tmp_path / "plan.json").write_text(json.dumps(_changed(change)))
    with pytest.raises((ArgumentError, ScheduleError), match=text) as caught:
        read_program(tmp_path / "plan.json")
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)
