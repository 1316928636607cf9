"""The reference engine itself: it moves messages on a node, and refuses what it is there to refuse."""

import numpy as np
import pytest
from lowering_cases import add
from reference_calls import Call, Operator, Setting
from reference_engine import World
from reference_memory import Memory

from hpcoll.runtime.program.fields import NCOLUMNS
from hpcoll.runtime.program.opcodes import MESSAGES, Code, Program
from hpcoll.schedules.ir import RING_SLOTS

Row = tuple[int, ...]

S, R, W, C = (int(code) for code in (Code.SEND, Code.RECV, Code.WAIT, Code.COPY))
STAGE, POST, AWAIT, ACK, DRAIN, RESERVE = (
    int(c) for c in (Code.STAGE, Code.POST, Code.AWAIT, Code.ACK, Code.DRAIN, Code.RESERVE)
)
# from rank 0's INPUT to rank 1's OUTPUT
SEND_0, RECV_1, WAIT = (
    (S, 0, 1, 0, 0, 8),
    (R, 0, 0, 1, 0, 8),
    (W, 0),
)
# from rank 0's INPUT
INLINE, STAGED, IN_PLACE = (
    (POST, 1, 0, 0, 0, 8),
    (POST, 1, 0, 0, 0, 64),
    (POST, 1, 0, 0, 0, 64, 1),
)
FILL = [(RESERVE,), (STAGE, 0, 0, 0, 0, 64)]
TAKE = [(AWAIT, 0, 0, 0, 0, 8), (C, 1, 0, MESSAGES, 0, 8), (ACK, 0)]  # at rank 1, into its OUTPUT
TAKE_64 = [(AWAIT, 0, 0, 0, 0, 64), (C, 1, 0, MESSAGES, 0, 64), (ACK, 0)]


def run_rows(
    first: list[Row], second: list[Row], setting: Setting, *, shared: bool = False, ncalls: int = 1
) -> World:
    """Two ranks with 64 bytes in each buffer run these rows as one lane, as often as told."""
    programs = []
    for rows in (first, second):
        table = np.array([(*row, *[0] * (NCOLUMNS - len(row))) for row in rows], np.int64).reshape(
            -1, NCOLUMNS
        )
        programs.append(
            Program(table, np.array([(0, 0), (0, 4)]), np.array([(0, len(rows), 0)]), 1, 2, 64, 64, 1)
        )
    calls = []
    for seed in range(ncalls):
        memories = [
            Memory((64, 64, 64), np.random.default_rng(seed + 100 * rank), (shared, shared))
            for rank in range(2)
        ]
        calls.append(Call(programs, memories, Operator(8, add)))
    world = World(calls, setting)
    world.run()
    return world


def moved(call: Call, nbytes: int) -> bool:
    """Say whether rank 1's OUTPUT holds rank 0's INPUT, as they found them when the call returned."""
    (at_0, at_1) = (memory.returned for memory in call.memories)
    assert at_0 is not None
    assert at_1 is not None
    source, target = (
        call.memories[0].area(0).part(0, nbytes, "").span,
        call.memories[1].area(1).part(0, nbytes, "").span,
    )
    return np.array_equal(at_0[source], at_1[target])


ON_NODE = {
    "inline": ([INLINE], TAKE, 8),
    "staged": ([*FILL, STAGED], TAKE_64, 64),
    "in place": ([IN_PLACE, (DRAIN, 1)], TAKE_64, 64),
    "more than there are ring slots": ([INLINE] * (RING_SLOTS + 3), TAKE * (RING_SLOTS + 3), 8),
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", ON_NODE)
def test_it_moves_messages_on_a_node(name: str, seed: int) -> None:
    """In many calls: staging slots come round again."""
    first, second, nbytes = ON_NODE[name]
    world = run_rows(first, second, Setting(seed, nodes=(0, 0)), shared=name == "in place", ncalls=20)
    assert all(moved(call, nbytes) for call in world.calls)
    assert world.messages == 0


WRONG: dict[str, tuple[list[Row], list[Row]]] = {
    "deadlock: call 0 rank 0 lane 0 row 1 WAIT.*; call 0 rank 1 lane 0 row 1 WAIT": (
        [SEND_0, WAIT],
        [(S, 0, 0, 0, 0, 8), WAIT],
    ),
    "touches memory of a receive": ([SEND_0, WAIT], [RECV_1, (C, 2, 0, 1, 4, 8), WAIT]),
    "leaves buffer 1": ([(C, 1, 57, 0, 0, 8)], []),
    "did not wait for requests": ([SEND_0], [RECV_1, WAIT]),
}
WRONG_ON_NODE: dict[str, tuple[list[Row], list[Row]]] = {
    "messages that nobody awaited": ([INLINE], []),
    "reads a message that it has acknowledged": ([INLINE], [TAKE[0], TAKE[2], TAKE[1]]),
    "did not acknowledge messages in slots": ([INLINE], TAKE[:2]),
    "deadlock: call 0 rank 0 lane 0 row 4 POST": ([INLINE] * (RING_SLOTS + 1), []),
    "STAGE.* writes memory of a message": ([*FILL, STAGED, FILL[1]], []),
    "rank 0 returns while buffer 0 may still be read": ([IN_PLACE], []),
}


@pytest.mark.parametrize("text", [*WRONG, *WRONG_ON_NODE])
def test_it_refuses(text: str) -> None:
    on_node = text in WRONG_ON_NODE
    first, second = (WRONG | WRONG_ON_NODE)[text]
    with pytest.raises(AssertionError, match=text):
        run_rows(first, second, Setting(1, nodes=(0, 0) if on_node else (0, 1)), shared=on_node)
