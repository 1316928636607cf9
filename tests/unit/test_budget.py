"""Files of strangers that ask for much: each is refused in one line, soon and in little memory, and large honest ones are read."""

import contextlib
import io
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msccl_files import XmlProgram

from hpcoll.base.errors import ArgumentError
from hpcoll.cli import main
from hpcoll.formats.conditions import read_conditions
from hpcoll.formats.reading import prove_program, read_program
from hpcoll.synthesis.hops import Task
from hpcoll.synthesis.search import bounds
from hpcoll.synthesis.topologies import topology

sys.path.append(str(Path(__file__).parents[1]))

from slowness import slowed

LIMIT_S, LIMIT_NBYTES = 20, 1 << 30


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """A gigabyte more than this process has."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(
        resource.RLIMIT_DATA, (int(status["VmData"].split()[0]) * 1024 + LIMIT_NBYTES, before[1])
    )
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


def refused(*arguments: str) -> str:
    """Return the one line with which a command refuses a file, soon."""
    out, errors, start = io.StringIO(), io.StringIO(), time.monotonic()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main(list(arguments))
    assert time.monotonic() - start < slowed(LIMIT_S)
    (line,) = (out.getvalue() + errors.getvalue()).splitlines()
    assert code in (1, 2)
    assert "not enough memory" not in line
    return line


# --- plans


def plan(*blocks: list[dict[str, Any]], **of_gpu: Any) -> str:
    """Return a plan of two gpus; the first has thread blocks with these operations."""
    gpu = {
        "input_chunks": 1,
        "output_chunks": 1,
        "scratch_chunks": 0,
        "channels": [],
        "threadblocks": [],
        **of_gpu,
    }
    mine = [{"id": number, "ops": ops, "channels": []} for number, ops in enumerate(blocks)]
    gpus = [gpu | {"id": 0, "threadblocks": mine}, gpu | {"id": 1}]
    return json.dumps({"name": "x", "collective": "allreduce", "inplace": True, "gpus": gpus})


def loops() -> str:
    """Two kilobytes that loop 65,536 times over as many parts as a prime number of thread blocks makes of a chunk, and do nothing."""
    group = {
        "name": "copy",
        "tbg_info": {"tb_id": 0, "tbg_size": 1021},
        "channel_type": "none",
        "src_buff": [{"type": "i", "index": 0, "size": 1}],
        "dst_buff": [{"type": "o", "index": 0, "size": 1}],
    }
    return plan([{"name": "pipeline", "iter_context": {"num_chunks": 65536}, "ops": []}, group])


def barriers() -> str:
    return plan(*[[{"name": "barrier", "barrier_id": 0, "num_threadblocks": 1500}] * 4] * 1500)


def semaphores() -> str:
    release, acquire = ({"name": name, "semaphore_ids": [0]} for name in ("sem_release", "sem_acquire"))
    return plan(*[[release] * 4] * 1500, [acquire] * 6000, semaphores=[{"init_value": 0}])


@pytest.mark.parametrize("write", [loops, barriers, semaphores])
def test_small_files_that_ask_for_much_are_refused_in_a_line(
    write: Callable[[], str], tmp_path: Path
) -> None:
    file = tmp_path / "much.json"
    file.write_text(write())
    assert "much.json" in (line := refused("verify", str(file)))
    assert (
        "expected a file that takes at most 512 MiB, or the time to fill these, got one with too many "
        in line
    )


# --- MSCCL XML: waits that are found in one look


def waits_of_own_block() -> XmlProgram:
    program = XmlProgram("allreduce", 2, 2, (2, 2, 0), inplace=1)
    block = program.block(0, chan=-1)
    for step in range(12_000):
        program.step(0, block, "cpy", ("i", 0), ("i", 1))
        program.gpus[0][block][step].set("hasdep", str(int(step == 6_000)))
        if step > 6_000:
            program.gpus[0][block][step].attrib.update(depid="0", deps="0")
    return program


def waits_of_copies_onto_themselves() -> XmlProgram:
    """Each thread block waits for the one before, whose step is a copy onto itself: when that is dropped, so is the wait."""
    program = XmlProgram("allreduce", 2, 2, (2, 2, 0), inplace=1)
    after = (-1, -1)
    for number in range(3000):
        block = program.block(0, chan=-1)
        if number:
            program.step(0, block, "nop", cnt=0, after=after)
        after = program.step(0, block, "cpy", ("i", 0), ("i", 0))
    return program


@pytest.mark.parametrize("write", [waits_of_own_block, waits_of_copies_onto_themselves])
def test_waits_take_time_by_their_number(write: Callable[[], XmlProgram], tmp_path: Path) -> None:
    """Both took minutes, or would have: as long as the square of what is in the file."""
    file = tmp_path / "waits.xml"
    file.write_text(write().text())
    assert "output[0] must hold" in refused("verify", str(file))


# --- conditions and topologies


def test_conditions_of_many_chunks_are_read_at_once(tmp_path: Path) -> None:
    """Each output looked for its name in all inputs: 0.7 MB took a minute."""
    names = [f"n{number}" for number in range(40_000)]
    file, start = tmp_path / "conditions.json", time.monotonic()
    file.write_text(json.dumps({"inputs": [[], names], "outputs": [names[::-1], []], "shifts": [0, 0]}))
    found = read_conditions(file)
    assert set(found.outputs[0]) == {(name, 2) for name in names}
    assert time.monotonic() - start < slowed(LIMIT_S)
    file.write_text(json.dumps({"inputs": [[]] * 100_000, "outputs": [[]] * 100_000}))
    with pytest.raises(ArgumentError, match="lists for at most 1024 gpus, got 100000"):
        read_conditions(file)
    file.write_text(json.dumps({"inputs": [[1 << 61]], "outputs": [[10**30]]}))
    with pytest.raises(ArgumentError, match="integers of 64 bits"):
        read_conditions(file)


def test_topologies_of_many_groups_are_refused(tmp_path: Path) -> None:
    links = [[a, b, 1] for a in range(12) for b in range(12) if a != b]
    ports = [
        {"links": [link[:2] for link in links if link[end] == rank], "bandwidth": 4}
        for rank in range(12)
        for end in (0, 1)
    ]
    file = tmp_path / "links.json"
    file.write_text(json.dumps({"nranks": 12, "links": links, "groups": ports}))
    assert bounds(Task("alltoall", 12, 0, 1), topology(str(file))).rounds == 3
    file.write_text(json.dumps({"nranks": 12, "links": links, "groups": ports * 100}))
    assert "too many turns of a loop" in refused("synthesize", "allgather", "--topology", str(file))


# --- what is honest


def test_a_file_of_many_gpus_is_proven(tmp_path: Path) -> None:
    """An alltoall of 66 gpus has 4,356 thread blocks."""
    p = 66
    program = XmlProgram("alltoall", p, p, (p, p, 0), inplace=0, outofplace=1, maxBytes=2**63 - 1)
    for gpu in range(p):
        program.step(gpu, program.block(gpu, chan=-1), "cpy", ("i", gpu), ("o", gpu))
        for turn in range(1, p):
            there, back = (gpu + turn) % p, (gpu - turn) % p
            block = program.block(gpu, there, back)
            program.step(gpu, block, "s", ("i", there))
            program.step(gpu, block, "r", dst=("o", back))
    file = tmp_path / "alltoall.xml"
    file.write_text(program.text())
    assert prove_program(read_program(file)).messages == p * (p - 1)
