"""Times of messages as the engine sends them, to which the cost model's constants are fitted.

Two ranks run schedules of their own in the compiled engine; the others sleep. In an **exchange** each of the two sends a message
and waits for the other's. That takes as long as a message one way, and links carry both directions at once, as in collectives.
A **burst** is many short messages one way, and an answer. Exchanges are lanes that follow each other in one crossing into compiled
code, so that Python's share is a part in hundreds. A long message fills several lanes of shared memory, some in flight as in a
collective, and has a crossing of its own.

The shortest of repeated timings counts, because other work of the machine only adds to them. Many links carry a message faster
when they had been idle, so before each timing they have long messages to carry.
"""

import ctypes
import os
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.analysis.cost import NEVER
from hpcoll.base.ops import SUM
from hpcoll.cli.tune.fit import LARGE_NBYTES, Errors, fit_network, largest_errors
from hpcoll.comm.plans.engine_builder import past_the_caches
from hpcoll.comm.plans.ledger import Account
from hpcoll.kernels.host import kernel_address
from hpcoll.runtime.engine.entry import call_compiled
from hpcoll.runtime.engine.host_engine import Binding, HostEngine
from hpcoll.runtime.engine.wait_policy import OWN_CORE, SHARED_CORE, WaitPolicy
from hpcoll.runtime.program.chunks import vector_segments
from hpcoll.runtime.program.fields import READ_FROM_SLOW, READ_FROM_USUALLY, RUN, STAGING_SLOTS
from hpcoll.runtime.program.lowering import lower
from hpcoll.runtime.transports.cross_memory import LEAST_NBYTES, STAGED
from hpcoll.runtime.transports.host_routes import host_routes
from hpcoll.runtime.transports.local_ranks import LocalRanks, of_node
from hpcoll.runtime.transports.mpi import handle, library
from hpcoll.runtime.transports.rings import Rings
from hpcoll.schedules.ir import Schedule, Writer, outputs
from hpcoll.selection.agreement import agree
from hpcoll.selection.config import Config
from hpcoll.selection.measured import site
from hpcoll.selection.processes import Process, this_process
from hpcoll.selection.tuning import LEVELS, NODE, Constants

# bytes: 8 B .. 8 MiB
SIZES = tuple(sorted(base << k for base, most in ((8, 20), (12, 19)) for k in range(most + 1)))
BURST = 64  # short messages
BATCH_S = 200e-6  # seconds that a timing takes at least
MAX_ROUNDS = 500  # exchanges in a timing
MIN_PASSES = 3  # over all sizes: long ones for which there is no time are left out
# of the messages before a timing: at 1 Gbit/s 2 ms, in memory a tenth of the timing
STREAM_NBYTES = 256 << 10
COMBINED_NBYTES = 128 << 10  # fits a second-level cache
# bytes of messages that are read in the sender's own memory, or staged
READ_SIZES = tuple(1 << k for k in range(14, 24))
READ_SAMPLES, READ_GAIN = 15, 0.95


class Curve(NamedTuple):
    """The times of messages between two ranks of the communicator."""

    level: str  # ``node``, through shared memory, or ``network``, by messages of the MPI library
    ranks: tuple[int, int]
    sizes: tuple[int, ...]  # bytes of the messages, ascending
    seconds: tuple[float, ...]  # seconds of an exchange of each size
    burst: float  # seconds per message of many short ones
    gamma: float  # seconds per byte combined, in cache
    read_from: int | None  # as in `Network`


class Fit(NamedTuple):
    """Constants of a level, the two ranks between which they were measured, and the model's errors."""

    constants: Constants
    ranks: tuple[int, int]
    errors: Errors


class _Pair(NamedTuple):
    """Two ranks, of which this is one."""

    comm: MPI.Intracomm
    wait_policy: WaitPolicy
    # rings through which they exchange messages; None: they use messages of the MPI library
    rings: Rings | None
    reads: bool  # they read each other's memory


class _Timed(NamedTuple):
    """Engines that run one after the other, and the rounds of messages that they exchange."""

    engines: Sequence[HostEngine]
    memory: np.ndarray
    rounds: int

    def seconds(self) -> float:
        """Run the engines, and return the seconds per round."""
        address, start = self.memory.ctypes.data, perf_counter()
        for engine in self.engines:
            status = call_compiled(RUN, engine.address, address, address, 1)
            if status:
                engine.go_on(status)
        return (perf_counter() - start) / self.rounds


def fit_levels(world: MPI.Intracomm, seconds: float) -> tuple[Fit, ...]:
    """Fit constants to the levels that a communicator has, as `curves`; collective, and the result is equal on all ranks."""
    hosts = world.allgather(MPI.Get_processor_name())
    here, fits = site(hosts), []
    for curve in curves(world, seconds):
        inside = hosts[curve.ranks[0]] == hosts[curve.ranks[1]]
        network = fit_network(curve.sizes, curve.seconds, curve.burst, curve.gamma, cached=inside)
        network = network._replace(read_from=curve.read_from)
        fits.append(
            Fit(
                Constants(here, curve.level, network),
                curve.ranks,
                largest_errors(network, curve.sizes, curve.seconds),
            )
        )
    return world.bcast(tuple(fits))  # one rank's arithmetic


def curves(world: MPI.Intracomm, seconds: float) -> list[Curve]:
    """Measure the levels that a communicator of the MPI library has; collective, and the result is equal on all ranks.

    All levels together take about so many ``seconds``; where these are few, long messages are left out.
    """
    end = perf_counter() + seconds
    here, first = of_node(world)
    config, processes = agree(world, this_process(has_gpu=False), first)
    hosts = processes.hosts
    node = LocalRanks(world, here, config.shm, config.shm_ranks, processes.rows["pid"])
    leaders = world.allgather(world.rank if config.shm == 0 else min((world.rank, *node.local_peers)))
    node.free()
    wait_policy = SHARED_CORE if max(Counter(hosts).values()) > (os.cpu_count() or 1) else OWN_CORE
    pairs = find_pairs(hosts, leaders)
    measured: list[Curve] = []
    for i, (level, ranks) in enumerate(pairs.items()):
        curve = None
        if world.rank in ranks:
            comm = world.Create_group(world.group.Incl(ranks))
            with _paired(comm, config, level, [processes[rank] for rank in ranks], wait_policy) as pair:
                curve = (
                    _measure(pair, level, ranks, (end - perf_counter()) / (len(pairs) - i)) if pair else None
                )
        _sleep(world)
        curve = world.bcast(curve, root=ranks[0])
        measured += [curve] if curve else []
    return measured


def find_pairs(hosts: Sequence[Hashable], leaders: Sequence[int]) -> dict[str, tuple[int, int]]:
    """Return for each level the lowest two ranks: two that share memory; two that do not, on different hosts where there are some.

    ``leaders`` has for each rank the lowest of the ranks with which it shares memory.

    >>> find_pairs("aabb", (0, 0, 2, 2)), find_pairs("aa", (0, 1)), find_pairs("a", (0,))
    ({'node': (0, 1), 'network': (0, 2)}, {'network': (0, 1)}, {})
    """
    near = [(leader, rank) for rank, leader in enumerate(leaders) if leader != rank]
    far = [(0, rank) for rank, host in enumerate(hosts) if host != hosts[0]]
    apart = [(0, rank) for rank, leader in enumerate(leaders) if leader != leaders[0]]
    return {level: pairs[0] for level, pairs in zip(LEVELS, (near, far or apart)) if pairs}


def _sleep(world: MPI.Intracomm) -> None:
    """Wait for all ranks, without taking a core from them."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)


@contextmanager
def _paired(
    comm: MPI.Intracomm, config: Config, level: str, processes: Sequence[Process], wait_policy: WaitPolicy
) -> Iterator[_Pair | None]:
    """Pair the two ranks of a communicator, which is freed at the end; None where there is no shared memory."""
    if level == NODE:
        pids = [process.pid for process in processes]
        node = LocalRanks(comm, of_node(comm)[0], config.shm, config.shm_ranks, pids)
        reads = config.shm_copy != STAGED and not node.read_own_memory(
            [process.word for process in processes], None, NEVER
        )
        rings = node.make_rings(1)
        yield _Pair(comm, wait_policy, rings[0], reads) if rings else None
        node.free()
    else:
        yield _Pair(comm, wait_policy, None, reads=False)
    comm.Free()


def _measure(pair: _Pair, level: str, ranks: tuple[int, int], seconds: float) -> Curve | None:
    """Pass over all sizes repeatedly, so that a disturbance meets all alike; None when there is no time for long messages."""
    end, memory = perf_counter() + seconds, np.ones(2 * SIZES[-1], np.uint8)
    before, exchanges = (
        _exchanges(pair, STREAM_NBYTES, 1, memory),
        [_Timed([_engine(pair, _burst, BURST + 1, 8, 8, 10)], memory, 10)],
    )

    def sample(timed: _Timed) -> float:
        before.seconds()
        return timed.seconds()

    pass_s, round_s = 0.0, 1e-6
    for nbytes in SIZES:
        rounds = int(np.clip(BATCH_S / round_s, 1, MAX_ROUNDS))
        passes = MIN_PASSES if nbytes > LARGE_NBYTES else 1
        fits = passes * (pass_s + 2 * rounds * round_s) < end - perf_counter()
        rounds = pair.comm.bcast(rounds if fits else 0)
        if not rounds:
            break
        exchanges.append(_exchanges(pair, nbytes, rounds, memory))
        exchanges[-1].seconds()
        start = perf_counter()
        round_s = sample(exchanges[-1])
        pass_s += perf_counter() - start
    sizes = SIZES[: len(exchanges) - 1]
    if not sizes or sizes[-1] < LARGE_NBYTES:
        return None
    samples: list[list[float]] = []
    while pair.comm.bcast(not samples or perf_counter() + pass_s < end):
        samples.append([sample(timed) for timed in exchanges])
    burst_s, *times = np.min(samples, axis=0).tolist()
    # the last of the burst and the answer take as long as lone messages
    message_s = (burst_s - 2 * times[0]) / (BURST - 1)
    return Curve(
        level,
        ranks,
        sizes,
        tuple(times),
        message_s,
        combining_seconds(),
        _read_from(pair, memory) if pair.reads else None,
    )


def _read_from(pair: _Pair, memory: np.ndarray) -> int:
    """Return the bytes from which on messages are faster when they are read in the sender's own memory, or `NEVER`."""
    assert pair.rings is not None
    read_from, field = NEVER, slice(READ_FROM_USUALLY, READ_FROM_SLOW + 1)
    for nbytes in reversed(READ_SIZES):
        timed, samples = _exchanges(pair, nbytes, 4, memory), []
        for _ in range(READ_SAMPLES):
            for least in (NEVER, LEAST_NBYTES):
                pair.rings.fields[field] = least
                pair.comm.Barrier()
                samples.append(timed.seconds())
        staged, read = (float(np.median(samples[way::2])) for way in range(2))
        if pair.comm.bcast(read > READ_GAIN * staged):
            break
        read_from = nbytes
    pair.rings.fields[field] = NEVER
    return read_from


def _exchanges(pair: _Pair, nbytes: int, rounds: int, memory: np.ndarray) -> _Timed:
    most = nbytes if pair.rings is None else pair.rings.capacity // 2  # as collectives of two ranks are cut
    inside = rounds if nbytes <= most else 1
    return _Timed([_engine(pair, _exchange, 2, nbytes, most, inside)] * (rounds // inside), memory, rounds)


def _engine(
    pair: _Pair, build: Callable[[Writer], None], nchunks: int, nbytes: int, most: int, rounds: int
) -> HostEngine:
    """Return an engine for rounds of messages of one chunk, of ``nbytes``, cut into lanes of at most ``most`` bytes."""
    writer = Writer(2, pair.comm.rank, 0, nchunks)
    build(writer)
    schedule = Schedule("bcast", "messages", 2, writer.rank, 0, nchunks, (tuple(writer.channels[0]),))
    segments = vector_segments(nbytes * nchunks, most * nchunks, nchunks)
    window = STAGING_SLOTS if len(segments) > 1 else 1
    routes = host_routes(pair.rings.local_peers if pair.rings else {})
    program = lower(schedule, segments * rounds, 1, window, in_place=False, routes=routes)
    lock, account = np.zeros(1, np.int64), Account().sums
    uncached = pair.rings is not None and past_the_caches(nbytes, 2, rooted=False)
    calls = pair.rings.log if pair.rings else None
    binding = Binding(handle(pair.comm), lock, account, 0, pair.rings, calls, uncached=uncached)
    engine = HostEngine(program, library(), pair.wait_policy, binding)
    engine.bind_scratch(engine.fresh(engine.scratch_nbytes))
    return engine


def _exchange(w: Writer) -> None:
    """Write a message from each of the two ranks to the other."""
    w.send(1 - w.rank, outputs(w.rank))
    w.recv(1 - w.rank, outputs(1 - w.rank))


def _burst(w: Writer) -> None:
    """Write all chunks but one as messages from rank 0 to rank 1, and the last one back."""
    there, back = (w.recv, w.send) if w.rank else (w.send, w.recv)
    for chunk in range(w.nchunks - 1):
        there(1 - w.rank, outputs(chunk))
    back(1 - w.rank, outputs(w.nchunks - 1))


def combining_seconds() -> float:
    """Return the seconds per byte of a sum of float32 in cache; the time of a call of no elements is subtracted."""
    parts = np.ones((2, COMBINED_NBYTES // 4), np.float32)
    sources = (ctypes.c_void_p * 2)(*(part.ctypes.data for part in parts))
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    kernel = signature(kernel_address(SUM, parts.dtype))
    times = []
    for _ in range(100):
        for count in (0, parts[0].size):
            start = perf_counter()
            kernel(sources[0], ctypes.addressof(sources), 2, count)
            times.append(perf_counter() - start)
    empty, full = np.min(np.reshape(times, (-1, 2)), axis=0)
    return max(0.0, float(full - empty)) / COMBINED_NBYTES
