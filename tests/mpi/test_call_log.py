"""The log of a message context's calls, and the tags by which messages of one call meet those of no other."""

import itertools

import numpy as np
import pytest
from internals import resources
from mpi4py import MPI
from reference import ensure_none, unless

import hpcoll
from hpcoll.comm.plans.signature import Signature
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.transports import mpi

pytestmark = [pytest.mark.mpi, pytest.mark.smoke]

KEPT = f.RECORDS_HOT * f.RECORD_BLOCKS


@pytest.mark.parametrize(
    "ncalls", [1, f.RECORDS_HOT - 1, f.RECORDS_HOT, f.RECORDS_HOT + 1, KEPT + 3 * f.RECORDS_HOT + 5]
)
def test_the_last_calls_are_kept(ncalls: int) -> None:
    """In order, each with its own count and its times, however often the blocks have gone round."""
    comm = hpcoll.Communicator(MPI.COMM_WORLD.Dup())
    x, y = np.ones(7), np.zeros(7)
    log = resources(comm).message_contexts[0].log
    before = log.ncalls  # of a communicator that had it earlier
    for i in range(ncalls):
        comm.Allreduce(x[: 1 + i % 7], y[: 1 + i % 7], algorithm="recursive_doubling")
    first, records = log.records()
    found = [(number, *one) for number, one in enumerate(records.tolist(), first)]
    # ranks have compared them meanwhile
    calls = [one for one in found if not Signature.unpacked(one[1]).purpose][-ncalls:]
    wrong = [one for one in calls if not 0 < one[1 + f.ITS_BEGIN] <= one[1 + f.ITS_END]]
    wrong += [one for one in calls if "Allreduce(float64[" not in Signature.unpacked(one[1]).text(one[2])]
    wrong += [one for one in itertools.pairwise(calls) if one[1][2] != 1 + one[0][2] % 7]
    wrong += [] if first + len(found) == log.ncalls + 1 else [found[0], found[-1]]
    wrong += unless(len(found) >= min(log.ncalls - before, KEPT - f.RECORDS_HOT), len(found))
    ensure_none(wrong)
    comm.Free()


@pytest.mark.parametrize("last", [32767, (1 << 20) - 1, (1 << 29) - 1, (1 << 31) - 1])
def test_tags(last: int) -> None:
    """Of all message contexts and checks they differ, and stay below the two that are kept free, whatever the library's highest is."""
    ncontexts, first = mpi.tags_at_once.__wrapped__(128, last)
    assert ncontexts >= 100
    assert first.step == ncontexts * 128
    assert (first.checks - 1) * first.step + ncontexts * 128 <= last - 1
    assert all(first.checks % n for n in range(2, int(first.checks**0.5) + 1))
    assert first.checks > 8000 or last < 1 << 29
