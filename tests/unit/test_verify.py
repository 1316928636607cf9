"""The verifier: every reason to refuse the steps of a schedule, each reached by one made by hand."""

from collections.abc import Sequence
from functools import partial

import pytest
from handmade import exchange, made, refusal

from hpcoll.analysis.verify import Proof, verify_schedules
from hpcoll.schedules.ir import Buffer, Chunk, Op, Step, Writer, inputs, outputs


def append(w: Writer, op: Op, peer: int, dst: Chunk | None, *srcs: Chunk) -> None:
    """A step that no method of Writer would write."""
    w.channels[-1].append(Step(op, peer, dst, srcs))


def exchange_beside(w: Writer) -> None:
    """An allreduce of two ranks that is right in place too."""
    received = w.scratch(0)
    w.send(1 - w.rank, inputs(0))
    w.recv(1 - w.rank, received)
    w.reduce(*((inputs(0), received) if w.rank == 0 else (received, inputs(0))), dst=outputs(0))


# --- what a step may be


@pytest.mark.parametrize(
    "chunk", [inputs(1), inputs(-1), inputs(0, 2), inputs(0, 0), Chunk(Buffer.SCRATCH, 0)]
)
def test_chunk_outside_its_buffer(chunk: Chunk) -> None:
    error = refusal("allreduce", lambda w: w.copy(chunk, outputs(0)))
    assert f"{chunk} is outside its buffer of {int(chunk.buffer == Buffer.INPUT)} chunks" in str(error)
    assert (error.rank, error.step) == (0, 0)
    assert error.op.startswith("copy(")


@pytest.mark.parametrize("in_place", [False, True])
def test_input_is_read_only(in_place: bool) -> None:
    error = refusal("allreduce", lambda w: w.copy(inputs(0), inputs(0)), in_place=in_place)
    assert "writes input[0]: input is read-only" in str(error)


@pytest.mark.parametrize("peer", [-1, 2])
def test_peer_outside_the_communicator(peer: int) -> None:
    assert f"peer must be another rank below 2, got {peer}" in str(
        refusal("allreduce", lambda w: w.send(peer, inputs(0)))
    )


def test_peer_is_another_rank() -> None:
    assert "peer must be another rank below 2, got 0" in str(
        refusal("allreduce", lambda w: w.send(w.rank, inputs(0)))
    )


@pytest.mark.parametrize(
    ("op", "dst", "srcs", "wanted"),
    [
        (Op.SEND, None, (), 1),
        (Op.SEND, None, (inputs(0), inputs(0)), 1),
        (Op.RECV, outputs(0), (inputs(0),), 0),
        (Op.RECV_REDUCE, outputs(0), (), 1),
        (Op.COPY, outputs(0), (inputs(0), inputs(0)), 1),
        (Op.REDUCE, outputs(0), (inputs(0),), 2),
    ],
)
def test_number_of_operands(op: Op, dst: Chunk | None, srcs: Sequence[Chunk], wanted: int) -> None:
    peer = -1 if op in (Op.COPY, Op.REDUCE) else 1
    error = refusal("allreduce", lambda w: append(w, op, peer if w.rank == 0 else 0, dst, *srcs))
    assert f"reads {len(srcs)} runs of chunks, not {wanted}" in str(error)


@pytest.mark.parametrize(("op", "dst"), [(Op.SEND, outputs(0)), (Op.COPY, None)])
def test_sends_and_only_sends_write_nothing(op: Op, dst: Chunk | None) -> None:
    error = refusal("allreduce", lambda w: append(w, op, 1 - w.rank, dst, inputs(0)))
    assert "only a send, and every send, writes nothing here" in str(error)


# --- what chunks hold


def test_read_before_anything_is_there() -> None:
    assert "reads output[0] before anything is in it" in str(
        refusal("allreduce", lambda w: w.send(1 - w.rank, outputs(0)))
    )


def test_read_of_a_run_that_is_half_filled() -> None:
    def build(w: Writer) -> None:
        w.copy(inputs(0), outputs(0))
        w.send(1 - w.rank, outputs(0, 2))

    assert "reads output[0..1] before" in str(refusal("allreduce", build, nchunks=2))


def test_contribution_counted_twice() -> None:
    def build(w: Writer) -> None:
        exchange(w)
        w.reduce(outputs(0), inputs(0), dst=outputs(0))

    assert "counts the contribution of rank 1 twice" in str(refusal("allreduce", build))


def test_contribution_that_comes_twice_is_fine_for_a_barrier() -> None:
    def build(w: Writer) -> None:
        exchange(w)
        w.reduce(outputs(0), inputs(0), dst=outputs(0))

    assert verify_schedules(made("barrier", build), in_place=False).reproducible


def test_data_of_different_places() -> None:
    error = refusal(
        "allreduce", lambda w: w.reduce(inputs(0), inputs(1), dst=outputs(0)), nchunks=2, uniform=True
    )
    assert "combines data of different places: 0 and 1" in str(error)


def test_sizes_of_a_local_step() -> None:
    for build in (lambda w: w.copy(inputs(1), outputs(0)), lambda w: w.copy(inputs(0, 2), outputs(0))):
        assert "source and destination differ in size" in str(refusal("allreduce", build, nchunks=2))


def test_sizes_of_a_message() -> None:
    def build(w: Writer) -> None:
        w.send(1 - w.rank, inputs(1))
        w.recv(1 - w.rank, outputs(0))

    assert "expects sizes of [0], rank 0 sends [1]" in str(refusal("allreduce", build, nchunks=2))


def test_equal_blocks_are_exchangeable_only_where_uniform_is_said() -> None:
    def build(w: Writer) -> None:
        slot = w.scratch(w.rank)
        w.send(1 - w.rank, inputs(0))
        w.recv(1 - w.rank, slot)  # block of the other rank in a cell as large as the own
        w.copy(inputs(0), outputs(w.rank))
        w.copy(slot, outputs(1 - w.rank))

    assert verify_schedules(made("allgather", build, nchunks=2), in_place=False, uniform=True).messages == 2
    assert "expects sizes of [1], rank 0 sends [0]" in str(refusal("allgather", build, nchunks=2))


# --- messages and waiting


def test_message_that_nobody_receives() -> None:
    def build(w: Writer) -> None:
        exchange(w)
        if w.rank == 1:
            w.send(0, inputs(0))

    error = refusal("allreduce", build)
    assert "1 message(s) to rank 0 in channel 0 are never received" in str(error)
    assert error.rank == 1


def test_message_in_the_wrong_channel() -> None:
    def build(w: Writer) -> None:
        w.channel(w.rank)
        exchange(w)

    assert "deadlock" in str(refusal("allreduce", build))


def test_receive_without_a_message() -> None:
    error = refusal("allreduce", lambda w: w.recv(1 - w.rank, outputs(0)))
    assert "deadlock: no message comes, since rank 1 waits at step 0: recv(peer 0 -> output[0])" in str(error)
    assert error.rank == 0


def test_everybody_receives_first() -> None:
    def build(w: Writer) -> None:
        w.recv_reduce(1 - w.rank, inputs(0), outputs(0))
        w.send(1 - w.rank, inputs(0))

    assert "deadlock" in str(refusal("allreduce", build))


def test_chunk_in_use_deadlocks_under_rendezvous() -> None:
    """In place, each rank would overwrite what the other has yet to fetch, and fetches only after that."""
    assert verify_schedules(made("allreduce", exchange), in_place=False).messages == 2
    cause = "in place, what is received overwrites what is still being sent to rank 1: receive into scratch"
    assert f"rank 0, step 1 (recv_reduce(peer 1, input[0] -> output[0])): deadlock: {cause}" in str(
        refusal("allreduce", exchange, in_place=True)
    )
    assert verify_schedules(made("allreduce", exchange_beside), in_place=True).messages == 2


def test_chunk_in_use_holds_its_writer_up_until_the_message_is_received() -> None:
    """Rank 0 sends its output and then overwrites it; rank 1 receives late. What arrives is what was sent."""

    def build(w: Writer) -> None:
        if w.rank == 0:
            w.copy(inputs(0), outputs(0))
            w.send(1, outputs(0))
            w.recv(1, outputs(0))
        else:
            kept = w.scratch(0)
            w.copy(inputs(0), kept)
            w.recv_reduce(0, kept, outputs(0), received_first=True)
            w.send(0, outputs(0))

    assert verify_schedules(made("allreduce", build), in_place=False) == Proof(
        2, 2, True, True, 1, canonical=True
    )


def test_overtaking_messages_are_seen() -> None:
    """Two messages of one size between two ranks arrive in the order they were sent."""

    def build(w: Writer, last: int) -> None:
        if w.rank == 0:
            w.send(1, outputs(1 - last))
            w.send(1, outputs(last))
        else:
            w.recv(0, outputs(0))
            w.recv(0, outputs(1))

    assert (
        verify_schedules(
            made("bcast", partial(build, last=1), nchunks=2), in_place=True, uniform=True
        ).messages
        == 2
    )
    error = refusal("bcast", partial(build, last=0), nchunks=2, in_place=True, uniform=True)
    assert "output[0] must hold item 0 of ranks [0], holds item 1 of ranks [0]" in str(error)


# --- channels


def test_channels_that_share_a_written_chunk() -> None:
    def build(w: Writer) -> None:
        w.copy(inputs(0), outputs(0))
        w.channel(1)
        w.send(1 - w.rank, outputs(0))

    assert "output[0] is used by channels [0, 1] and one of them writes it" in str(
        refusal("allreduce", build)
    )


def test_channels_that_share_a_chunk_in_place_only() -> None:
    def build(w: Writer) -> None:
        w.send(1 - w.rank, inputs(0))
        w.channel(1)
        w.copy(inputs(1), outputs(0))

    def text(in_place: bool) -> str:
        return str(refusal("allreduce", build, nchunks=2, in_place=in_place, uniform=True))

    assert "output[0] is used by channels [0, 1]" in text(in_place=True)
    assert "are never received" in text(in_place=False)


def test_channels_may_read_the_same_chunk() -> None:
    def build(w: Writer) -> None:
        for channel in (0, 1):
            w.channel(channel)
            received = w.scratch(0)
            w.send(1 - w.rank, inputs(0))
            w.recv(1 - w.rank, received)
        w.reduce(inputs(0), received, dst=outputs(0))

    assert verify_schedules(made("allreduce", build), in_place=False).messages == 4
