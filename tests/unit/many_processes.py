"""The processes of ranks that run nowhere, told in one exchange by a stand-in for the communicator."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from hpcoll.runtime.transports.cross_memory import ProbeWord
from hpcoll.selection.processes import TOLD, Process, Processes, tell_all


class Exchange:
    """The stand-in for a communicator of which this process is rank 0; it counts its exchanges.

    Args:
        hosts: Host of each rank.
        domains: Cache domain of each, on its host.
        firsts: Lowest rank with which each one shares memory.
        other_settings: Rank whose settings are others than those of rank 0; 0: none.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        domains: Sequence[int] | np.ndarray,
        firsts: Sequence[int] | np.ndarray,
        other_settings: int = 0,
    ) -> None:
        self.hosts = hosts
        self.domains = domains
        self.firsts = firsts
        self.other_settings = other_settings
        self.nexchanges = 0

    def Get_size(self) -> int:
        return len(self.hosts)

    def Get_rank(self) -> int:
        return 0

    @cached_property
    def different(self) -> np.ndarray:
        """What each rank tells that is not the same on all."""
        told = np.zeros(len(self.hosts), TOLD)
        told["name"] = [name.encode() for name in self.hosts]
        told["pid"] = 1000 + np.arange(len(told))
        told["domain"], told["first"] = self.domains, self.firsts
        return told

    def Allgather(self, sendbuf: np.ndarray, recvbuf: np.ndarray) -> None:
        """Give each rank's row: that of rank 0 but for what is different."""
        self.nexchanges += 1
        told = recvbuf.view(TOLD)
        told[:] = sendbuf.view(TOLD)[0]
        for name in ("name", "pid", "domain", "first"):
            told[name] = self.different[name]
        told["settings"][self.other_settings] += self.other_settings > 0


def processes_of(hosts: Sequence[str], domains: Sequence[int], firsts: Sequence[int]) -> Processes:
    """Return the processes as rank 0 knows them."""
    mine = Process(hosts[0], 1000, domains[0], 0, False, ProbeWord(1000, 1, 2))
    return tell_all(Exchange(hosts, domains, firsts), mine, firsts[0], "settings")[0]  # type: ignore[arg-type]
