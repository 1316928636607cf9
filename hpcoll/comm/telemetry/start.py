"""The start of what a process writes about its calls while it runs: traces, metrics, the summary at the end."""

from pathlib import Path

from hpcoll.comm.team.resources import CommunicatorCalls
from hpcoll.comm.telemetry import interrupted, metrics, trace

_begun = set[str]()
_traces: list[trace.Trace] = []  # at most one
_metrics: list[metrics.Metrics] = []  # the same


def begins(context: CommunicatorCalls) -> None:
    """Begin what the settings ask for, with the first context of this process."""
    config = context.resources.config
    if config.trace and "trace" not in _begun:
        _begun.add("trace")
        _traces.extend(trace.begin(context.resources, Path(config.trace.folder)))
    if config.metrics and "metrics" not in _begun:
        _begun.add("metrics")
        _metrics.append(metrics.Metrics(config.metrics, context.resources))
    if config.summary and "summary" not in _begun:
        _begun.add("summary")
        interrupted.begin()


def leaves(context: CommunicatorCalls) -> None:
    """Write the calls of a communicator that is about to go."""
    for one in _traces:
        one.write(context.resources)
    for metric in _metrics:
        metric.leaves(context)


def ends() -> None:
    """End all that, when the program or MPI ends; not collective."""
    for one in _traces:
        one.close()
    for metric in _metrics:
        metric.close()
