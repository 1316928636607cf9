"""The watch on other programs while ranks are measured; `hpcoll.base.busy` has what is looked at on each machine."""

import os
from pathlib import Path

from mpi4py import MPI

from hpcoll.base.busy import LEAST_S, CoreUse, Usage, core_use, crowds, ncores_of, usage
from hpcoll.base.machine import read
from hpcoll.base.text import counted
from hpcoll.cli.doctor.probes import cpu_quota

# the same on hosts that are emulated on one machine, and share its cores
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Watch:
    """Looks at the cores of all ranks now and then. Made collectively, as is every look.

    Attributes:
        notes: Sentences about the ranks: that they have too few cores, or that a single one exchanges nothing.
    """

    def __init__(self, world: MPI.Intracomm) -> None:
        mine = frozenset(os.sched_getaffinity(0))
        places = world.allgather((read(_BOOT) or MPI.Get_processor_name(), mine))
        self._world, self._crowds = world, crowds(places)
        self._cores = next(cores for ranks, cores in self._crowds if world.rank in ranks)
        self._ncores = world.allgather(ncores_of(self._cores))
        self._samples = [world.allgather(usage(self._cores))]
        most = world.allreduce(cpu_quota(), MPI.MIN)
        crowded = [
            (len(ranks), min(len(cores), most))
            for ranks, cores in self._crowds
            if len(ranks) > min(len(cores), most)
        ]
        self.notes = [
            f"{n} ranks share {counted(ncores, 'core')}: most of a time is waiting for one"
            for n, ncores in crowded[:1]
        ]
        if world.size == 1:
            self.notes.append(
                "one rank exchanges nothing: these are costs of calls alone; for more ranks: mpirun -n 4 hpcoll ..."
            )

    def look(self) -> CoreUse:
        """Return the use, since the last look but for `LEAST_S` at least, of the cores that others disturbed most; equal on all ranks."""
        now = self._world.allgather(usage(self._cores))
        since = next(
            (sample for sample in reversed(self._samples) if now[0].clock - sample[0].clock >= LEAST_S),
            self._samples[0],
        )
        self._samples = [*self._samples[self._samples.index(since) :], now]
        return max(
            (self._use(ranks, since, now) for ranks, _ in self._crowds),
            key=lambda sample: (sample.disturbed, sample.taken),
        )

    def _use(self, ranks: list[int], since: list[Usage], now: list[Usage]) -> CoreUse:
        return core_use(
            [since[rank] for rank in ranks], [now[rank] for rank in ranks], self._ncores[ranks[0]]
        )
