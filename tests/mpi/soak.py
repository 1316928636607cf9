"""A soak: random collectives of random sizes on several communicators, in all forms, with ranks that are late, and faults thrown in.

Every call ends with the right answer or with the right error on every rank, in time. What is called follows from a seed, the same on all
ranks; a fault is one rank's call that differs, or another call in another form on some ranks, or an acknowledgement that is lost, on a
communicator whose calls have a limit.
Started under mpirun: ``python tests/mpi/soak.py SECONDS SEED``; rank 0 prints the counts.
"""

import faulthandler
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import numpy as np
from internals import resources
from mpi4py import MPI
from soak_case import COMBINE, FORMS, Call

import hpcoll
from hpcoll import CollectiveTimeout, MismatchError
from hpcoll.runtime.program import fields
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES

WORLD = MPI.COMM_WORLD
BURST_EVERY, BURST = 20, (2, 6)  # calls after which several are in flight at once, and how many
FAULTS = ("count", "type", "operator", "collective", "root", "bit", "form")
FAULT_EVERY = 40  # calls
LOST_EVERY = 15  # faults, of which the first is one
CALLS_AFTER, LIMIT_S = 40, 2.0  # a lost acknowledgement
SOON_S, NOTED_S = 15.0, 1.0


def differs(case: Call, fault: str) -> bool:
    """Say whether a fault changes anything that ranks must agree in."""
    if fault == "operator" or (fault == "type" and case.count == 0):  # what is only moved has no message then
        return case.method in COMBINE
    if case.method == "Alltoallv" and fault == "count":  # of other blocks than those that are looked at
        return False
    return fault != "root" or (case.root is not None and case.comm.size > 1)


def in_another_form(case: Call, chance: random.Random) -> tuple[Call, set[int]]:
    """Another call, which has no messages for those of a case, and some ranks that make it, but not all."""
    other = Call(case.comm, chance)
    other.form = chance.choice([form for form in FORMS if form != case.form])
    return other, set(chance.sample(range(case.comm.size), chance.randrange(1, case.comm.size)))


def provoke(case: Call, fault: str, victim: int, chance: random.Random) -> float:
    """Let one rank call something else, or some: seconds until this rank knew; raises where it did not, or data came."""
    me, begun = case.comm.rank == victim, time.monotonic()
    call = case.changed(fault) if me else case.changed("")
    if fault == "form":
        other, parted = in_another_form(case, chance)
        call = other if case.comm.rank in parted else case
    # no message, and none that comes the same way later
    nothing = call.form == "persistent" and call.count == 0 and fault != "form"
    call.form = "blocking" if fault == "bit" or nothing else call.form
    if fault == "bit" and me:  # of all that was called so far
        resources(case.comm).message_contexts[0].log.fields[fields.CHAIN] ^= 1 << case.turn % 63
    try:
        call.run()
        # whoever had its share already hears it in its next call, or in the next one that comes the same way
        for _ in range(4):
            case.comm.Iallreduce(np.ones(1), np.zeros(1), algorithm="recursive_doubling").Wait()
            case.comm.Allreduce(np.ones(1), np.zeros(1), algorithm="recursive_doubling")
    except MismatchError:
        return time.monotonic() - begun
    raise AssertionError(f"rank {case.comm.rank} did not notice: {fault} in {vars(call)}")


def limited() -> Any:
    """A communicator whose calls may take so long."""
    os.environ["HPCOLL_TIMEOUT"] = f"{LIMIT_S:g}s"
    try:
        return hpcoll.Communicator(WORLD.Dup())
    finally:
        del os.environ["HPCOLL_TIMEOUT"]


def lose(comm: Any, chance: random.Random) -> None:
    """Set back by one what one rank has acknowledged of another's messages in one staging slot."""
    reader, writer, slot = *chance.sample(range(comm.size), 2), chance.randrange(fields.STAGING_SLOTS)
    rings = resources(comm).message_contexts[0].rings
    at = (
        int(rings.fields[fields.ACKS_AT] - rings.window.address)
        + (reader * comm.size + writer) * CACHE_LINE_NBYTES
        + 8 * slot
    )
    acknowledged = rings.window.mapping.array(at, 8).view(np.int64)
    if comm.rank == reader and acknowledged[0]:
        acknowledged[0] -= 1


def gives_up(comm: Any) -> bool:
    """Say whether one more call does."""
    try:
        comm.Barrier()
    except CollectiveTimeout:
        return True
    return False


def without_acknowledgement(chance: random.Random) -> Counter[str]:
    """Calls after one is lost: all are right until all ranks time out in the same one, or the next; raises where only some do."""
    comm, counts, ended = limited(), Counter[str](), False
    for i in range(2 * CALLS_AFTER):
        case = Call(comm, chance)
        case.form, case.late = "blocking", None
        if i == CALLS_AFTER:
            lose(comm, chance)
        try:
            counts["calls"] += 1
            counts["wrong"] += not case.run()
        except CollectiveTimeout:
            ended = True
            break
    ended = ended or gives_up(comm)
    WORLD.Barrier()
    # who was through when others gave up hears it in its next call
    if not ended and resources(comm).aborted_by is not None:
        ended = gives_up(comm)
    assert WORLD.allreduce(int(ended)) in (0, WORLD.size), (
        f"rank {WORLD.rank}: {'timed out' if ended else 'went on'}, and others did not"
    )
    comm.Free()
    chance.seed(WORLD.bcast(chance.random()))  # ranks have left at different calls
    return counts + Counter({"lost": 1, "timed out": int(ended)})


def be_late(*, stopped: bool) -> None:
    """Come later than the others, who wait; or be stopped for a while in the middle of what comes next."""
    if stopped:
        me = os.getpid()
        subprocess.Popen(
            ["sh", "-c", f"kill -STOP {me}; sleep 0.2; kill -CONT {me}"], stderr=subprocess.DEVNULL
        )
    else:
        time.sleep(0.02)


def burst(comms: list[Any], chance: random.Random) -> Counter[str]:
    """Several calls in flight at once, on whichever communicators."""
    cases = [Call(chance.choice(comms), chance) for _ in range(chance.randint(*BURST))]
    for case in cases:
        case.form = "in flight"
    requests, one_by_one = [case.start() for case in cases], chance.random() < 0.5
    if one_by_one:
        chance.shuffle(requests)
        for request in requests:
            request.Wait()
    else:
        MPI.Request.Waitall(requests)
    return Counter({"calls": len(cases), "wrong": sum(not case.case.good() for case in cases)})


def soak(seconds: float, seed: int) -> Counter[str]:
    """Call until the time is over, which rank 0 decides, and ranks have called different things once; returns counts."""
    chance, counts, all_s = random.Random(seed), Counter[str](), [0.0]
    comms = [hpcoll.Communicator(WORLD.Dup()), hpcoll.Communicator(WORLD.Split(0, -WORLD.rank))]
    end = time.monotonic() + seconds
    while WORLD.bcast(time.monotonic() < end or (WORLD.size > 1 and counts["faults"] == counts["lost"])):
        for i in range(FAULT_EVERY):
            if i % BURST_EVERY == 0:
                counts += burst(comms, chance)
            case = Call(chance.choice(comms), chance)
            if case.late == case.comm.rank:
                be_late(stopped=case.turn < 30)
            counts["calls"] += 1
            counts["wrong"] += not case.run()
        if WORLD.size > 1 and counts["faults"] % LOST_EVERY == 0 and resources(comms[0]).shares_memory:
            counts["faults"] += 1
            counts += without_acknowledgement(chance)
        at, fault, victim = chance.randrange(len(comms)), chance.choice(FAULTS), chance.randrange(WORLD.size)
        case = Call(comms[at], chance)
        if differs(case, fault) and WORLD.size > 1:
            counts["faults"] += 1
            WORLD.Barrier()  # else who is late hears of it in a call before
            took = provoke(case, fault, victim, chance)
            if took > NOTED_S:
                what = f"{case.method} by {case.algorithm} of {case.count} {case.dtype}"
                print(
                    f"rank {WORLD.rank}: {fault} in {what} on rank {victim} after {counts['calls']} calls: {took:.2f} s",
                    file=sys.stderr,
                )
            all_s.append(took)
            if chance.random() < 0.5:
                comms[at].recover()
            else:
                comms[at].Free()
                comms[at] = hpcoll.Communicator(
                    (WORLD.Dup if at == 0 else lambda: WORLD.Split(0, -WORLD.rank))()
                )
    counts["late"] = int(max(all_s) > SOON_S)
    counts |= {"median ms": int(1e3 * statistics.median(all_s)), "slowest ms": int(1e3 * max(all_s))}
    return counts


if __name__ == "__main__":
    faulthandler.dump_traceback_later(float(sys.argv[1]) + 40, exit=True)
    found = soak(float(sys.argv[1]), int(sys.argv[2]))
    every = WORLD.gather(found)
    if every is not None:
        sums = {
            name: max(one[name] for one in every)
            for name in ("calls", "faults", "lost", "timed out", "median ms", "slowest ms")
        }
        print(
            "soak:", sums | {name: sum(one[name] for one in every) for name in ("wrong", "late")}, flush=True
        )
