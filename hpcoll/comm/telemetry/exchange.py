"""The exchange of arrivals: ranks tell each other when each began its last calls, so that each knows who came last, and waited for whom.

It happens after every `EVERY` blocking calls of a communicator, and calls in flight, and where a program asks who was late. A blocking call
is followed by a service collective. One in flight must wait for nobody, so the arrivals are in flight, too, and compared the next time.
"""

from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.comm.plans.plan import MessageContext
from hpcoll.comm.plans.signature import Purpose
from hpcoll.comm.requests.operation import Operation, first_unfinished
from hpcoll.comm.requests.request import nothing, query
from hpcoll.comm.team.resources import Resources
from hpcoll.comm.telemetry.account import WaitAccount, account_of
from hpcoll.comm.telemetry.compared import ComparedCalls, listeners
from hpcoll.runtime.engine.entry import COMPARE, call_compiled
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program import wait_fields as w
from hpcoll.schedules.collectives import COLLECTIVES

EVERY = 2048  # calls, a power of two
_MOST_LANES, _MOST_NWORDS = 30, 1 << 18  # of message contexts in an exchange; of all ranks' arrivals together
_KINDS = {"bcast": w.FROM_ROOT, "scatter": w.FROM_ROOT, "reduce": w.TO_ROOT, "gather": w.TO_ROOT, "scan": w.BEFORE, "exscan": w.BEFORE}
_BY_NUMBER = np.array([w.NEAR if one.neighbours else _KINDS.get(name, w.ALL) for name, one in COLLECTIVES.items()], np.int64)


class _Told(NamedTuple):
    """The words of an exchange, and this rank's records of the calls in it, by lane."""

    mine: np.ndarray
    every: np.ndarray
    records: list[tuple[int, np.ndarray]]


class ArrivalExchange:
    """The exchange of one communicator, whose resources are given.

    The words that ranks tell are, for each lane, the numbers of a first call and of the last, and then pairs of its begin on the common
    clock and of nanoseconds that the rank had spent in other calls. Lanes are message contexts, in the order of all ranks.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._npairs = max(64, min(EVERY + EVERY // 8, _MOST_NWORDS // (2 * resources.nranks)))
        self._nwords = 2 * _MOST_LANES + 2 * self._npairs
        self._sending: tuple[_Told, Any] | None = None
        resources.log.compare_at(resources.log.ncalls + EVERY)

    @property
    def _account(self) -> WaitAccount:
        return account_of(self._resources)

    @property
    def _lanes(self) -> list[MessageContext]:
        return self._resources.every_message_context()[:_MOST_LANES]

    def now(self) -> None:
        """Tell each other all arrivals so far, and compare; collective, and blocking."""
        self.end()
        self._resources.log.compare_at(self._resources.log.ncalls + EVERY)
        told = self._told()
        self._resources.service_collectives.gather(told.mine, told.every, Purpose.ARRIVALS)
        self._compare(told)

    def begin(self, turn: int) -> None:
        """Tell each other arrivals, in flight, as a call of that turn does."""
        self.end()
        told = self._told()
        request = self._resources.service_collectives.gather_in_flight(
            told.mine, told.every, Purpose.ARRIVALS, self._resources.in_flight(turn), _request
        )
        self._sending = told, request

    def end(self) -> None:
        """Compare what is in flight, which all ranks have begun to tell by now, as far as they are in this call."""
        if self._sending is not None:
            (told, request), self._sending = self._sending, None
            request.Wait()
            self._compare(told)

    def _told(self) -> _Told:
        """Return what this rank tells: of every lane its latest calls that have ended, as many as there is room for."""
        mine, left, records = np.zeros(self._nwords, np.int64), self._npairs, list[tuple[int, np.ndarray]]()
        at = 2 * _MOST_LANES
        for lane, on in enumerate(self._lanes):
            log, unfinished = on.log, first_unfinished(on) if lane else None
            ended = log.begun_and_ended[1] if unfinished is None else unfinished - 1
            first, found = log.records(max(log.compared + 1, ended - left + 1), ended)
            mine[2 * lane : 2 * lane + 2] = first, first + len(found) - 1
            mine[at : at + 2 * len(found)] = found[:, f.ITS_BEGIN : f.ITS_SPENT + 1].ravel()
            at, left = at + 2 * len(found), left - len(found)
            records.append((first, found))
        if not self._resources.one_node:
            pairs = mine[2 * _MOST_LANES : at : 2]
            pairs[:] = self._common(pairs)
        return _Told(mine, np.empty((self._resources.nranks, self._nwords), np.int64), records)

    def _common(self, nanoseconds: np.ndarray) -> np.ndarray:
        """Return times on the clock that all hosts share."""
        return nanoseconds

    def _compare(self, told: _Told) -> None:
        """Compare the calls that all ranks have told of."""
        heads = told.every[:, : 2 * _MOST_LANES].reshape(-1, _MOST_LANES, 2)
        firsts, lasts = heads[:, :, 0].max(axis=0).tolist(), heads[:, :, 1].min(axis=0).tolist()
        sizes = heads[:, :, 1] - heads[:, :, 0] + 1
        offsets = np.cumsum(sizes, axis=1) - sizes  # in pairs
        for lane, ((begin, records), on) in enumerate(zip(told.records, self._lanes, strict=False)):
            first, last, log = firsts[lane], lasts[lane], on.log
            if last < first:
                continue
            self._account.uncompared += first - 1 - log.compared
            log.compared = last
            pairs = 2 * _MOST_LANES + 2 * (offsets[:, lane] + first - heads[:, lane, 0])
            addresses = told.every.ctypes.data + 8 * (self._nwords * np.arange(len(pairs)) + pairs)
            self._compare_lane(lane, first, records[first - begin : last + 1 - begin], addresses)

    def _compare_lane(self, lane: int, first: int, records: np.ndarray, arrivals: np.ndarray) -> None:
        account, resources = self._account, self._resources
        owner, waited, table = np.empty(len(records), np.int64), np.empty(len(records), np.int64), np.zeros(w.NFIELDS, np.int64)
        near = np.zeros(resources.nranks, np.int64)
        graph = resources.caller.graph()
        if graph is not None:
            near[[end[0] for end in graph.sources[resources.rank] if end is not None]] = 1
        fields = {
            w.RECORDS: records.ctypes.data, w.NCALLS: len(records), w.RANK: resources.rank, w.NRANKS: resources.nranks,
            w.ARRIVALS: arrivals.ctypes.data, w.KINDS: _BY_NUMBER.ctypes.data, w.NEIGHBOURS: near.ctypes.data, w.IN_FLIGHT: lane > 0,
            w.LEAST: account.clock_error_ns, w.OWNER: owner.ctypes.data, w.WAITED: waited.ctypes.data, w.SUMS: account.sums.ctypes.data,
            w.WAITED_FOR: account.by_rank[0].ctypes.data, w.CAUSED: account.by_rank[1].ctypes.data,
            w.INHERITED: account.by_rank[2].ctypes.data,
        }  # fmt: skip
        table[list(fields)] = list(fields.values())
        call_compiled(COMPARE, table.ctypes.data, 0, 0, 0)
        begin, end = (f.ITS_WAIT_BEGIN, f.ITS_WAIT_END) if lane else (f.ITS_BEGIN, f.ITS_END)
        account.add_places(records, owner, waited, records[:, end] - records[:, begin])
        for listen in listeners:
            listen(ComparedCalls(resources, lane, first, records, owner, waited))


def _request(operation: Operation) -> MPI.Grequest:
    """Return the request of an exchange in flight, of which no watchdog says that it stalls: the program did not make it."""
    operation.quiet = True
    return MPI.Grequest.Start(query, nothing, nothing, (operation,))
