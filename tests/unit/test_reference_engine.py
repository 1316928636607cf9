"""The reference engine itself: it moves messages of both kinds and refuses each thing that it is there to refuse."""

import numpy as np
import pytest
from lowering_cases import add
from reference_calls import Call, Operator, Setting
from reference_engine import World
from reference_memory import STAGING_SLOTS, Memory

from hpcoll.runtime.program.fields import NCOLUMNS
from hpcoll.runtime.program.opcodes import MESSAGES, Code, Program
from hpcoll.schedules.ir import RING_SLOTS

Row = tuple[int, ...]

S, R, W, C, F = (int(code) for code in (Code.SEND, Code.RECV, Code.WAIT, Code.COPY, Code.REDUCE))
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


def test_it_moves_a_message() -> None:
    world = run_rows([SEND_0, WAIT], [RECV_1, WAIT], Setting(1))
    assert moved(world.calls[0], 8)
    assert world.messages == 1


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
    "call 0 rank 0 lane 0 row 1 COPY.* writes memory of a message": (
        [SEND_0, (C, 0, 0, 1, 0, 8), WAIT],
        [RECV_1, WAIT],
    ),
    "touches memory of a receive": ([SEND_0, WAIT], [RECV_1, (C, 2, 0, 1, 4, 8), WAIT]),
    "differ in size": ([SEND_0, WAIT], [(R, 0, 0, 1, 0, 4), WAIT]),
    "leaves buffer 1": ([(C, 1, 57, 0, 0, 8)], []),
    "memcpy of overlapping memory": ([(C, 0, 4, 0, 0, 8)], []),
    "operands overlap partly": ([(F, 1, 0, 1, 0, 2)], []),
    "did not wait for requests": ([SEND_0], [RECV_1, WAIT]),
    "request 0 is in use": ([SEND_0, SEND_0, WAIT], [RECV_1, WAIT]),
    "request 2 is not among": ([(S, 2, 1, 0, 0, 8)], []),
}
WRONG_ON_NODE: dict[str, tuple[list[Row], list[Row]]] = {
    "deadlock: call 0 rank 1 lane 0 row 0 AWAIT": ([], TAKE),
    "an MPI message to rank 1 of the same node": ([SEND_0, WAIT], [RECV_1, WAIT]),
    "a message to itself": ([(POST, 0, 0, 0, 0, 8)], []),
    "messages that nobody awaited": ([INLINE], []),
    "awaits 64 bytes and gets 8": ([INLINE], TAKE_64),
    "slot 0 is in use": ([INLINE, INLINE], [TAKE[0], *TAKE]),
    "no message has come to slot 0": ([INLINE], TAKE[1:]),
    "leaves its message: bytes 0 to 16 of 8": ([INLINE], [TAKE[0], (C, 1, 0, MESSAGES, 0, 16), TAKE[2]]),
    "reads a message that it has acknowledged": ([INLINE], [TAKE[0], TAKE[2], TAKE[1]]),
    "acknowledges a message that it has not awaited": ([INLINE], [TAKE[2]]),
    "did not acknowledge messages in slots": ([INLINE], TAKE[:2]),
    "deadlock: call 0 rank 0 lane 0 row 4 POST": ([INLINE] * (RING_SLOTS + 1), []),
    "has no staging memory": ([FILL[1], STAGED], TAKE_64),
    "reserves twice": ([*FILL, FILL[0]], []),
    "leaves its staging memory: bytes 8 to 72 of 64": ([FILL[0], (STAGE, 0, 8, 0, 0, 64)], []),
    "STAGE.* writes memory of a message": ([*FILL, STAGED, FILL[1]], []),
    "COPY.* writes memory of a message": ([IN_PLACE, (C, 0, 0, 1, 0, 64), (DRAIN, 1)], []),
    "rank 0 returns while buffer 0 may still be read": ([IN_PLACE], []),
}


@pytest.mark.parametrize("text", WRONG)
def test_it_refuses(text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        run_rows(*WRONG[text], Setting(1))


@pytest.mark.parametrize("text", WRONG_ON_NODE)
def test_it_refuses_on_a_node(text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        run_rows(*WRONG_ON_NODE[text], Setting(1, nodes=(0, 0)), shared=True)


def test_it_refuses_an_eager_message_without_a_receive() -> None:
    with pytest.raises(AssertionError, match="messages without a receive"):
        run_rows([SEND_0, WAIT], [], Setting(1, eager_nbytes=8))


def test_eager_messages_end_what_rendezvous_leaves_in_a_deadlock() -> None:
    both: list[list[Row]] = [[(S, 0, peer, 0, 0, 8), WAIT, (R, 1, peer, 1, 0, 8), (W, 1)] for peer in (1, 0)]
    assert run_rows(both[0], both[1], Setting(1, eager_nbytes=8)).messages == 2
    with pytest.raises(AssertionError, match="deadlock"):
        run_rows(both[0], both[1], Setting(1))


def test_staging_memory_is_not_handed_out_again_while_it_may_be_read() -> None:
    """Rank 1 never comes: rank 0 gets as far as all staging slots once."""
    with pytest.raises(AssertionError, match=f"deadlock: call {STAGING_SLOTS} rank 0 lane 0 row 0 RESERVE"):
        run_rows([*FILL, STAGED], [], Setting(1, nodes=(0, 0)), ncalls=STAGING_SLOTS + 1)
