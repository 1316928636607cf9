"""Streams of the reference engine: operations run when they like, and what is wrong is refused."""

import numpy as np
import pytest
from lowering_cases import add
from reference_calls import Call, Operator, Reach, Setting
from reference_memory import Memory
from reference_streams import GpuWorld

from hpcoll.runtime.program.fields import NCOLUMNS
from hpcoll.runtime.program.opcodes import MESSAGES, PINNED, STAGING, Code, Program

Row = tuple[int, ...]

S, R, W, C = (int(code) for code in (Code.SEND, Code.RECV, Code.WAIT, Code.COPY))
STAGE, POST, AWAIT, ACK, RESERVE = (
    int(c) for c in (Code.STAGE, Code.POST, Code.AWAIT, Code.ACK, Code.RESERVE)
)
RECORD, SYNC, UNREAD = int(Code.RECORD), int(Code.SYNC), int(Code.UNREAD)

START, MARK, REACH, WAIT = (SYNC, 0), (RECORD, 1), (SYNC, 1), (W, 0)
SEND, RECV = (S, 0, 1, 0, 0, 8), (R, 0, 0, 1, 0, 8)  # from rank 0's INPUT to rank 1's OUTPUT
LEND, UNLEND = (POST, 1, 0, 0, 0, 8, 1), (UNREAD, 1, 0)
FILL = [(RESERVE,), (STAGE, 0, 0, 0, 0, 8), MARK, REACH]
POST_COPY = (POST, 1, 0, STAGING, 0, 8, 0)
AWAITED, TAKEN, USED = (AWAIT, 0, 0, 0, 0, 8), (C, 1, 0, MESSAGES, 0, 8), (ACK, 0)
TAKE: list[Row] = [AWAITED, TAKEN, MARK, REACH, USED]
PACK, UNPACK = (C, PINNED, 0, 0, 0, 8), (C, 1, 0, PINNED, 0, 8)
OWN = (C, 1, 0, 0, 0, 8)

ELSEWHERE, ON_NODE = (0, 1), (0, 0)  # nodes
MAPPED, STAGED = Reach(frozenset({1}), False, (True, True)), Reach(frozenset(), False, (True, True))
AWARE = STAGED._replace(mpi_takes_gpu=True)


def run_rows(
    first: list[Row], second: list[Row], reach: Reach, nodes: tuple[int, ...], seed: int = 1, ncalls: int = 1
) -> GpuWorld:
    """Two ranks with 64 bytes in each buffer run these rows as one lane, as often as told; ``reach`` is rank 0's."""
    programs = []
    for rows in (first, second):
        table = np.array([(*row, *[0] * (NCOLUMNS - len(row))) for row in rows], np.int64).reshape(
            -1, NCOLUMNS
        )
        sources = np.array([(0, 8 * (i % 8)) for i in range(9)])
        programs.append(Program(table, sources, np.array([(0, len(rows), 0)]), 1, 1, 64, 64, 1, 3, 64))
    calls = []
    for i in range(ncalls):
        memories = [Memory((64, 64, 64, 64), np.random.default_rng(i + 100 * rank)) for rank in range(2)]
        calls.append(Call(programs, memories, Operator(8, add), (reach, reach._replace(readers=frozenset()))))
    world = GpuWorld(calls, Setting(seed, nodes=nodes))
    world.run()
    return world


MOVES: dict[str, tuple[list[Row], list[Row], Reach, tuple[int, ...]]] = {
    "in place": ([START, LEND, UNLEND], TAKE, MAPPED, ON_NODE),
    "staged": ([*FILL, POST_COPY], TAKE, STAGED, ON_NODE),
    "from GPU memory": ([START, SEND, WAIT], [START, RECV, WAIT], AWARE, ELSEWHERE),
    "from pinned memory": (
        [PACK, MARK, REACH, (S, 0, 1, PINNED, 0, 8), WAIT],
        [(R, 0, 0, PINNED, 0, 8), WAIT, UNPACK, MARK, REACH],
        STAGED,
        ELSEWHERE,
    ),
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", MOVES)
def test_it_moves_messages(name: str, seed: int) -> None:
    """What arrives is what INPUT holds when the caller's earlier work is done; call after call."""
    for call in run_rows(*MOVES[name], seed, 20).calls:
        (at_0, at_1) = (memory.returned for memory in call.memories)
        assert at_0 is not None
        assert at_1 is not None
        source, target = (
            call.memories[0].area(0).part(0, 8, "").span,
            call.memories[1].area(1).part(0, 8, "").span,
        )
        assert np.array_equal(at_0[source], at_1[target])


WRONG: dict[str, tuple[list[Row], list[Row], Reach, tuple[int, ...]]] = {
    "row 0 SEND.* the caller's earlier work may go on": ([SEND, WAIT], [START, RECV, WAIT], AWARE, ELSEWHERE),
    "POST.* touches what a stream may still write": ([FILL[0], FILL[1], POST_COPY], TAKE, STAGED, ON_NODE),
    "acknowledges a message that its stream may still read": (
        [START, LEND, UNLEND],
        [AWAITED, TAKEN, USED],
        MAPPED,
        ON_NODE,
    ),
    "ends and did not wait for its stream": ([OWN], [], AWARE, ELSEWHERE),
    "ends and did not wait .* for those who read its memory": ([START, LEND], TAKE, MAPPED, ON_NODE),
    "an MPI message in buffer 0": ([START, SEND, WAIT], [START, RECV, WAIT], STAGED, ELSEWHERE),
}


@pytest.mark.parametrize("text", WRONG)
def test_it_refuses(text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        run_rows(*WRONG[text])
