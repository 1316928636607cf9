"""The cost model: constants of messages by distance, and the seconds of a catalogue row on equal links, nodes, cache domains, and GPUs.

Hockney's model with LogP's overhead: a message costs ``alpha`` seconds and ``beta`` seconds per byte. Each message of a pipeline that is
already full costs a rank ``overhead`` seconds. Combining costs ``gamma`` seconds per byte. Cache domains of a node are to its ranks what
nodes are, with other constants.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.placement import Nodes, members, parts
from hpcoll.schedules.row import Algorithm

NEVER = 1 << 62  # bytes, more than any message has
# Cost factor of messages between caches or sockets of a node, against those within one, and ranks of a domain that read there at full rate
# at once. Estimates from published numbers of such processors: no node with several domains was measured.
APART, STREAMS = 2.5, 4
BELOW_EAGER = 15 / 16  # of the eager limit: the MPI library's header has to fit in, too
ALIKE = 1.03  # times that differ by less count as equal: longer segments mean fewer messages
SEGMENTS = tuple(1 << k for k in range(14, 25))  # bytes: 16 KiB .. 16 MiB


class Network(NamedTuple):
    """Constants of the model."""

    alpha: float  # seconds per message
    beta: float = 0.0  # seconds per byte
    gamma: float = 0.0  # seconds per byte combined
    overhead: float = 0.0  # CPU seconds of a rank per message, ``<= alpha``
    eager: int = NEVER  # bytes of the longest message that the MPI library sends without a rendezvous
    handshake: float = 0.0  # seconds, of CPU too, that the rendezvous of a longer message costs
    cache: int = NEVER  # bytes of the longest message, or segment, that stays in a core's cache
    spill: float = 1.0  # cost factor of each byte of longer ones
    read_from: int | None = (
        None  # bytes from which reading a message in the sender's memory is faster than staging it, if measured
    )
    streams: int = 1  # ranks of a node, or domain, that send to others at full rate at once


def apart(network: Network) -> Network:
    """Return the usual constants between cache domains, from those within a domain."""
    alpha, beta, overhead = (APART * seconds for seconds in (network.alpha, network.beta, network.overhead))
    return network._replace(alpha=alpha, beta=beta, overhead=overhead, streams=STREAMS)


class Levels(NamedTuple):
    """Constants of messages by the distance that they travel."""

    node: Network  # within a node; on nodes with several cache domains within a domain
    network: Network  # between nodes
    domains: Network | None = None  # between domains of a node; None: `apart` of ``node``

    def across(self) -> Network:
        """Return the constants between domains of a node."""
        return self.domains or apart(self.node)

    def on_parts(self, nodes: Nodes, domains: Nodes) -> "Levels":
        """Return the levels within and between `hpcoll.schedules.placement.parts`; nodes of several domains cost what domains cost."""
        if len(set(domains)) == len(set(nodes)):
            return self
        if len(set(nodes)) > 1:
            return Levels(self.across(), self.network)
        return Levels(self.node, self.across()) if parts(nodes, domains) == domains else self


# Usual constants, estimated from measurements: ranks of a node through shared memory; the same through messages of Open MPI and MPICH; the
# collectives of these libraries there; hosts with some network between them.
SHARED_NETWORK = Network(alpha=0.5e-6, beta=0.5e-10, gamma=0.3e-10, overhead=0.25e-6, cache=4 << 20)
HPCOLL_NETWORK = Network(
    alpha=0.6e-6,
    beta=0.7e-10,
    gamma=0.35e-10,
    overhead=0.3e-6,
    eager=4000,
    handshake=2e-6,
    cache=4 << 20,
    spill=1.4,
)
NATIVE_NETWORK = Network(
    alpha=0.9e-6,
    beta=0.7e-10,
    gamma=0.3e-10,
    overhead=0.9e-6,
    eager=4000,
    handshake=2e-6,
    cache=4 << 20,
    spill=2.0,
)
HOSTS_NETWORK = Network(
    alpha=13e-6, beta=4e-10, gamma=0.35e-10, overhead=8e-6, eager=64 << 10, handshake=15e-6
)
ONE_HOST, HOSTS = Levels(SHARED_NETWORK, HPCOLL_NETWORK), Levels(SHARED_NETWORK, HOSTS_NETWORK)
# Ranks with arrays in GPU memory: a launch and an event per operation. Links between GPUs were not measured.
GPU_NETWORK = Network(alpha=15e-6, beta=0.5e-11, gamma=0.5e-12, overhead=5e-6)


def levels_between(hosts: Sequence[str], fitted: Levels | None) -> Levels:
    """Return the constants of messages on a node and between nodes: the measured ones, if there are some, else the usual ones.

    A usual eager limit is assumed between hosts where the measurement found none, because lone messages seldom show it.
    """
    if len(set(hosts)) == 1:
        return fitted or ONE_HOST
    if fitted is None or fitted.network.eager <= HOSTS.network.eager:
        return fitted or HOSTS
    usual = HOSTS.network
    return fitted._replace(
        network=fitted.network._replace(
            eager=usual.eager, handshake=max(usual.handshake, fitted.network.handshake)
        )
    )


def byte_seconds(network: Network, nbytes: float, *, reduces: bool) -> float:
    """Return the seconds that each byte of a message or segment of ``nbytes`` costs on its way."""
    return (network.beta + network.gamma * reduces) * (network.spill if nbytes > network.cache else 1.0)


def seconds(
    row: Algorithm, nranks: int, nbytes: float, segment: float, network: Network, nodes: Nodes = ()
) -> float:
    """Return the seconds of a call among ranks with equal links; the row is not hierarchical.

    ``nbytes`` is m, the bytes of the whole message as the catalogue counts it. ``segment`` has the bytes per segment, or of chunked rows
    per chunk; rows without a pipeline ignore it. ``nodes`` are those between which neighbours' messages are counted; none: all are.
    """
    nsegments = max(1, math.ceil(nbytes / segment)) if row.pipelined or row.chunked else 1
    first, following = _paces(row, nranks, nbytes, nsegments, network, nodes)
    return first + (nsegments - 1) * following


def _paces(
    row: Algorithm, nranks: int, nbytes: float, nsegments: int, network: Network, nodes: Nodes = ()
) -> tuple[float, float]:
    """Return the seconds until the first segment is through, and from each segment to the next."""
    if nranks < 2:
        return 0.0, 0.0
    nchunks = nsegments if row.chunked else 1
    fields = ("rounds", "messages", "critical", "sent", "received")
    rounds, messages, critical, sent, received = (row.cost(field, nranks, nchunks, nodes) for field in fields)
    messages = max(messages, rounds)
    piece = nbytes if row.chunked else nbytes / nsegments
    largest = row.cost("largest", nranks, nodes=nodes) * nbytes / nsegments
    handshake = network.handshake if largest > BELOW_EAGER * network.eager else 0.0
    alpha, overhead = network.alpha + handshake, network.overhead + handshake
    work = byte_seconds(network, nbytes / nsegments, reduces=COLLECTIVES[row.collective].reduces)
    first = rounds * alpha + (messages - rounds) * overhead + critical * piece * work
    return first, 0.0 if row.chunked else max(max(sent, received) * piece * work, messages * overhead)


# The parts of a hierarchical exchange with neighbours, as formulas of `hpcoll.schedules.patterns.bundles.GraphTraffic`.
_ON_THE_NODE: dict[str, Any] = {"rounds": "2*(e>0)", "messages": "e", "critical": "i/d", "largest": "i/d"}
_BETWEEN_NODES: dict[str, Any] = {"rounds": "a>0", "messages": "a", "critical": "w/d", "largest": "w/d"}


def seconds_on_nodes(row: Algorithm, nodes: Nodes, nbytes: float, segment: float, levels: Levels) -> float:
    """Return the seconds of a call among ranks of several nodes, or of several domains of one node; arguments as in `seconds`.

    A flat algorithm is as slow as its messages between nodes, which share the link of their node. The parts of a hierarchical algorithm on
    a node and between nodes follow each other, and overlap from segment to segment. ``levels`` are as `Levels.on_parts` returns them.
    """
    ranks, neighbours = members(nodes), COLLECTIVES[row.collective].neighbours
    if not (row.hierarchical and (row.outer or neighbours)):
        between = nodes if neighbours and len(ranks) > 1 else ()
        return seconds(
            row, len(nodes), nbytes, segment, _shared_by(levels.network, _sharers(row, nodes)), between
        )
    if neighbours:
        near, far = row._replace(**_ON_THE_NODE), row._replace(**_BETWEEN_NODES)
        link = _shared_by(levels.network, _sharers(far, nodes))
        return sum(
            _paces(part, len(nodes), nbytes, 1, network, nodes)[0]
            for part, network in ((near, levels.node), (far, link))
        )
    nsegments = max(1, math.ceil(nbytes / segment)) if row.pipelined else 1
    nstripes, largest = int(row.cost("stripes", len(nodes), nodes=nodes)), max(map(len, ranks))
    link = _shared_by(levels.network, nstripes)
    paces = [_paces(CATALOGUE[key], largest, nbytes, nsegments, levels.node) for key in row.inner]
    # there each rank has a whole message to send
    part = nbytes if row.collective == "alltoall" else nbytes / nstripes
    outer = _paces(CATALOGUE[row.outer], len(ranks), part, nsegments, link)
    known = sum(_messages(CATALOGUE[key], largest) for key in row.inner) + _messages(
        CATALOGUE[row.outer], len(ranks)
    )
    # where a stripe is no run of blocks
    more = max(0.0, row.cost("messages", len(nodes), nodes=nodes) - known) * levels.node.overhead
    on_node = sum(following for _, following in paces) + more
    return sum(first for first, _ in (*paces, outer)) + more + (nsegments - 1) * max(on_node, outer[1])


def _messages(row: Algorithm, nranks: int) -> float:
    return max(row.cost("messages", nranks), row.cost("rounds", nranks)) if nranks > 1 else 0.0


def _shared_by(network: Network, nranks: float) -> Network:
    """Return the constants where ``nranks`` ranks send through one link."""
    return network._replace(beta=network.beta * max(1.0, nranks / network.streams))


def _sharers(row: Algorithm, nodes: Nodes) -> float:
    """Return the number of a node's ranks that send to other nodes at once."""
    p, largest = len(nodes), max(map(len, members(nodes)))
    if COLLECTIVES[row.collective].neighbours:
        return row.evaluate(
            f"x/d/max(1/d, {row.critical or row.cost('critical', p, nodes=nodes)})", p, nodes=nodes
        )
    if row.sharers and largest < p and list(nodes) == sorted(nodes):
        return min(largest, row.evaluate(row.sharers, p, nodes=nodes))
    if row.neighbours:
        return max(
            [
                1,
                *Counter(
                    node for node, following in zip(nodes, (*nodes[1:], nodes[0])) if node != following
                ).values(),
            ]
        )
    return max(1.0, largest * (p - largest) / max(1, p - 1))


def best_segment(
    row: Algorithm, nodes: Nodes, nbytes: float, eager: int, time: Callable[[int], float]
) -> tuple[float, int]:
    """Return seconds and bytes of the fastest segment size; of equal ones the longest below the eager limit.

    Segments with messages just below the limit are tried, too. Rows without a pipeline take the whole message. ``time`` returns the seconds
    of a call with segments of a number of bytes.
    """
    whole = max(1, math.ceil(nbytes))
    if len(nodes) < 2 or not (row.pipelined or row.chunked):
        return time(whole), whole
    below = int(BELOW_EAGER * eager / row.cost("largest", len(nodes), nodes=nodes))
    times = {
        segment: time(segment)
        for segment in (whole, *(s for s in (*SEGMENTS, below) if SEGMENTS[0] <= s < whole))
    }
    fastest = min(times, key=lambda segment: (times[segment], -segment))
    eager_ones = (
        segment for segment, cost in times.items() if segment <= below and cost <= ALIKE * times[fastest]
    )
    longest = max(fastest, *eager_ones, 0)
    return times[longest], longest


# --- arrays in GPU memory that all ranks map: kernels and copies, turns on a shared GPU, bytes

# Ranks are processes. Without MPS a GPU works for one process at a time, and each turn costs a context switch, which takes longer than a
# short kernel. So the number of turns counts most.


class GpuCosts(NamedTuple):
    """Constants of a GPU and its links; those to other GPUs were not measured."""

    copy: float  # bytes per second that its memory reads and writes, together
    link: float  # bytes per second to and from other GPUs of the node, each way
    launch: float = 5e-6  # seconds of the host for launching a kernel or a copy
    sync: float = 10e-6  # seconds from a kernel's end until the host, and then a peer's host, knows of it
    switch: float = 150e-6  # seconds of a context switch to another process
    lane: int = 16 << 20  # bytes of a message that one kernel works on


H100 = GpuCosts(copy=2.95e12, link=4.0e11)  # link: nine tenths of NVLink's data sheet


class GpuPrediction(NamedTuple):
    """The costs of a call on arrays in GPU memory."""

    rounds: int  # times that ranks wait for work of other ranks' GPUs
    launches: int  # kernels and copies of the busiest rank
    switches: int  # context switches of the busiest GPU
    moved: float  # bytes that the busiest GPU's memory reads and writes
    linked: float  # bytes that reach the busiest GPU from others
    seconds: float  # of the whole call


def predict_on_gpus(row: Algorithm, gpus: Nodes, nbytes: float, gpu: GpuCosts = H100) -> GpuPrediction:
    """Return the costs of a call where all ranks map each other's GPU memory; ``gpus`` has the number of each rank's GPU."""
    p, sharing, nlanes = len(gpus), max(map(len, members(gpus))), max(1, math.ceil(nbytes / gpu.lane))
    if p < 2:
        return GpuPrediction(0, 0, 0, 0.0, 0.0, 0.0)
    nchunks, used = nlanes if row.chunked else 1, row.on_gpu
    rounds, messages, critical = (
        row.cost(field, p, nchunks, gpus if row.placed else ())
        for field in ("rounds", "messages", "critical")
    )
    turns = int(used.turns or rounds)
    launches = int(used.launches or max(messages, rounds)) * (1 if row.chunked else nlanes)
    workers = 1 if used.one_works else sharing
    moved = (
        row.evaluate(used.moved, p, nchunks, gpus)
        if used.moved
        else critical * (3 if COLLECTIVES[row.collective].reduces else 2)
    )
    linked = workers * critical * (p - sharing) / (p - 1) * nbytes
    switches = turns * workers if sharing > 1 else 0
    waits = turns * (gpu.launch + gpu.sync) + (launches - turns) * gpu.launch + switches * gpu.switch
    return GpuPrediction(
        turns,
        launches,
        switches,
        workers * moved * nbytes,
        linked,
        waits + max(workers * moved * nbytes / gpu.copy, linked / gpu.link),
    )
