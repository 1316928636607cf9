"""The simulated timeline against closed forms, and against the verifier's count of dependent messages."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from hpcoll.analysis.cost import Network
from hpcoll.analysis.timeline import ROUNDS, simulate
from hpcoll.analysis.verify import verify_schedules
from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Op, Schedule, Writer, inputs, outputs
from hpcoll.schedules.row import schedule

HOCKNEY = Network(alpha=3.0, overhead=3.0, beta=0.01)
LOGGP = Network(alpha=3.0, overhead=0.5, beta=0.01)


def schedules_of(key: str, nranks: int, root: int = 0, nchunks: int = 1) -> list[Schedule]:
    return [schedule(CATALOGUE[key], nranks, rank, root, nchunks) for rank in range(nranks)]


def written(
    nranks: int, write: Callable[[Writer], None], nchunks: int = 1, collective: str = "bcast"
) -> list[Schedule]:
    found = []
    for rank in range(nranks):
        writer = Writer(nranks, rank, 0, nchunks)
        write(writer)
        channels = tuple(tuple(steps) for steps in writer.channels)
        found.append(
            Schedule(collective, "handmade", nranks, rank, 0, nchunks, channels, tuple(writer.extents))
        )
    return found


def total(schedules: list[Schedule], nbytes: float, network: Network) -> float:
    return simulate(schedules, nbytes, network).total


@pytest.mark.parametrize("nranks", [2, 3, 5, 8])
@pytest.mark.parametrize("network", [HOCKNEY, LOGGP, Network(alpha=3.0, beta=0.01)])
def test_ring_takes_two_phases_of_neighbour_messages(nranks: int, network: Network) -> None:
    expected = 2 * (nranks - 1) * (network.alpha + network.beta * 1000 / nranks)
    assert total(schedules_of("allreduce/ring", nranks), 1000, network) == pytest.approx(expected)


@pytest.mark.parametrize("nranks", [2, 3, 5, 8, 13])
@pytest.mark.parametrize("root", [0, 1])
def test_binomial_bcast_takes_q_messages_where_a_message_occupies_its_sender(nranks: int, root: int) -> None:
    expected = (nranks - 1).bit_length() * (3.0 + 0.01 * 1000)
    assert total(schedules_of("bcast/binomial", nranks, root), 1000, HOCKNEY) == pytest.approx(expected)


@pytest.mark.parametrize(("nranks", "nchunks"), [(2, 1), (3, 4), (6, 5)])
def test_chain_pipelines_its_chunks(nranks: int, nchunks: int) -> None:
    def chain(w: Writer) -> None:
        for chunk in range(nchunks):
            if w.rank > 0:
                w.recv(w.rank - 1, outputs(chunk))
            if w.rank < nranks - 1:
                w.send(w.rank + 1, outputs(chunk))

    expected = (nranks - 2 + nchunks) * (3.0 + 0.01 * 1000 / nchunks)
    assert total(written(nranks, chain, nchunks), 1000, HOCKNEY) == pytest.approx(expected)


@pytest.mark.parametrize("key", CATALOGUE)
def test_latency_alone_counts_dependent_messages(key: str) -> None:
    in_place = COLLECTIVES[CATALOGUE[key].collective].always_in_place
    for nranks in (1, 2, 3, 6, 8, 9):
        schedules = schedules_of(key, nranks, nchunks=3)
        proof = verify_schedules(schedules, in_place=in_place, uniform=CATALOGUE[key].uniform)
        assert total(schedules, 0, Network(alpha=1.0)) == proof.rounds, nranks


@pytest.mark.parametrize("key", CATALOGUE)
def test_ports_carry_one_message_at_a_time(key: str) -> None:
    timeline = simulate(schedules_of(key, 6, nchunks=3), 600, LOGGP)
    for events in timeline.events:
        for port in ((Op.SEND,), (Op.RECV, Op.RECV_REDUCE)):
            busy = [event for event in events if event.op in port]
            assert all(first.end <= second.start + 1e-9 for first, second in pairwise(busy))
    assert timeline == simulate(schedules_of(key, 6, nchunks=3), 600, LOGGP)


def test_a_chunk_is_overwritten_only_after_it_was_sent() -> None:
    def swap(w: Writer) -> None:
        w.copy(inputs(0), outputs(0))
        w.send(1 - w.rank, outputs(0))
        w.copy(inputs(0), outputs(0))
        w.recv(1 - w.rank, outputs(0))

    copies = [event for event in simulate(written(2, swap), 100, LOGGP).events[0] if event.op == Op.COPY]
    assert [event.start for event in copies] == [0.0, pytest.approx(1.5)]


def test_events_say_who_and_what() -> None:
    sender, receiver = simulate(schedules_of("bcast/binomial", 2), 100, ROUNDS).events
    assert [(event.op, event.peer, event.chunk, event.channel) for event in sender] == [
        (Op.SEND, 1, outputs(0), 0)
    ]
    assert [(event.op, event.peer, event.chunk, event.channel) for event in receiver] == [
        (Op.RECV, 0, outputs(0), 0)
    ]


def test_a_message_that_nobody_sends_is_an_error() -> None:
    with pytest.raises(ScheduleError, match=r"rank 1, step 0 .* nobody sends"):
        simulate(written(2, lambda w: w.recv(0, outputs(0)) if w.rank else None), 8, LOGGP)


@pytest.mark.parametrize("network", [{"overhead": 2.0}, {"overhead": -1.0}, {"beta": -1.0}, {"gamma": -1.0}])
def test_network_refuses_impossible_costs(network: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match="network needs"):
        simulate(schedules_of("bcast/binomial", 2), 8, Network(alpha=1.0, **network))
