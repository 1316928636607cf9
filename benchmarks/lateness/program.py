"""A program of which one rank is late on purpose, as the plan in its argument says; rank 0 prints what was done and what hpcoll says.

It runs for some seconds: each step computes, makes a collective, and every few steps a rank is held up before it.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import hpcoll

STEP_S = 0.002  # of computation
RESULT = "RESULT "

# Stops its parent again and again, and says for how long it did.
STOPPER = """
import os, signal, sys, time
parent = os.getppid()
while os.getppid() == parent:
    time.sleep(float(sys.argv[2]))
    begin = time.monotonic()
    os.kill(parent, signal.SIGSTOP)
    time.sleep(float(sys.argv[1]))
    os.kill(parent, signal.SIGCONT)
    print(time.monotonic() - begin, flush=True)
"""

# Takes the core that its parent is pinned to, again and again.
HOG = """
import os, sys, time
parent = os.getppid()
os.nice(-15)
while os.getppid() == parent:
    time.sleep(float(sys.argv[2]))
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        pass
"""


def on_core(seconds: float) -> None:
    """Compute for so long on a core, however long that takes."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def spin(seconds: float) -> None:
    """Compute for so long by the clock."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def delayed_s() -> float:
    """Seconds in which this thread could have run and had no core."""
    return 1e-9 * int(Path("/proc/thread-self/schedstat").read_text().split()[1])


class Injection:
    """The injection of delays on one rank, by a plan: before every few steps, or from outside all the time.

    Attributes:
        seconds: So far, as measured.
    """

    def __init__(self, plan: dict[str, Any], rank: int) -> None:
        self.seconds, self._kind, self._delay, self._every = 0.0, plan["kind"], plan["delay_s"], plan["every"]
        self.here = plan["late"] == rank

    def before(self, step: int) -> None:
        """Hold this rank up before a step, where the plan says so."""
        wait: dict[str, Callable[[float], None]] = {
            "sleep": time.sleep,
            "inherit": time.sleep,
            "backward": time.sleep,
            "spin": spin,
        }
        if self.here and self._kind in wait and step % self._every == 0:
            begin = time.monotonic()
            wait[self._kind](self._delay)
            self.seconds += time.monotonic() - begin

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Hold this rank up from outside meanwhile, where the plan says so."""
        script = {"stop": STOPPER, "hog": HOG}.get(self._kind)
        if not self.here or script is None:
            yield
            return
        before = delayed_s()
        words = [sys.executable, "-S", "-c", script, str(self._delay), str(self._delay * self._every)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as helper:
            try:
                yield
            finally:
                helper.terminate()
                text = helper.communicate()[0]
        self.seconds = delayed_s() - before if self._kind == "hog" else sum(map(float, text.split()))


def slow_link(mbit: int) -> None:
    """Let the link of this emulated host carry so little."""
    words = f"tc qdisc replace dev eth0 root tbf rate {mbit}mbit burst 70000 limit 4480000".split()
    subprocess.run(words, check=True, env=os.environ | {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"})


def step_of_all(
    comm: hpcoll.Communicator, number: int, compute: Callable[[float], None], arrays: tuple[np.ndarray, ...]
) -> None:
    """Make one of several collectives."""
    x, y, many = arrays
    match number % 6:
        case 0:
            comm.Allreduce(x, y)
        case 1:
            comm.Allgather(x, many)
        case 2:
            comm.Bcast(x, number % comm.size)
        case 3:
            comm.Alltoall(many, many.copy())
        case 4:
            request = comm.Iallreduce(x, y)
            compute(STEP_S / 2)
            request.Wait()
        case 5:
            comm.allreduce(number, op=MPI.MAX)


def run(comm: hpcoll.Communicator, plan: dict[str, Any], injection: Injection) -> None:
    """Make steps until the time is over."""
    inherit, compute = (
        plan["kind"] == "inherit",
        on_core if plan["kind"] == "hog" or plan.get("pinned") else time.sleep,
    )
    half = comm.Split(comm.rank // max(1, comm.size // 2), comm.rank) if inherit else None
    x = np.ones(plan["count"])
    arrays, random = (x, np.empty_like(x), np.empty(comm.size * len(x))), np.random.default_rng(comm.rank)
    for step in range(12):  # what is made and compiled once
        step_of_all(comm, step, time.sleep, arrays)
    comm.stragglers(reset=True)
    begin, step = time.monotonic(), 0
    while step % 8 or comm.bcast(time.monotonic() - begin < plan["seconds"]):
        step += 1
        compute(STEP_S * random.uniform(0.9, 1.1))
        injection.before(step)
        if half is not None:
            half.Allreduce(x, arrays[1])
            compute(STEP_S / 2)
            comm.Allreduce(x, arrays[1])
        else:
            step_of_all(comm, step, compute, arrays)


def train(plan: dict[str, Any], injection: Injection) -> hpcoll.Communicator:
    """Train a small model with DistributedDataParallel; a rank is late amid the gradients of a step. Returns the communicator."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import hpcoll.torch  # the backend

    torch.set_num_threads(1)
    torch.distributed.init_process_group("hpcoll")
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(128, 128), torch.nn.ReLU())]
    model, step = torch.nn.Sequential(*layers), 0
    model[4].register_full_backward_hook(lambda *_: injection.before(step) if step else None)
    model = DistributedDataParallel(model, bucket_cap_mb=0.1)
    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    data, more = torch.ones(16, 128), np.ones(1)
    for _ in range(3):  # what is made and compiled once
        model(data).sum().backward()
    comm.Bcast(more, 0)
    comm.stragglers(reset=True)
    begin = time.monotonic()
    while more[0]:
        step += 1
        time.sleep(STEP_S)
        model(data).sum().backward()
        more[0] = time.monotonic() - begin < plan["seconds"]
        comm.Bcast(more, 0)
    return comm


def main() -> None:
    """Run the plan, and print the result."""
    plan, world = json.loads(sys.argv[1]), MPI.COMM_WORLD
    delayed = delayed_s()
    injection = Injection(plan, world.rank)
    if plan["kind"] == "hog" or plan.get("pinned"):
        os.sched_setaffinity(
            0, {int(world.rank == plan["late"])} if plan["late"] is not None else {world.rank % 2}
        )
    if plan["kind"] == "link" and MPI.Get_processor_name() == f"host{plan['late']}":
        slow_link(plan["mbit"])
    if plan["kind"] == "backward" or plan.get("torch"):
        comm = train(plan, injection)
    else:
        comm = hpcoll.Communicator(world)
        with injection.outside():
            run(comm, plan, injection)
    found = comm.stragglers()
    injected, delayed = world.allreduce(injection.seconds), world.allgather(round(delayed_s() - delayed, 3))
    if world.rank == 0:
        named = plan["late"] is not None and plan["kind"] != "link"
        row = found.rows[plan["late"]] if named else max(found.rows, key=lambda one: one.caused_s)
        said = {
            "worst": found.worst,
            "caused_s": row.caused_s,
            "last": row.last,
            "why": row.why,
            "verdict": found.verdict,
        }
        said |= {"injected_s": injected, "run_s": found.run_s, "calls": found.calls, "delayed_s": delayed}
        print(
            RESULT + json.dumps(plan | said | {"costs": [round(one.caused_s, 4) for one in found.rows]}),
            flush=True,
        )
        if plan.get("show"):
            print(re.sub("^", "  ", str(found), flags=re.MULTILINE))


main()
