"""The insides of communicators that tests look at for a good reason: no other file here knows their private names."""

from typing import Any

from hpcoll.comm.context import attach


def context(comm: Any) -> Any:
    """A communicator's context."""
    return comm._context


def resources(comm: Any) -> Any:
    """What a communicator has for itself: node, team, message contexts, topology, settings."""
    return comm._context.resources


def registry() -> Any:
    """The groups of ranks of this process, and what freed communicators have left for others."""
    return attach._registry


def free_kept() -> None:
    """Give back what freed communicators have left for others."""
    attach._registry.free()


def server_of(parameter_server: Any) -> Any:
    """The server of this rank in a parameter server."""
    return parameter_server._server


def made_for(comm: Any, topology: Any) -> None:
    """Let the schedules of a communicator's later calls be made for another topology."""
    engines = comm._context.planner._engines
    comm._context.resources.topology = engines._topology = topology
    engines._nodes = topology.nodes
