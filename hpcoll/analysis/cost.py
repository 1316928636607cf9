"""Closed-form cost model: time of a catalogue row among ranks with equal links, on nodes, and on cache domains.

Cache domains of a node are to its ranks what nodes are, with other constants.

Hockney's model with LogP's overhead: a message costs ``alpha`` seconds and ``beta`` seconds per byte; what a rank spends on
each message of a pipeline that is already full is ``overhead``; combining costs ``gamma`` seconds per byte.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.placement import Nodes, members, parts
from hpcoll.schedules.row import Algorithm

BELOW_EAGER = 15 / 16  # of the eager limit: the MPI library's header has to fit in, too
ALIKE = 1.03  # times that differ by less count as one: longer segments mean fewer messages
NEVER = 1 << 62  # bytes: no message is as long
# How many times as much a message costs between caches or sockets of a node as within one, and how many ranks of a domain read at full rate
# there at once. Taken from what is published of such processors, by eye: no node with several domains was measured.
APART, STREAMS = 2.5, 4
SEGMENTS = tuple(1 << k for k in range(14, 25))  # bytes: 16 KiB .. 16 MiB


class Network(NamedTuple):
    """Constants of the model.

    Attributes:
        alpha: Seconds per message.
        beta: Seconds per byte.
        gamma: Seconds per byte combined.
        overhead: Seconds of a rank's own time per message, ``<= alpha``.
        eager: Bytes up to which the MPI library sends a message at once.
        handshake: Seconds, of the rank's own time too, that a longer message costs besides.
        cache: Bytes of a message, or of a segment, that stay in a core's cache.
        spill: How many times as much a byte costs beyond that.
        read_from: Bytes of a message from which on it is faster to read it in the sender's own memory than to stage it; None: that was
            not measured.
        streams: Ranks of a node, or of a domain, whose messages it carries at once, each at full rate.
    """

    alpha: float
    beta: float = 0.0
    gamma: float = 0.0
    overhead: float = 0.0
    eager: int = NEVER
    handshake: float = 0.0
    cache: int = NEVER
    spill: float = 1.0
    read_from: int | None = None
    streams: int = 1


def apart(network: Network) -> Network:
    """Usual constants of messages between cache domains, from those of messages within one."""
    alpha, beta, overhead = (APART * seconds for seconds in (network.alpha, network.beta, network.overhead))
    return network._replace(alpha=alpha, beta=beta, overhead=overhead, streams=STREAMS)


class Levels(NamedTuple):
    """Constants of messages by how far they go.

    Attributes:
        node: Between ranks of one node, on nodes with several cache domains between ranks of one domain.
        network: Between nodes.
        domains: Between domains of one node; None: what is usual where those of the node hold.
    """

    node: Network
    network: Network
    domains: Network | None = None

    def across(self) -> Network:
        """Between domains of one node."""
        return self.domains or apart(self.node)

    def on_parts(self, nodes: Nodes, domains: Nodes) -> "Levels":
        """Those on and between what `hpcoll.schedules.placement.parts` finds: a node with several domains costs what is between these."""
        if len(set(domains)) == len(set(nodes)):
            return self
        if len(set(nodes)) > 1:
            return Levels(self.across(), self.network)
        return Levels(self.node, self.across()) if parts(nodes, domains) == domains else self


def byte_seconds(network: Network, nbytes: float, *, reduces: bool) -> float:
    """Seconds that each byte of a message or segment of ``nbytes`` costs on its way."""
    return (network.beta + network.gamma * reduces) * (network.spill if nbytes > network.cache else 1.0)


def seconds(row: Algorithm, nranks: int, nbytes: float, segment: float, network: Network) -> float:
    """Time of one call among ranks with equal links.

    Args:
        row: Catalogue row that is not hierarchical.
        nranks: ``>= 1``; one rank costs nothing.
        nbytes: m, bytes of the whole message as the catalogue counts it.
        segment: Bytes per segment; for chunked rows bytes per chunk. Rows without a pipeline ignore it.
        network: Constants.
    """
    nsegments = max(1, math.ceil(nbytes / segment)) if row.pipelined or row.chunked else 1
    first, following = _paces(row, nranks, nbytes, nsegments, network)
    return first + (nsegments - 1) * following


def _paces(row: Algorithm, nranks: int, nbytes: float, nsegments: int, network: Network) -> tuple[float, float]:
    """Seconds until the first segment is through, and from each segment to the next."""
    if nranks < 2:
        return 0.0, 0.0
    nchunks = nsegments if row.chunked else 1
    fields = ("rounds", "messages", "critical", "sent", "received")
    rounds, messages, critical, sent, received = (row.cost(field, nranks, nchunks) for field in fields)
    messages = max(messages, rounds)
    piece = nbytes if row.chunked else nbytes / nsegments
    largest = row.cost("largest", nranks) * nbytes / nsegments
    handshake = network.handshake if largest > BELOW_EAGER * network.eager else 0.0
    alpha, overhead = network.alpha + handshake, network.overhead + handshake
    work = byte_seconds(network, nbytes / nsegments, reduces=COLLECTIVES[row.collective].reduces)
    first = rounds * alpha + (messages - rounds) * overhead + critical * piece * work
    return first, 0.0 if row.chunked else max(max(sent, received) * piece * work, messages * overhead)


def seconds_on_nodes(row: Algorithm, nodes: Nodes, nbytes: float, segment: float, levels: Levels) -> float:
    """Time of one call among ranks of several nodes, or of several domains of one; arguments as in `seconds`.

    A flat algorithm is as slow as its messages between nodes, for which the ranks of a node share its link. Of a hierarchical one the
    parts on a node and between nodes follow each other, and overlap from segment to segment.

    Args:
        levels: The first two count, as `Levels.on_parts` has them.
    """
    ranks = members(nodes)
    if not row.hierarchical:
        network = levels.network
        return seconds(row, len(nodes), nbytes, segment, _shared_by(network, _sharers(row, nodes)))
    nsegments = max(1, math.ceil(nbytes / segment)) if row.pipelined else 1
    nstripes, largest = int(row.cost("stripes", len(nodes), nodes=nodes)), max(map(len, ranks))
    link = _shared_by(levels.network, nstripes)
    paces = [_paces(CATALOGUE[key], largest, nbytes, nsegments, levels.node) for key in row.inner]
    part = nbytes if row.collective == "alltoall" else nbytes / nstripes  # there each rank has a whole message to send
    outer = _paces(CATALOGUE[row.outer], len(ranks), part, nsegments, link)
    return sum(first for first, _ in (*paces, outer)) + (nsegments - 1) * max(sum(following for _, following in paces), outer[1])


def _shared_by(network: Network, nranks: float) -> Network:
    """What messages cost where so many ranks send them through one link."""
    return network._replace(beta=network.beta * max(1.0, nranks / network.streams))


def _sharers(row: Algorithm, nodes: Nodes) -> float:
    """How many ranks of a node send to other nodes at once."""
    p, largest = len(nodes), max(map(len, members(nodes)))
    if row.neighbours:
        return max([1, *Counter(node for node, following in zip(nodes, (*nodes[1:], nodes[0])) if node != following).values()])
    return max(1.0, largest * (p - largest) / max(1, p - 1))


def best_segment(row: Algorithm, nodes: Nodes, nbytes: float, eager: int, time: Callable[[int], float]) -> tuple[float, int]:
    """``(seconds, segment bytes)`` of the fastest segment size, of several alike the longest that stays below the eager limit.

    Args:
        row: Catalogue row.
        nodes: Placement of the ranks.
        nbytes: m.
        eager: As in `Network`: segments whose messages just stay below it are tried, too.
        time: Seconds of one call with segments of so many bytes.
    """
    whole = max(1, math.ceil(nbytes))
    if len(nodes) < 2 or not (row.pipelined or row.chunked):
        return time(whole), whole
    below = int(BELOW_EAGER * eager / row.cost("largest", len(nodes), nodes=nodes))
    found = {segment: time(segment) for segment in (whole, *(s for s in (*SEGMENTS, below) if SEGMENTS[0] <= s < whole))}
    fastest = min(found, key=lambda segment: (found[segment], -segment))
    eager_ones = (segment for segment, cost in found.items() if segment <= below and cost <= ALIKE * found[fastest])
    longest = max(fastest, *eager_ones, 0)
    return found[longest], longest
