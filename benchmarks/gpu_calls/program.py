"""Ranks that time collectives of GPU arrays beside copies around the MPI library's own, for `table.py`.

    mpirun -n 2 python benchmarks/gpu_calls/program.py --to build/gpu/calls-2.json --seconds 100

Every way is timed in turns with all others, and its answer compared with the library's. Rank 0 writes the file after every size.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import hpcoll
from hpcoll.base.errors import HpcollError
from hpcoll.cli.bench.device import address_of, gpu_array, own_gpu
from hpcoll.runtime.gpu.device import pinned

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
PATH = "HPCOLL_CUDA_PATH"
WAYS = {"picked": None, "IPC": "ipc", "page-locked": "staged", "by the host": "host", "one kernel": "device"}
LIBRARY = "library"
FORMS_NBYTES = 1 << 20  # longest message that is timed in all forms
TURN_S, LEAST, MOST = 0.05, 3, 25  # seconds that a way is timed, and how often
NEW = 8  # pairs of arrays that are new in turns

Call = Callable[[], Any]


class Collective(NamedTuple):
    """A collective: how many of the message's elements are sent and received, and its other arguments."""

    sent: int  # 1: all, P: the share of a rank, 0: there is no such buffer
    received: int
    more: tuple[Any, ...] = ()


COLLECTIVES = {
    "Allreduce": Collective(1, 1),
    "Bcast": Collective(1, 0),
    "Allgather": Collective(P, 1),
    "Alltoall": Collective(1, 1),
    "Reduce_scatter_block": Collective(1, P),
    "Alltoallw": Collective(1, 1),
    "Reduce": Collective(1, 1),
    "Gather": Collective(P, 1),
    "Scatter": Collective(1, P),
    "Scan": Collective(1, 1),
    "Exscan": Collective(1, 1),
}


class Arrays:
    """The arrays of a call on the GPU, their images in page-locked memory, and what is copied between them."""

    def __init__(self, gpu: Any, name: str, nbytes: int) -> None:
        self._gpu, self._row, count = gpu, COLLECTIVES[name], nbytes // 4 // P * P
        counts = [count // part if part else 0 for part in self._row[:2]]
        self.on_gpu = [gpu_array(gpu, n, np.dtype(np.float32)) for n in counts if n]
        self.on_host = [pinned(gpu.driver, 4 * n).view(np.float32) for n in counts if n]
        self.fill()
        self._types = _columns(count) if name == "Alltoallw" else None

    def arguments(self, arrays: list[Any]) -> tuple[Any, ...]:
        if self._types is None:
            return *arrays, *self._row.more
        return tuple([one, [1] * P, [0] * P, types] for one, types in zip(arrays, self._types))

    def fill(self) -> None:
        """Give the buffers the values that every way starts from."""
        for i, image in enumerate(self.on_host):
            image[:] = -1 if i else np.arange(image.size) % 61 + RANK
        self.move(to_gpu=True)

    def move(self, *, to_gpu: bool, which: slice = slice(None)) -> None:
        """Copy arrays, and wait for that."""
        for array, image in list(zip(self.on_gpu, self.on_host))[which]:
            ends = (
                (address_of(array), image.ctypes.data) if to_gpu else (image.ctypes.data, address_of(array))
            )
            self._gpu.driver.copy(*ends, image.nbytes, 0)
        self._gpu.driver("cuStreamSynchronize", 0)

    def result(self) -> bytes:
        """Return the bytes of the last array on the GPU."""
        self.move(to_gpu=False)
        return self.on_host[-1].tobytes()


def _columns(count: int) -> list[list[Any]]:
    """Datatypes of the columns of a matrix for each rank, and of the rows of one."""
    n = max(1, int((count // P) ** 0.5))
    columns = [MPI.FLOAT.Create_subarray([n, n * P], [n, n], [0, n * i]).Commit() for i in range(P)]
    rows = [MPI.FLOAT.Create_subarray([n * P, n], [n, n], [n * i, 0]).Commit() for i in range(P)]
    return [columns, rows]


def around(name: str, arrays: Arrays) -> Call:
    """The call as a program makes it without hpcoll: copies around the library's own."""
    run, given = getattr(WORLD, name), arrays.arguments(arrays.on_host)

    def call() -> None:
        arrays.move(to_gpu=False, which=slice(1))
        run(*given)
        arrays.move(to_gpu=True, which=slice(-1, None))

    return call


def forms(comm: Any, name: str, gpu: Any, nbytes: int) -> dict[str, Call]:
    """A call in other forms: on arrays that are new in turns, in flight, persistent."""
    every = [Arrays(gpu, name, nbytes) for _ in range(NEW)]
    given = [one.arguments(one.on_gpu) for one in every]
    start, turn = getattr(comm, f"I{name.lower()}"), iter(range(1 << 60))
    planned = getattr(comm, f"{name}_init")(*given[0])

    def started() -> None:
        planned.Start()
        planned.Wait()

    return {
        "new arrays": lambda: getattr(comm, name)(*given[next(turn) % NEW]),
        "in flight": lambda: start(*given[0]).Wait(),
        "persistent": started,
    }


def times(calls: dict[str, Call]) -> dict[str, float]:
    """Microseconds of each call, on the slowest rank: the median of calls made in turns."""
    for call in calls.values():
        for _ in range(3):
            call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    WORLD.Barrier()
    begun = time.perf_counter()
    for call in calls.values():
        call()
    once = (time.perf_counter() - begun) / len(calls)
    repeats = WORLD.bcast(min(MOST, max(LEAST, int(TURN_S / once))))
    for _ in range(repeats):
        for name, call in calls.items():
            WORLD.Barrier()
            begun = time.perf_counter()
            call()
            found[name].append(time.perf_counter() - begun)
    return {name: WORLD.allreduce(median(one), MPI.MAX) * 1e6 for name, one in found.items()}


def communicators(gpu: Any) -> dict[str, Any]:
    """A communicator for each way that this machine has."""
    found: dict[str, Any] = {}
    for name, path in WAYS.items():
        os.environ.pop(PATH, None)
        if path is not None:
            os.environ[PATH] = path
        comm, problem = hpcoll.Communicator(WORLD.Dup()), ""
        try:
            comm.Bcast(gpu_array(gpu, 1 << 16, np.dtype(np.float64)))
        except HpcollError as error:
            problem = str(error)
        if not any(WORLD.allgather(problem)):
            found[name] = comm
    os.environ.pop(PATH, None)
    return found


def collective(comms: dict[str, Any], name: str, gpu: Any, nbytes: int) -> dict[str, Any]:
    """A row of the table: microseconds by way and by form, and the ways whose answers were wrong."""
    arrays = Arrays(gpu, name, nbytes)
    on_gpu = arrays.arguments(arrays.on_gpu)
    ways: dict[str, Call] = {LIBRARY: around(name, arrays)}
    for way, comm in comms.items():
        ways[way] = partial(getattr(comm, name), *on_gpu)
    answers = {}
    for way, call in ways.items():
        arrays.fill()
        call()
        answers[way] = arrays.result()
    arrays.fill()
    wrong = [way for way, answer in answers.items() if answer != answers[LIBRARY]]
    row: dict[str, Any] = {"collective": name, "nbytes": nbytes, "ways": times(ways)}
    row["wrong"] = sorted({way for ways_of in WORLD.allgather(wrong) for way in ways_of})
    if nbytes <= FORMS_NBYTES:
        row["forms"] = times(forms(comms["picked"], name, gpu, nbytes))
    return row


def halo(comm: Any, gpu: Any, ndims: int, n: int) -> dict[str, Any]:
    """Ghost layers with corners: on the GPU, and with copies of the array around those of the host's."""
    grid = comm.Create_cart(MPI.Compute_dims(P, ndims), [True] * ndims)
    shape = (n + 2,) * ndims
    array = gpu_array(gpu, int(np.prod(shape)), np.dtype(np.float32))
    array.shape = shape
    image = pinned(gpu.driver, array.nbytes).view(np.float32).reshape(shape)

    def copied() -> None:
        gpu.driver.copy(image.ctypes.data, address_of(array), image.nbytes, 0)
        gpu.driver("cuStreamSynchronize", 0)
        on_host.exchange()
        gpu.driver.copy(address_of(array), image.ctypes.data, image.nbytes, 0)
        gpu.driver("cuStreamSynchronize", 0)

    with hpcoll.Halo(grid, array, corners=True) as there, hpcoll.Halo(grid, image, corners=True) as on_host:
        return {
            "halo": [n] * ndims,
            "ways": times({"copies around the host's": copied, "picked": there.exchange}),
        }


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[1 << k for k in (10, 14, 16, 18, 20, 22, 26)]
    )
    parser.add_argument(
        "--points", type=int, default=128, help="along each axis of a block of a halo in 3 dimensions"
    )
    asked = parser.parse_args(words)
    end, gpu = time.monotonic() + asked.seconds, own_gpu()
    comms, mps = communicators(gpu), "CUDA_MPS_PIPE_DIRECTORY" in os.environ
    rows: list[dict[str, Any]] = []
    document = {
        "nranks": P,
        "mps": mps,
        "gpu": gpu.driver.device_name(gpu.ordinal),
        "left_out": 0,
        "rows": rows,
    }

    def late() -> bool:
        return bool(WORLD.bcast(time.monotonic() > end))

    def write() -> None:
        if RANK == 0:
            asked.to.write_text(json.dumps(document, indent=1) + "\n")

    planned = [(name, nbytes) for nbytes in asked.sizes for name in COLLECTIVES]
    rows += [halo(comms["picked"], gpu, 2, 4 * asked.points), halo(comms["picked"], gpu, 3, asked.points)]
    for at, (name, nbytes) in enumerate(planned):
        if late():
            document["left_out"] = len(planned) - at
            break
        rows.append(collective(comms, name, gpu, nbytes))
        write()
    write()


if __name__ == "__main__":
    main(sys.argv[1:])
