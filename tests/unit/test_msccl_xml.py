"""MSCCL XML is read as its interpreters run it, proven, drawn and simulated; what is wrong is refused with its place."""

import json
import random
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msccl_files import (
    PROGRAMS,
    XmlProgram,
    chain_broadcast,
    hops_alltoall,
    mutants,
    pairs_allreduce,
    ring_allgather,
    ring_allreduce,
)
from msccl_interpreter import outcome

from hpcoll.analysis.programs.lanes import in_lanes
from hpcoll.analysis.verify import verify_schedules
from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.cli import main
from hpcoll.formats.conditions import read_conditions
from hpcoll.formats.program import FileProgram
from hpcoll.formats.reading import prove_program, read_program
from hpcoll.schedules.ir import Op

MUTANTS, RUNS = 300, 30  # of all programs together; runs of each mutant in random orders


def read(tmp_path: Path, text: str) -> FileProgram:
    path = tmp_path / "program.xml"
    path.write_text(text)
    return read_program(path)


def cases() -> list[XmlProgram]:
    return [write(4) for write in PROGRAMS]


@pytest.mark.parametrize("write", PROGRAMS)
@pytest.mark.parametrize("p", [2, 4, 5])
def test_right_programs_are_proven(write: object, p: int, tmp_path: Path) -> None:
    """Both the proof and runs in random orders say that they are right."""
    if write is hops_alltoall and p != 4:
        pytest.skip("is written for 4 ranks")
    program = write(p)  # type: ignore[operator]
    found = read(tmp_path, program.text())
    assert prove_program(found).messages
    assert not outcome(program.algo, list(found.modes), 10)


def test_fused_steps_and_chains_of_reductions(tmp_path: Path) -> None:
    """rrs stores nothing of its own, and a chain of re is one reduction, as MSCCL fuses it."""
    ring = read(tmp_path, ring_allreduce(4).text()).schedules[0]
    assert [step.op for step in ring.channels[0]] == [
        Op.SEND,
        *[Op.RECV_REDUCE, Op.SEND] * 3,
        *[Op.RECV, Op.SEND] * 2,
        Op.RECV,
    ]
    assert len(ring.scratch) == 2
    pairs = read(tmp_path, pairs_allreduce(4).text()).schedules[1]
    reductions = [step for steps in pairs.channels for step in steps if step.op is Op.REDUCE]
    assert [len(step.srcs) for step in reductions] == [4, 4]
    lane = in_lanes(read(tmp_path, pairs_allreduce(4).text()).schedules, in_place=True)[1]
    assert sorted(lane.scratch) == [2, 2, 2, 3, 3, 3], (
        "what arrives in scratch has the size of the chunks that it is added to"
    )


def test_places_name_file_line_gpu_thread_block_and_step(tmp_path: Path) -> None:
    program = pairs_allreduce(3)
    program.gpus[1][0][2].set("depid", "-1")
    program.gpus[1][0][2].set("deps", "-1")
    text = program.text()
    with pytest.raises(ScheduleError, match=r"program\.xml, .*reads scratch") as caught:
        prove_program(read(tmp_path, text))
    line = int(re.findall(r"line (\d+)", str(caught.value))[0])
    assert "gpu 1, thread block 0, step 2" in str(caught.value)
    assert 's="2"' in text.splitlines()[line - 1]


def test_wrong_results_and_lost_messages_name_steps(tmp_path: Path) -> None:
    """The step that wrote a wrong chunk last, the one that sent what nobody receives, and both sides of unequal counts."""
    program = chain_broadcast(3)
    for step, offset in enumerate("10"):
        program.gpus[2][0][step].set("dstoff", offset)
    with pytest.raises(ScheduleError, match=r"gpu 2, thread block 0, step 1: .*output\[0\] must hold"):
        prove_program(read(tmp_path, program.text()))
    program = ring_allgather(3)
    program.step(0, 0, "s", ("o", 0))
    with pytest.raises(
        ScheduleError, match="gpu 0, thread block 0, step 2: sends a message to rank 1 that is never received"
    ):
        prove_program(read(tmp_path, program.text()))
    program = pairs_allreduce(3)
    program.gpus[1][0][0].set("cnt", "1")
    with pytest.raises(
        ScheduleError, match=r"gpu 0, thread block 0, step 1: expects 2 chunks, .*gpu 1, .*step 0 sends 1"
    ):
        prove_program(read(tmp_path, program.text()))


def test_programs_become_lanes_that_are_proven_again(tmp_path: Path) -> None:
    """What the engine runs of a file is proven by the verifier of the catalogue, whatever the sizes of blocks."""
    for program in cases():
        found = read(tmp_path, program.text())
        in_place = not found.out_of_place
        lanes = in_lanes(found.schedules, found.meaning, in_place=in_place)
        assert verify_schedules(lanes, in_place=False, uniform=found.meaning.blocks).messages


def test_mutants_are_refused(tmp_path: Path) -> None:
    """Whatever changes the outcome of a run is refused: at most one mutant in a hundred gets by."""
    caught: Counter[bool] = Counter()
    missed = []
    for number, program in enumerate(cases()):
        right = read(tmp_path, program.text())
        for what, mutant in mutants(program.algo, random.Random(number), MUTANTS // len(PROGRAMS)):
            if outcome(mutant, list(right.modes), RUNS):
                try:
                    prove_program(read(tmp_path, ElementTree.tostring(mutant, encoding="unicode")))
                    missed.append(what)
                except (ArgumentError, ScheduleError):
                    caught[True] += 1
    assert caught[True] > MUTANTS / 3, "most mutants change the outcome"
    assert len(missed) <= caught[True] / 100, missed


def test_custom_conditions(tmp_path: Path) -> None:
    """Pre- and postconditions beside a file: each gpu hands its data to the next, and the last keeps a sum."""
    program = XmlProgram("custom", 3, 1, (1, 1, 0), inplace=0)
    for gpu in range(3):
        block = program.block(gpu, gpu + 1 if gpu < 2 else -1, gpu - 1)
        if gpu < 2:
            program.step(gpu, block, "s", ("i", 0))
        if gpu:
            program.step(gpu, block, "r" if gpu == 1 else "rrc", ("i", 0), ("o", 0))
    path, conditions = tmp_path / "next.xml", tmp_path / "next.json"
    path.write_text(program.text())
    with pytest.raises(ArgumentError, match="coll"):
        read_program(path)
    conditions.write_text(json.dumps({"inputs": [["a"], ["x"], ["x"]], "outputs": [[None], ["a"], ["x"]]}))
    assert prove_program(read_program(path, read_conditions(conditions))).messages == 2
    conditions.write_text(
        json.dumps(
            {"inputs": [["a"], ["x"], ["x"]], "outputs": [[None], ["a"], [{"item": "x", "gpus": [2]}]]}
        )
    )
    with pytest.raises(ScheduleError, match="must hold"):
        prove_program(read_program(path, read_conditions(conditions)))


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ([], "the whole: expected an object"),
        ({"collective": "hello"}, "field collective: expected allreduce or"),
        ({"inputs": [["a"]]}, "field outputs: expected a list, got none"),
        (
            {"inputs": [["a"]], "outputs": [["z"]]},
            "field outputs[0][0]: expected the name of data that a gpu has",
        ),
        (
            {"inputs": [["a"]], "outputs": [[{"item": "a", "gpus": [9]}]]},
            "field outputs[0][0].gpus: expected gpus below 1",
        ),
        (
            {"inputs": [["a", "b"]], "outputs": [["a", "b"]], "shifts": [1]},
            "field shifts[0]: expected a shift by which one buffer lies",
        ),
        ({"inputs": [[1.5]], "outputs": [[None]]}, "field inputs[0]: expected names of data"),
        ({"rooted": 1}, "unknown field 'rooted'"),
    ],
)
def test_wrong_conditions_name_their_field(content: object, cause: str, tmp_path: Path) -> None:
    path = tmp_path / "conditions.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ArgumentError, match=re.escape(cause)):
        read_conditions(path)


def test_verdicts_and_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0: proven; 1: refused; 2: not understood, and that of several files the worst."""
    names = "right.xml", "wrong.xml", "broken.xml"
    text = ring_allgather(4).text()
    for name, content in zip(names, (text, text.replace('depid="1"', 'depid="-1"'), text[:500])):
        (tmp_path / name).write_text(content)
    right, wrong, broken = (str(tmp_path / name) for name in names)
    assert main(["verify", right]) == 0
    assert "allgather of 4 gpus, in place" in capsys.readouterr().out
    assert main(["verify", right, wrong]) == 1
    assert "refused: " in capsys.readouterr().out
    assert main(["verify", wrong, broken, right]) == 2
    said = capsys.readouterr()
    assert [line.split(":")[0] for line in said.out.splitlines() if line[0] != " "] == ["refused", "proven"]
    assert said.err.startswith("hpcoll: error: ")
    assert "broken.xml" in said.err


def test_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Needless dependencies, scratch and bytes are named on request."""
    path = tmp_path / "pairs.xml"
    path.write_text(pairs_allreduce(4).text())
    assert main(["verify", "--advice", str(path)]) == 0
    assert "dependencies others imply 8: line " in capsys.readouterr().out  # those of each gpu's second part
    path.write_text(hops_alltoall(4).text())
    assert main(["verify", "--advice", str(path)]) == 0
    found = capsys.readouterr().out
    assert "sends 1 m, 0.75 m would do" in found


def test_files_are_drawn_and_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.xml"
    path.write_text(ring_allreduce(4).text())
    assert main(["show", str(path)]) == 0
    assert "allreduce/mine on 4 ranks, 4 chunks" in capsys.readouterr().out
    assert main(f"simulate {path} --bytes 1M --algorithms ring".split()) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:4]]
    assert [name for name, _ in rows] == ["mine", "ring"]
    mine, ring = (float(cell.rstrip("*")) for _, cell in rows)
    assert mine == pytest.approx(ring, rel=0.01), "the same ring takes the same time"
    assert main(f"simulate {path} -n 8".split()) == 2
