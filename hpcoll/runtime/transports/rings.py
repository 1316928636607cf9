"""Rings: the shared memory in which messages between local peers travel.

Rings are a share of a window (`hpcoll.runtime.transports.window`) in which one collective at a time travels. They are cut into staging
slots, which the lanes in flight take in turn:

    per staging slot and ordered pair: a ring of RING_SLOTS slots, written by the sender
        [number, check of the call, length | 56 bytes, or where they lie]
    per ordered pair: one cache line of acknowledgements, written by the receiver    [messages used, per staging slot]
    per rank: its history, cache lines that say what its latest calls are
    one cache line that says whether a call has failed
    per rank: STAGING_SLOTS staging slots, written by it

A ring slot's number, and an acknowledgement, only ever grow: there is nothing to reset and no barrier. Every cache line has one writer.
A message's place is the number of a window and an offset in it, whether the sender staged it or left it in symmetric memory.
`hpcoll.runtime.engine.compiled.shm_ops` is the compiled side.
"""

from collections.abc import Mapping

import numpy as np

from hpcoll.analysis.cost import NEVER
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.fields import HISTORY_NBYTES, OFFSET_BITS, REMEMBERED, STAGING_SLOTS
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES
from hpcoll.runtime.telemetry.call_log import CallLog
from hpcoll.runtime.transports.cross_memory import OwnMemory
from hpcoll.runtime.transports.window import BASES_AT, PAGE, AddressRanges, Window, whole_pages
from hpcoll.schedules.ir import RING_SLOTS

CAPACITY_NBYTES = 256 << 10  # of one staging slot
_POPULATED_AT_ONCE = 16 << 10  # bytes of a slot: room for short messages


class Rings:
    """Counters and addresses through which one collective at a time travels between local ranks.

    Other rings may share the window, in which ``slots`` and ``staging`` are the offsets of the ring slots, and of this rank's staging slots
    of ``capacity`` bytes. These begin pages, and are given pages when messages need them unless they are ``populated``.
    """

    def __init__(
        self,
        rank: int,
        local_peers: Mapping[int, int],
        ranges: AddressRanges,
        window: Window,
        capacity: int,
        slots: int,
        staging: int,
        populated: bool,
        own_memory: OwnMemory | None = None,
    ) -> None:
        nlocal = len(local_peers) + 1
        self.local_peers, self.capacity, self.window, self._ranges = local_peers, capacity, window, ranges
        offset = staging - window.part(rank)
        lines = slots + _slots_nbytes(nlocal) + nlocal * nlocal * CACHE_LINE_NBYTES
        histories = (
            window.mapping.array(lines, nlocal * HISTORY_NBYTES)
            .view(np.int64)
            .reshape(nlocal, 1 + REMEMBERED, -1)
        )
        self.log = CallLog(
            histories, window.mapping.array(lines + nlocal * HISTORY_NBYTES, 8).view(np.int64), rank
        )
        self.staging = [
            (window.address + window.part(local) + offset, STAGING_SLOTS * capacity)
            for local in range(nlocal)
        ]
        ncounters = STAGING_SLOTS * nlocal
        self.fields = np.zeros(f.RINGS_NFIELDS + 3 * ncounters + 3 * STAGING_SLOTS, np.int64)
        self.address: int = self.fields.ctypes.data  # for compiled code
        sent, taken, acked, used = (f.RINGS_NFIELDS + i * ncounters for i in range(4))
        self._used = self.fields[used:].reshape(STAGING_SLOTS, 3)
        self._used[:, 2] = capacity if populated else 0
        values = {
            f.SLOTS_AT: window.address + slots,
            f.ACKS_AT: window.address + slots + _slots_nbytes(nlocal),
            f.STAGING_AT: window.address + staging,
            f.STAGING_WHERE: (window.number << OFFSET_BITS) + staging,
            f.CAPACITY: capacity,
            f.NLOCAL: nlocal,
            f.LOCAL_RANK: rank,
            f.SENT: self.address + 8 * sent,
            f.TAKEN: self.address + 8 * taken,
            f.ACKED: self.address + 8 * acked,
            f.USED: self.address + 8 * used,
            f.BASES: BASES_AT,
            f.NRANGES: ranges.addresses[0],
            f.RANGES: ranges.addresses[1],
            f.POPULATED_AT_ONCE: max(PAGE, _POPULATED_AT_ONCE),
            f.READ_FROM: NEVER,
            f.READ_FROM_USUALLY: NEVER,
            f.READ_FROM_SLOW: NEVER,
        }
        if own_memory is not None:
            self._own_memory, room = own_memory, np.empty(f.PIECES_NBYTES + CACHE_LINE_NBYTES, np.uint8)
            self._pieces = room[-room.ctypes.data % CACHE_LINE_NBYTES :]
            values |= {
                f.READ_FROM_USUALLY: own_memory.usually,
                f.READ_FROM_SLOW: own_memory.slow,
                f.PIDS: own_memory.pids.ctypes.data,
                f.PIECES_AT: self._pieces.ctypes.data,
            }
        for field, value in values.items():
            self.fields[field] = value

    def unread(self, staging_slot: int) -> list[int]:
        """Return local ranks that have not used all messages posted to them from a staging slot, as far as compiled code has seen."""
        nlocal, ncounters = len(self.local_peers) + 1, STAGING_SLOTS * (len(self.local_peers) + 1)
        sent, _, acked = self.fields[f.RINGS_NFIELDS : f.RINGS_NFIELDS + 3 * ncounters].reshape(
            3, STAGING_SLOTS, nlocal
        )
        return np.flatnonzero(acked[staging_slot] < sent[staging_slot]).tolist()


def capacity_nbytes(nranks: int) -> int:
    """Return the bytes of a staging slot: with very many ranks a lane has very many pieces."""
    return whole_pages(max(CAPACITY_NBYTES, 256 * nranks))


def _slots_nbytes(nlocal: int) -> int:
    return STAGING_SLOTS * nlocal * nlocal * RING_SLOTS * CACHE_LINE_NBYTES


def rings_nbytes(nlocal: int) -> int:
    """Return the bytes of the head of rings: all but the staging slots."""
    return _slots_nbytes(nlocal) + (nlocal * nlocal + 1) * CACHE_LINE_NBYTES + nlocal * HISTORY_NBYTES
