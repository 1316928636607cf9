"""The start of what a process writes about its calls while it runs: traces, metrics, the summary at the end."""

from hpcoll.comm.team.resources import CommunicatorCalls

_begun = set[str]()


def begins(context: CommunicatorCalls) -> None:
    """Begin what the settings ask for, with the first context of this process."""
    config = context.resources.config
    if config.trace and "trace" not in _begun:
        _begun.add("trace")
    if config.metrics and "metrics" not in _begun:
        _begun.add("metrics")
