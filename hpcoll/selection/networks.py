"""What messages usually cost, where ``hpcoll tune`` has not measured it: constants of the cost model, fitted by eye."""

from collections.abc import Sequence

from hpcoll.analysis.cost import Levels, Network

# Ranks of a node through shared memory, ranks of a node through messages of Open MPI and MPICH, the same libraries' own collectives
# there, and hosts with some network between them.
SHARED_NETWORK = Network(alpha=0.5e-6, beta=0.5e-10, gamma=0.3e-10, overhead=0.25e-6, cache=4 << 20)
HPCOLL_NETWORK = Network(
    alpha=0.6e-6, beta=0.7e-10, gamma=0.35e-10, overhead=0.3e-6, eager=4000, handshake=2e-6, cache=4 << 20, spill=1.4
)
NATIVE_NETWORK = Network(
    alpha=0.9e-6, beta=0.7e-10, gamma=0.3e-10, overhead=0.9e-6, eager=4000, handshake=2e-6, cache=4 << 20, spill=2.0
)
HOSTS_NETWORK = Network(alpha=13e-6, beta=4e-10, gamma=0.35e-10, overhead=8e-6, eager=64 << 10, handshake=15e-6)
ONE_HOST, HOSTS = Levels(SHARED_NETWORK, HPCOLL_NETWORK), Levels(SHARED_NETWORK, HOSTS_NETWORK)
# Of ranks whose arrays are in GPU memory: a launch and an event per operation. No GPU was there to fit them to.
GPU_NETWORK = Network(alpha=15e-6, beta=0.5e-11, gamma=0.5e-12, overhead=5e-6)


def levels(hosts: Sequence[str], fitted: Levels | None) -> Levels:
    """Costs of messages on a node and between nodes: as measured, else what such places usually have.

    Where several hosts showed no eager limit, the usual one is taken to be there: it seldom shows in lone messages.

    Args:
        hosts: Name of each rank's host.
        fitted: What was measured, or None.
    """
    if len(set(hosts)) == 1:
        return fitted or ONE_HOST
    if fitted is None or fitted.network.eager <= HOSTS.network.eager:
        return fitted or HOSTS
    usual = HOSTS.network
    return fitted._replace(network=fitted.network._replace(eager=usual.eager, handshake=max(usual.handshake, fitted.network.handshake)))
