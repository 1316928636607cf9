"""Networks as the cost model sees them: the constants of messages by distance, and those that ranks usually have."""

from collections.abc import Sequence
from typing import NamedTuple

from hpcoll.schedules.placement import Nodes, parts

NEVER = 1 << 62  # bytes, more than any message has
# Cost factor of messages between caches or sockets of a node, against those within one, and ranks of a domain that read there at full rate
# at once. Estimates from published numbers of such processors: no node with several domains was measured.
APART, STREAMS = 2.5, 4


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
    read_from: int | None = None  # bytes from which reading a message in the sender's memory is faster than staging it, if measured
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
    alpha=0.6e-6, beta=0.7e-10, gamma=0.35e-10, overhead=0.3e-6, eager=4000, handshake=2e-6, cache=4 << 20, spill=1.4
)
NATIVE_NETWORK = Network(
    alpha=0.9e-6, beta=0.7e-10, gamma=0.3e-10, overhead=0.9e-6, eager=4000, handshake=2e-6, cache=4 << 20, spill=2.0
)
HOSTS_NETWORK = Network(alpha=13e-6, beta=4e-10, gamma=0.35e-10, overhead=8e-6, eager=64 << 10, handshake=15e-6)
ONE_HOST, HOSTS = Levels(SHARED_NETWORK, HPCOLL_NETWORK), Levels(SHARED_NETWORK, HOSTS_NETWORK)
# Ranks with arrays in GPU memory: a launch and an event per operation. Not measured, for lack of a GPU.
GPU_NETWORK = Network(alpha=15e-6, beta=0.5e-11, gamma=0.5e-12, overhead=5e-6)


def levels_of(hosts: Sequence[str], fitted: Levels | None) -> Levels:
    """Return the constants of messages on a node and between nodes: the measured ones, else the usual ones.

    A usual eager limit is assumed between hosts where the measurement found none, because lone messages seldom show it.

    Args:
        hosts: Name of each rank's host.
        fitted: The measured constants, or None.
    """
    if len(set(hosts)) == 1:
        return fitted or ONE_HOST
    if fitted is None or fitted.network.eager <= HOSTS.network.eager:
        return fitted or HOSTS
    usual = HOSTS.network
    return fitted._replace(network=fitted.network._replace(eager=usual.eager, handshake=max(usual.handshake, fitted.network.handshake)))
