"""Telemetry as an observer of calls: it compares arrivals, and begins what the settings ask for. It never ends a program."""

from collections.abc import Callable

from hpcoll.base.errors import HpcollError
from hpcoll.base.files import UntrustedError
from hpcoll.base.text import error_text
from hpcoll.comm.team.resources import CommunicatorCalls, Resources
from hpcoll.comm.telemetry.exchange import exchange_of
from hpcoll.selection.config import log


class Telemetry:
    """The observer that lets ranks compare when each began a call; a trace and metrics are observers of their own."""

    def __init__(self) -> None:
        self._begun = set[str]()

    def made(self, context: CommunicatorCalls) -> None:
        """Begin to compare calls, and what the settings ask for, with the first context of this process."""
        exchange_of(context)
        config = context.resources.config
        if config.trace:
            from hpcoll.comm.telemetry import trace

            self._begin("trace is", trace.begin, context.resources, config.trace.folder)
        if config.metrics:
            from hpcoll.comm.telemetry import metrics

            self._begin("metrics are", metrics.Metrics, context.resources, config.metrics)
        if config.summary and "summary" not in self._begun:
            from hpcoll.comm.telemetry import interrupted

            self._begun.add("summary")
            interrupted.begin()

    def _begin(
        self, what: str, make: Callable[[Resources, str], object], resources: Resources, folder: str
    ) -> None:
        """Make an observer once; where that fails, one rank of a host warns, and the one that has found a stranger's file."""
        if what in self._begun:
            return
        self._begun.add(what)
        try:
            make(resources, folder)
        except HpcollError:  # of the call in which ranks compare their clocks
            raise
        except Exception as error:
            if (
                isinstance(error, UntrustedError)
                or resources.topology.hosts.index(resources.host) == resources.rank
            ):
                log.warning("rank %d: no %s written: %s", resources.rank, what, error_text(error))

    def noted(self, context: CommunicatorCalls, over: bool) -> None:
        """Note where a blocking call was made that took long, and compare calls where it is time, unless parts of this one follow."""
        exchange_of(context).look_back(over)

    def issued(self, context: CommunicatorCalls, turn: int) -> None:
        """Tell the other ranks of the last calls in flight."""
        exchange_of(context).begin(turn)
