"""Messages between two ranks of a torch.distributed group, and the barrier that names who did not come."""

import time
import zlib

import numpy as np
import torch
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.communicator import Communicator
from hpcoll.comm.requests.progress_thread import board
from hpcoll.torch.tensors import Store, array_of, contiguous
from hpcoll.torch.work import ended_within

_BARRIER_TAG = 0  # torch's tags are moved up by one
_NAP_S = 1e-3
_CALL_BITS = 31


def begin_message(
    method: str, comm: Communicator, tensor: torch.Tensor, rank: int, tag: int, **stream: int
) -> tuple[list[torch.Tensor], list[MPI.Request], list[Store]]:
    """Begin an ``Isend`` of a tensor, or an ``Irecv`` of as many elements or fewer; return what `Work` takes."""
    received = method == "Irecv"
    flat, store = contiguous(tensor, filled=received)
    most: int = comm.Get_attr(MPI.TAG_UB)  # type: ignore[assignment]
    if not 0 <= tag < most:
        raise ArgumentError(f"rank {comm.rank}: a tag must be at least 0 and less than {most}, got {tag}")
    request = getattr(comm, method)(array_of(flat), rank, tag + 1, **stream)
    return [tensor if received else flat], [request], [store] if store else []


class MonitoredBarrier:
    """A barrier whose root names the ranks that did not reach it in time.

    Attributes:
        left_messages: Some rank did not come in time, so that messages to it still need the communicator.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._calls = 0
        self.left_messages = False

    def of(self, group_name: str) -> None:
        """Number calls by the name of the group, so that messages of earlier groups that nobody received are told apart."""
        self._calls = zlib.crc32(group_name.encode()) << _CALL_BITS

    def wait(self, limit_s: float, *, names_all: bool) -> None:
        """Return when all ranks have called it.

        Within ``limit_s`` seconds, else RuntimeError: at the root with the first rank that did not come, or with all (``names_all``); at
        others where the root did not answer.
        """
        self._calls += 1
        end = time.monotonic() + limit_s
        call = np.array([self._calls])
        if self._comm.rank:
            self._wait_for_root(call, end, limit_s)
            return
        late = [rank for rank in range(1, self._comm.size) if not self._came(rank, end)]
        if late:
            self.left_messages = True
            who = f"Ranks {', '.join(map(str, late))}" if names_all and len(late) > 1 else f"Rank {late[0]}"
            raise RuntimeError(
                f"Rank 0 timed out in monitoredBarrier: {who} failed to pass monitoredBarrier in {1e3 * limit_s:g} ms"
            )
        for rank in range(1, self._comm.size):
            self._comm.Send(call, rank, _BARRIER_TAG)

    def _wait_for_root(self, call: np.ndarray, end: float, limit_s: float) -> None:
        self._comm.Isend(call, 0, _BARRIER_TAG).Free()
        answer = np.zeros_like(call)
        while answer[0] != call[0]:  # an earlier one may have been answered late
            request = self._comm.Irecv(answer, 0, _BARRIER_TAG)
            if not ended_within(request, end - time.monotonic()):
                with board().held():  # see `hpcoll.comm.requests.operation.abandon`
                    request.Cancel()
                    request.Wait()
                self.left_messages = True
                text = "successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0"
                raise RuntimeError(
                    f"Rank {self._comm.rank} {text}: it did not answer in {1e3 * limit_s:g} ms"
                )

    def _came(self, rank: int, end: float) -> bool:
        """Wait until a rank has called it as often as this one, and say whether it has."""
        told = np.zeros(1, np.int64)
        while told[0] != self._calls:
            while not self._comm.Iprobe(rank, _BARRIER_TAG):
                if time.monotonic() > end:
                    return False
                time.sleep(_NAP_S)
            self._comm.Recv(told, rank, _BARRIER_TAG)
        return True
