"""The start of what a process writes about its calls while it runs: traces, metrics, the summary at the end. It never ends a program."""

from collections.abc import Callable
from typing import TypeVar

from hpcoll.base.errors import HpcollError
from hpcoll.base.files import UntrustedError
from hpcoll.base.text import error_text
from hpcoll.comm.team.resources import CommunicatorCalls, Resources
from hpcoll.comm.telemetry import interrupted, metrics, trace
from hpcoll.selection.config import log

T = TypeVar("T")

_begun = set[str]()
_traces: list[trace.Trace] = []  # at most one
_metrics: list[metrics.Metrics] = []  # the same


def begins(context: CommunicatorCalls) -> None:
    """Begin what the settings ask for, with the first context of this process."""
    config = context.resources.config
    if config.trace:
        _begin("trace is", _traces, trace.begin, context.resources, config.trace.folder)
    if config.metrics:
        _begin("metrics are", _metrics, metrics.Metrics, context.resources, config.metrics)
    if config.summary and "summary" not in _begun:
        _begun.add("summary")
        interrupted.begin()


def _begin(
    what: str, kept: list[T], make: Callable[[Resources, str], T], resources: Resources, folder: str
) -> None:
    """Make something once, and keep it; where that fails, one rank of a host warns, and the one that has found a stranger's file."""
    if what in _begun:
        return
    _begun.add(what)
    try:
        kept.append(make(resources, folder))
    except HpcollError:  # of the call in which ranks compare their clocks
        raise
    except Exception as error:
        if (
            isinstance(error, UntrustedError)
            or resources.topology.hosts.index(resources.host) == resources.rank
        ):
            log.warning("rank %d: no %s written: %s", resources.rank, what, error_text(error))


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
