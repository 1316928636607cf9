"""A soak: random collectives of random sizes on several communicators, in all forms, with ranks that are late, and faults thrown in.

Every call ends with the right answer or with the right error on every rank, in time. What is called follows from a seed, the same on all
ranks; a fault is one rank's call that differs, or another call in another form on some ranks, or an acknowledgement that is lost, on a
communicator whose calls have a limit.
Started under mpirun: ``python tests/mpi/soak.py SECONDS SEED``; rank 0 prints the counts.
"""

from __future__ import annotations

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
from mpi4py import MPI

import hpcoll
from hpcoll import CollectiveTimeout, MismatchError
from hpcoll.runtime.program import fields
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES

WORLD = MPI.COMM_WORLD
SIZES = (0, 1, 5, 7, 64, 511, 4096, 40_001, 300_000)
VARYING = ("Allgatherv", "Alltoallv", "Reduce_scatter")  # whose blocks have sizes of their own
METHODS = ("Allreduce", "Reduce", "Bcast", "Allgather", "Alltoall", "Scan", "Reduce_scatter_block", "Gather", "Scatter", *VARYING)
COMBINE = ("Allreduce", "Reduce", "Scan", "Reduce_scatter_block", "Reduce_scatter")
FORMS = ("blocking", "blocking", "in flight", "persistent")
BURST_EVERY, BURST = 20, (2, 6)  # calls after which several are in flight at once, and how many
FAULTS = ("count", "type", "operator", "collective", "root", "bit", "form")
FAULT_EVERY = 40  # calls
LOST_EVERY = 15  # faults, of which the first is one
CALLS_AFTER, LIMIT_S = 40, 2.0  # a lost acknowledgement
SOON_S, NOTED_S = 15.0, 1.0


class Case:
    """One call that all ranks make, and what it must give."""

    def __init__(self, comm: Any, chance: random.Random) -> None:
        self.comm, self.method, self.count = comm, chance.choice(METHODS), chance.choice(SIZES)
        self.root = chance.randrange(comm.size) if self.method in ("Reduce", "Bcast", "Gather", "Scatter") else None
        self.op, self.dtype, self.turn = chance.choice((MPI.SUM, MPI.MAX)), chance.choice(("f8", "f4", "i8")), chance.randrange(100)
        self.form, self.late = chance.choice(FORMS), chance.randrange(comm.size) if chance.random() < 0.03 else None
        collective = {"Reduce_scatter_block": "reduce_scatter", "Allgatherv": "allgather", "Alltoallv": "alltoall"}.get(self.method)
        every = hpcoll.algorithms(collective or self.method.lower())  # the library's own checks nothing
        self.algorithm = chance.choice([name for name in every if self.method != "Alltoallv" or name in ("pairwise", "direct")])

    def vector(self, rank: int, nblocks: int = 1) -> np.ndarray:
        """A rank's contribution: small numbers, so that sums are exact."""
        return ((np.arange(nblocks * self.count) + 3 * rank + self.turn) % 50).astype(self.dtype)

    def sizes(self, sender: int = 0) -> list[int]:
        """Elements of each block that a rank gives: to whom, or of whom, it is."""
        return [(self.count + sender + 2 * other) % (self.count + 5) for other in range(self.comm.size)]

    def block(self, sender: int, receiver: int) -> np.ndarray:
        """The one that a rank gives to another, where sizes vary."""
        sizes = self.sizes(sender if self.method == "Alltoallv" else 0)
        begin, end = sum(sizes[:receiver]), sum(sizes[: receiver + 1])
        return ((np.arange(begin, end) + 3 * sender + self.turn) % 50).astype(self.dtype)

    def blocks(self) -> list[Any]:
        """Arguments of a call whose sizes vary, where this rank receives first."""
        me, every = self.comm.rank, range(self.comm.size)
        if self.method == "Allgatherv":
            sizes, given = self.sizes(), self.block(me, me)
            return [np.full(sum(sizes), 77, self.dtype), given, sizes]
        given = np.concatenate([self.block(me, other) for other in every])
        if self.method == "Reduce_scatter":
            return [np.full(self.sizes()[me], 77, self.dtype), given, self.sizes()]
        sizes = [self.sizes(other)[me] for other in every]
        return [np.full(sum(sizes), 77, self.dtype), [given, self.sizes(me)], sizes]

    def buffers(self) -> tuple[np.ndarray, np.ndarray]:
        """What this rank gives, and where it receives."""
        n, wide = self.comm.size, self.method in ("Alltoall", "Reduce_scatter_block", "Scatter")
        gathers = self.method in ("Allgather", "Gather", "Alltoall")
        return self.vector(self.comm.rank, n if wide else 1), np.full((n if gathers else 1) * self.count, 77, self.dtype)

    def expected(self) -> np.ndarray | None:
        """What this rank must receive; None: nothing."""
        comm, n, me = self.comm, self.comm.size, self.comm.rank
        fold = np.add if self.op == MPI.SUM else np.maximum
        if self.method == "Reduce_scatter":
            return fold.reduce([self.block(rank, me) for rank in range(n)]).astype(self.dtype)
        if self.method in VARYING:
            return np.concatenate([self.block(rank, me if self.method == "Alltoallv" else rank) for rank in range(n)])
        mine = slice(me * self.count, (me + 1) * self.count)
        if self.method in ("Reduce", "Gather") and comm.rank != self.root:
            return None
        if self.method in ("Allreduce", "Reduce", "Scan"):
            return fold.reduce([self.vector(rank) for rank in range(me + 1 if self.method == "Scan" else n)]).astype(self.dtype)
        if self.method == "Reduce_scatter_block":
            return fold.reduce([self.vector(rank, n)[mine] for rank in range(n)]).astype(self.dtype)
        if self.method == "Alltoall":
            return np.concatenate([self.vector(rank, n)[mine] for rank in range(n)])
        if self.method == "Scatter":
            return self.vector(self.root or 0, n)[mine]
        return self.vector(self.root or 0) if self.method == "Bcast" else np.concatenate([self.vector(rank) for rank in range(n)])

    def changed(self, fault: str) -> Case:
        """The same call with one thing that is another."""
        other: Case = object.__new__(Case)
        other.__dict__ |= vars(self)
        if fault == "count":
            other.count = self.count + 1
        elif fault == "type":
            other.dtype = "i8" if self.dtype == "f8" else "f8"
        elif fault == "operator":
            other.op = MPI.PROD
        elif fault == "root":
            other.root = (self.root + 1) % self.comm.size if self.root is not None else None
        elif fault == "collective":
            other.algorithm = "direct"
            other.method, other.root = ("Allreduce", None) if self.method != "Allreduce" else ("Bcast", 0)
        return other

    def arguments(self) -> tuple[np.ndarray, list[Any]]:
        """Where this rank receives, and what it calls with."""
        if self.method in VARYING:
            got, given, sizes = self.blocks()
            return got, [given, got, sizes, self.op] if self.method == "Reduce_scatter" else [given, [got, sizes]]
        given, got = self.buffers()
        if self.method == "Bcast":
            got = self.vector(self.comm.rank) if self.comm.rank == self.root else got
        found = [got] if self.method == "Bcast" else [given, got]
        return got, [*found, *([self.op] if self.method in COMBINE else []), *([] if self.root is None else [self.root])]

    def start(self) -> MPI.Request | None:
        """Call; what there is to wait for."""
        self.got, arguments = self.arguments()
        name = {"blocking": self.method, "in flight": f"I{self.method.lower()}", "persistent": f"{self.method}_init"}[self.form]
        request: MPI.Request | None = getattr(self.comm, name)(*arguments, algorithm=self.algorithm)
        if isinstance(request, MPI.Prequest):
            request.Start()
        return request

    def right(self) -> bool:
        """Whether the answer is."""
        wanted = self.expected()
        return wanted is None or np.array_equal(self.got, wanted)

    def run(self) -> bool:
        """Call; whether the answer is right."""
        request = self.start()
        if request is not None:
            request.Wait()
        return self.right()


def differs(case: Case, fault: str) -> bool:
    """Whether a fault changes anything that ranks must agree in."""
    if fault == "operator" or (fault == "type" and case.count == 0):  # what is only moved has no message then
        return case.method in COMBINE
    if case.method in VARYING and fault == "count":  # of other blocks than those that are looked at
        return False
    return fault != "root" or (case.root is not None and case.comm.size > 1)


def in_another_form(case: Case, chance: random.Random) -> tuple[Case, set[int]]:
    """Another call, which has no messages for those of a case, and some ranks that make it, but not all."""
    other = Case(case.comm, chance)
    other.form = chance.choice([form for form in FORMS if form != case.form])
    return other, set(chance.sample(range(case.comm.size), chance.randrange(1, case.comm.size)))


def provoke(case: Case, fault: str, victim: int, chance: random.Random) -> float:
    """Let one rank call something else, or some: seconds until this rank knew; raises where it did not, or data came."""
    me, begun = case.comm.rank == victim, time.monotonic()
    call = case.changed(fault) if me else case.changed("")
    if fault == "form":
        other, parted = in_another_form(case, chance)
        call = other if case.comm.rank in parted else case
    nothing = call.form == "persistent" and call.count == 0 and fault != "form"  # no message, and none that comes the same way later
    call.form = "blocking" if fault == "bit" or nothing else call.form
    if fault == "bit" and me:  # of all that was called so far
        case.comm._context.resources.message_contexts[0].log.fields[fields.CHAIN] ^= 1 << case.turn % 63
    try:
        call.run()
        for _ in range(4):  # whoever had its share already hears it in its next call, or in the next one that comes the same way
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
    rings = comm._context.resources.message_contexts[0].rings
    at = int(rings.fields[fields.ACKS_AT] - rings.window.address) + (reader * comm.size + writer) * CACHE_LINE_NBYTES + 8 * slot
    acknowledged = rings.window.mapping.array(at, 8).view(np.int64)
    if comm.rank == reader and acknowledged[0]:
        acknowledged[0] -= 1


def gives_up(comm: Any) -> bool:
    """Whether one more call does."""
    try:
        comm.Barrier()
    except CollectiveTimeout:
        return True
    return False


def without_acknowledgement(chance: random.Random) -> Counter[str]:
    """Calls after one is lost: all are right until all ranks time out in the same one, or the next; raises where only some do."""
    comm, counts, ended = limited(), Counter[str](), False
    for i in range(2 * CALLS_AFTER):
        case = Case(comm, chance)
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
    if not ended and comm._context.resources.alarmed_by is not None:  # who was through when others gave up hears it in its next call
        ended = gives_up(comm)
    assert WORLD.allreduce(int(ended)) in (0, WORLD.size), f"rank {WORLD.rank}: {'timed out' if ended else 'went on'}, and others did not"
    comm.Free()
    chance.seed(WORLD.bcast(chance.random()))  # ranks have left at different calls
    return counts + Counter({"lost": 1, "timed out": int(ended)})


def be_late(*, stopped: bool) -> None:
    """Come later than the others, who wait; or be stopped for a while in the middle of what comes next."""
    if stopped:
        me = os.getpid()
        subprocess.Popen(["sh", "-c", f"kill -STOP {me}; sleep 0.2; kill -CONT {me}"], stderr=subprocess.DEVNULL)
    else:
        time.sleep(0.02)


def burst(comms: list[Any], chance: random.Random) -> Counter[str]:
    """Several calls in flight at once, on whichever communicators."""
    cases = [Case(chance.choice(comms), chance) for _ in range(chance.randint(*BURST))]
    for case in cases:
        case.form = "in flight"
    requests, one_by_one = [case.start() for case in cases], chance.random() < 0.5
    if one_by_one:
        chance.shuffle(requests)
        for request in requests:
            request.Wait()
    else:
        MPI.Request.Waitall(requests)
    return Counter({"calls": len(cases), "wrong": sum(not case.right() for case in cases)})


def soak(seconds: float, seed: int) -> Counter[str]:
    """Call until the time is over, which rank 0 decides, and ranks have called different things once; returns counts."""
    chance, counts, all_s = random.Random(seed), Counter[str](), [0.0]
    comms = [hpcoll.Communicator(WORLD.Dup()), hpcoll.Communicator(WORLD.Split(0, -WORLD.rank))]
    end = time.monotonic() + seconds
    while WORLD.bcast(time.monotonic() < end or (WORLD.size > 1 and counts["faults"] == counts["lost"])):
        for i in range(FAULT_EVERY):
            if i % BURST_EVERY == 0:
                counts += burst(comms, chance)
            case = Case(chance.choice(comms), chance)
            if case.late == case.comm.rank:
                be_late(stopped=case.turn < 30)
            counts["calls"] += 1
            counts["wrong"] += not case.run()
        if WORLD.size > 1 and counts["faults"] % LOST_EVERY == 0 and comms[0]._context.resources.shares_memory:
            counts["faults"] += 1
            counts += without_acknowledgement(chance)
        at, fault, victim = chance.randrange(len(comms)), chance.choice(FAULTS), chance.randrange(WORLD.size)
        case = Case(comms[at], chance)
        if differs(case, fault) and WORLD.size > 1:
            counts["faults"] += 1
            WORLD.Barrier()  # else who is late hears of it in a call before
            took = provoke(case, fault, victim, chance)
            if took > NOTED_S:
                what = f"{case.method} by {case.algorithm} of {case.count} {case.dtype}"
                print(f"rank {WORLD.rank}: {fault} in {what} on rank {victim} after {counts['calls']} calls: {took:.2f} s", file=sys.stderr)
            all_s.append(took)
            if chance.random() < 0.5:
                comms[at].recover()
            else:
                comms[at].Free()
                comms[at] = hpcoll.Communicator((WORLD.Dup if at == 0 else lambda: WORLD.Split(0, -WORLD.rank))())
    counts["late"] = int(max(all_s) > SOON_S)
    counts |= {"median ms": int(1e3 * statistics.median(all_s)), "slowest ms": int(1e3 * max(all_s))}
    return counts


if __name__ == "__main__":
    faulthandler.dump_traceback_later(float(sys.argv[1]) + 40, exit=True)
    found = soak(float(sys.argv[1]), int(sys.argv[2]))
    every = WORLD.gather(found)
    if every is not None:
        sums = {name: max(one[name] for one in every) for name in ("calls", "faults", "lost", "timed out", "median ms", "slowest ms")}
        print("soak:", sums | {name: sum(one[name] for one in every) for name in ("wrong", "late")}, flush=True)
