"""The exchange of arrivals: ranks tell each other when each began its last calls, so that each knows who came last, and who waited for it.

It happens after every `EVERY` blocking calls of a communicator, and calls in flight, and where a program asks who was late. While a trace
is written it also does about each second. A blocking call is followed by a service collective. One in flight must wait for nobody, so the
arrivals are in flight, too, and compared the next time.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.comm.plans.plan import MessageContext
from hpcoll.comm.plans.signature import Purpose
from hpcoll.comm.requests.call_hooks import HOOKS
from hpcoll.comm.requests.operation import Operation, first_unfinished
from hpcoll.comm.requests.request import nothing, query
from hpcoll.comm.status.call_site import place_of_caller
from hpcoll.comm.status.names import PLACES
from hpcoll.comm.team.resources import CommunicatorCalls
from hpcoll.comm.telemetry.account import SHORT_NS, WaitAccount, account_of
from hpcoll.comm.telemetry.clock import clock_of
from hpcoll.runtime.engine.comparison import KINDS, compare, tell
from hpcoll.runtime.program import wait_fields as w
from hpcoll.runtime.telemetry.call_log import EVERY

_MOST_LANES, _MOST_NWORDS = 30, 1 << 18  # of message contexts in an exchange; of all ranks' words together
_FIRST, _LAST, _BASE, _HEAD = range(4)  # of a lane's words
_TICKS = (1 << w.TICK_BITS) - 1
_HEADS = _MOST_LANES * _HEAD + 1  # the last word: rank 0 asks that clocks be compared, or not
_AGAIN, _FIRST_TIME = 1, 2
_FEW, _EVERY_NS = 64, 1_000_000_000  # calls, and time on the first rank's clock, for traces


class ArrivalExchange:
    """The exchange of one communicator, whose calls are given.

    The words that ranks tell are for each lane the numbers of a first and a last call and a base, and then a word for each call of each
    lane (`hpcoll.runtime.program.wait_fields`). Lanes are message contexts, in the order of all ranks.
    """

    def __init__(self, calls: CommunicatorCalls) -> None:
        self._calls, self._resources, resources = calls, calls.resources, calls.resources
        self._request: MPI.Grequest | None = None
        self._ncalls = max(64, min(EVERY + EVERY // 8, _MOST_NWORDS // resources.nranks))
        self._words: dict[str, np.ndarray] = {}  # made by the first exchange
        self._clock = clock_of(resources.team)
        self._period = _FEW if resources.config.trace else EVERY
        self._before = 0, 0  # number and time of the first call in the comparison before, on rank 0
        resources.log.compare_at(resources.log.ncalls + self._period)

    def look_back(self, over: bool) -> None:
        """Note where a blocking call was made that took long, and compare calls where it is time, and the call is ``over``."""
        log = self._resources.log
        if log.took_long:
            log.note_place(log.ncalls, PLACES.number(place_of_caller()))
        if over and log.is_due:
            with self._calls.failure_scope("a comparison of arrivals"):
                self.now()

    def now(self, gather: Callable[[np.ndarray, np.ndarray], Any] | None = None) -> None:
        """Tell each other all arrivals so far, and compare; collective, and blocking.

        Args:
            gather: Gathers every rank's array, as an allgather does; None: a service collective.
        """
        self.end()
        services = self._resources.service_collectives
        tell = gather or partial(services.gather_again, purpose=Purpose.ARRIVALS, what=str)
        self._tell()
        tell(self._words["mine"], self._words["every"])
        asked = self._words["every"][0, _HEADS - 1]
        if asked:
            self._clock.measure(gather or partial(services.gather, purpose=Purpose.CLOCKS))
        if asked == _FIRST_TIME:  # what was told was on clocks of which nobody knew
            self._tell()
            tell(self._words["mine"], self._words["every"])
        self._compare()
        if self._resources.config.trace:
            self._find_period()
        self._resources.log.compare_at(self._resources.log.ncalls + self._period)

    def _find_period(self) -> None:
        """Find how many calls are made in a second, as far as rank 0 tells: so that all ranks find the same."""
        first, _, base = self._words["every"][0, :_HEAD].tolist()
        (number, ns), self._before = self._before, (first, base)
        wanted = _EVERY_NS * (first - number) // max(base - ns, 1) if number else 2 * self._period
        self._period = min(max(wanted, _FEW), EVERY)

    def begin(self, turn: int) -> None:
        """Tell each other arrivals, in flight, as a call of that turn does."""
        self.end()
        self._tell()
        arrays, message_context = (self._words["mine"], self._words["every"]), self._resources.in_flight(turn)
        self._request = self._resources.service_collectives.gather_in_flight(
            *arrays, Purpose.ARRIVALS, message_context, _request
        )

    def end(self) -> None:
        """Compare what was told in flight."""
        if self._request is not None:
            request, self._request = self._request, None
            request.Wait()
            self._compare()

    def _lanes(self) -> list[MessageContext]:
        return self._resources.every_message_context()[:_MOST_LANES]

    def _make_room(self) -> None:
        """Make room, once."""
        rank, nranks, n = self._resources.rank, self._resources.nranks, self._ncalls
        graph = self._resources.caller.graph()
        sources = graph.sources[rank] if graph is not None else ()
        near = [end[0] for end in sources if end is not None]
        shapes = {
            "mine": (_HEADS + n,),
            "every": (nranks, _HEADS + n),
            "told": (2, nranks),
            "groups": (n, w.GROUP_NFIELDS),
            "table": (w.NFIELDS,),
        }
        self._words = {name: np.zeros(shape, np.int64) for name, shape in shapes.items()} | {
            "near": np.array([0, len(near), *near], np.int64)
        }
        table = self._words["table"]
        table[w.GROUPS], near_at = self._words["groups"].ctypes.data, self._words["near"].ctypes.data
        table[w.SOURCES], table[w.NEAREST] = near_at - 8 * rank, near_at + 16
        table[w.RANK], table[w.END], table[w.NRANKS] = rank, rank + 1, nranks
        table[w.KINDS] = KINDS.ctypes.data
        self._table, self._mine = memoryview(table), memoryview(self._words["mine"])  # type: ignore[arg-type]  # the same, at less cost
        self._addresses = {name: words.ctypes.data for name, words in self._words.items()}
        table[w.ARRIVALS], table[w.BASES] = self._addresses["told"], self._addresses["told"] + 8 * nranks

    def _tell(self) -> None:
        """Write what this rank tells: of every lane its latest calls that have ended, as many as there is room for."""
        self._calls.ledger.count_regions()
        if not self._words:
            self._make_room()
        mine, table, at, left = self._mine, self._table, _HEADS, self._ncalls
        mine[_HEADS - 1] = 0 if not self._clock.due() else _AGAIN if self._clock.is_known else _FIRST_TIME
        for lane, message_context in enumerate(self._lanes()):
            log, head = message_context.log, _HEAD * lane
            last = log.begun_and_ended[1]
            if last == log.compared:
                mine[head + _FIRST], mine[head + _LAST] = last + 1, last
                continue
            if lane:
                unfinished = first_unfinished(message_context)
                last = last if unfinished is None else unfinished - 1
            first = max(log.compared, last - left, log.first_kept - 1) + 1
            mine[head + _FIRST], mine[head + _LAST] = first, last
            if first <= last:
                table[w.LOG], table[w.FIRST], table[w.NCALLS] = log.address, first, last + 1 - first
                table[w.TOLD] = self._addresses["mine"] + 8 * at
                tell(self._addresses["table"])
                mine[head + _BASE] = table[w.BASE]
                if self._clock.crosses_hosts:
                    mine[head + _BASE] = self._clock.common(table[w.BASE])
                    words = self._words["mine"][at : at + last + 1 - first]
                    words += np.rint(self._clock.drift * (words & _TICKS)).astype(np.int64)
                at, left = at + last + 1 - first, left - (last + 1 - first)

    def _compare(self) -> None:
        """Compare the calls that all ranks have told of."""
        lanes, every = self._lanes(), self._words["every"]
        account, heads = account_of(self._resources), every[:, : _HEAD * len(lanes)].tolist()
        places = [
            self._addresses["every"] + every.strides[0] * rank + 8 * _HEADS for rank in range(len(heads))
        ]
        for lane, message_context in enumerate(lanes):
            firsts, lasts, bases = zip(
                *(head[_HEAD * lane : _HEAD * lane + _HEAD] for head in heads), strict=True
            )
            first, last, log = max(firsts), min(lasts), message_context.log
            if max(lasts) == log.compared:  # none of any rank's
                continue
            if first <= last:
                account.uncompared += first - 1 - log.compared
                told = self._words["told"]
                told[:] = (
                    [place + 8 * (first - start) for place, start in zip(places, firsts, strict=True)],
                    bases,
                )
                self._compare_lane(account, lane, message_context, first, last)
            elif last > log.compared:  # there was no room
                account.uncompared += last - log.compared
            log.compared = max(log.compared, last)
            places = [
                place + 8 * max(0, end + 1 - start)
                for place, start, end in zip(places, firsts, lasts, strict=True)
            ]
        HOOKS.compared(self._resources)

    def _compare_lane(
        self, account: WaitAccount, lane: int, message_context: MessageContext, first: int, last: int
    ) -> None:
        """Compare the calls of one lane; the words "told" are for each rank the address of its words, and its base."""
        table, n = self._table, last + 1 - first
        table[w.LOG], table[w.FIRST], table[w.NCALLS] = message_context.log.address, first, n
        if self._clock.crosses_hosts:
            account.least = max(
                SHORT_NS, self._clock.error_at(int(self._words["told"][1].min())), self._clock.error_ns
            )
        table[w.IN_FLIGHT], table[w.LEAST] = lane > 0, account.least
        table[w.SUMS], table[w.HELD_UP], table[w.WAITED_FOR], table[w.CAUSED], table[w.INHERITED] = (
            account.addresses
        )
        compare(self._addresses["table"])
        if table[w.NGROUPS]:
            account.add_places(self._words["groups"][: table[w.NGROUPS]])


def exchange_of(calls: CommunicatorCalls) -> ArrivalExchange:
    """Return the exchange of a communicator, which is made when it is first asked for."""
    if ArrivalExchange not in calls.kept:
        calls.kept[ArrivalExchange] = ArrivalExchange(calls)
    exchange: ArrivalExchange = calls.kept[ArrivalExchange]
    return exchange


def _request(operation: Operation) -> MPI.Grequest:
    """Return the request of an exchange in flight, of which no watchdog says that it stalls: the program did not make it."""
    operation.quiet = True
    return MPI.Grequest.Start(query, nothing, nothing, (operation,))
