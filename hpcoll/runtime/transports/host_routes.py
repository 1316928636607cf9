"""Which route the messages of arrays in host memory take to each peer."""

from collections.abc import Mapping

from hpcoll.runtime.program.route import Routes
from hpcoll.runtime.transports.mpi_route import MpiRoute
from hpcoll.runtime.transports.rings import RingRoute


def host_routes(local_peers: Mapping[int, int]) -> Routes:
    """Routes of arrays in host memory, the best first.

    Args:
        local_peers: Local rank of each peer with which this rank has rings.
    """
    return Routes((RingRoute, local_peers), (MpiRoute, None))
