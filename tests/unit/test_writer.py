"""What builders write: the order of arguments, and errors that name the line and what to write."""

from collections.abc import Callable, Iterator

import pytest

import hpcoll
from hpcoll.analysis.verify import verify_schedules
from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.registry.proof import proven
from hpcoll.schedules.catalogue import CATALOGUE, registered
from hpcoll.schedules.ir import Buffer, Chunk, Op, Step, Writer, inputs, outputs
from hpcoll.schedules.row import schedule


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """What a test registers is gone after it."""
    yield
    for row in registered():
        del CATALOGUE[row.key]


def exchange(w: Writer) -> None:
    """A swap of inputs that receives into scratch."""
    received = w.scratch(0)
    w.send(1 - w.rank, inputs(0))
    w.recv(1 - w.rank, received)
    w.reduce(inputs(0), received, dst=outputs(0))


def test_sources_come_first() -> None:
    writer = Writer(2, 0, 0, 2)
    writer.copy(inputs(1), outputs(1))
    writer.recv_reduce(1, inputs(0), outputs(0))
    writer.recv_reduce(1, outputs(0))
    writer.reduce(inputs(0), outputs(1), dst=outputs(0))
    assert [(step.op, step.dst, step.srcs) for step in writer.channels[0]] == [
        (Op.COPY, outputs(1), (inputs(1),)),
        (Op.RECV_REDUCE, outputs(0), (inputs(0),)),
        (Op.RECV_REDUCE, outputs(0), (outputs(0),)),
        (Op.REDUCE, outputs(0), (inputs(0), outputs(1))),
    ]


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (
            lambda w: w.send(1, inputs),
            r"send\(peer, src\) needs chunks such as inputs\(0\).*, got inputs without an index",
        ),
        (lambda w: w.recv(1, outputs), r"recv\(peer, dst\) needs chunks .*, got outputs without an index"),
        (lambda w: w.copy(0, outputs(0)), r"copy\(src, dst\) needs chunks .*, got 0"),
        (lambda w: w.recv_reduce(1, None), r"recv_reduce\(peer, src, dst\) needs chunks .*, got None"),
        (
            lambda w: w.reduce(inputs(0), 3, dst=outputs(0)),
            r"reduce\(\*srcs, dst=...\) needs chunks .*, got 3",
        ),
        (
            lambda w: w.send(0.5, inputs(0)),
            r"send\(peer, src\) needs the rank of its peer, an integer, got 0.5",
        ),
        (lambda w: w.send(inputs(0), 1), r"send\(peer, src\) needs chunks .*, got 1"),
        (
            lambda w: w.recv_reduce(1, outputs(0), inputs(0)),
            r"recv_reduce\(peer, src, dst\) has its source first, as copy has",
        ),
        (
            lambda w: w.reduce(outputs(0), inputs(0), inputs(0)),
            r"reduce\(\*srcs, dst=...\) has its sources first",
        ),
    ],
)
def test_wrong_arguments_name_the_line_of_the_builder(write: Callable[[Writer], None], text: str) -> None:
    """The old order of arguments is refused, too, where it can be told apart."""
    row = hpcoll.algorithm("allreduce", name="mine")(write)
    line = write.__code__.co_firstlineno
    with pytest.raises(
        ScheduleError,
        match=rf"^rank 0: allreduce/mine on 2 ranks: its builder raised \w+ at {__file__}:{line}: {text}",
    ):
        schedule(row, 2, 0)
    with pytest.raises(ArgumentError, match=text):
        write(Writer(2, 0, 0, 1))


def test_an_index_that_is_no_integer_is_refused_with_its_step() -> None:
    def half(w: Writer) -> None:
        w.copy(inputs(w.rank / 2), outputs(0))  # type: ignore[arg-type]

    row = hpcoll.algorithm("allreduce")(half)
    with pytest.raises(ScheduleError, match=r"rank 1, step 0 \(copy\(input\[0\.5\] -> output\[0\]\)\)"):
        proven(row, 2)


def test_a_peer_may_be_any_integer() -> None:
    numpy = pytest.importorskip("numpy")
    writer = Writer(2, 0, 0, 1)
    writer.send(numpy.int64(1), inputs(0))
    assert writer.channels[0] == [Step(Op.SEND, 1, None, (inputs(0),))]
    assert type(writer.channels[0][0].peer) is int


# --- sizes of scratch


def test_sizes_of_scratch_are_explained() -> None:
    def another_size(w: Writer) -> None:
        w.copy(inputs(0), w.scratch(1))

    schedules = [
        schedule(hpcoll.algorithm("allreduce", chunks="2")(another_size), 2, rank) for rank in range(2)
    ]
    text = r"differ in size: input\[0\] has \[0\], scratch\[0\] has \[1\]; .* w.scratch\(1\) is as large as chunk 1"
    with pytest.raises(ScheduleError, match=text):
        verify_schedules(schedules, in_place=False)


def test_scratch_of_no_size_is_refused() -> None:
    def too_large(w: Writer) -> None:
        run = w.scratch(1024)
        assert run == Chunk(Buffer.SCRATCH, 0, 1)
        exchange(w)

    row = hpcoll.algorithm("allreduce")(too_large)
    text = r"w\.scratch\(1024\) names the size of a chunk that there is not: a cell is as large as the chunk, or block, of that index"
    with pytest.raises(ScheduleError, match=rf"rank 0: {text}"):
        proven(row, 2)


# --- the fewest ranks


def test_a_refusal_names_the_fewest_ranks_that_fail() -> None:
    def wrong_from_3(w: Writer) -> None:
        if w.nranks < 3:
            exchange(w)

    row = hpcoll.algorithm("allreduce")(wrong_from_3)
    proven(row, 2)
    fewest = "is refused on 5 ranks before any message leaves; 3 ranks are the fewest on which it is wrong: rank 0: output"
    with pytest.raises(ScheduleError, match=fewest):
        proven(row, 5)
