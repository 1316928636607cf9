"""Times of short calls on GPU arrays over `empty_driver.c` beside the same calls on host arrays, in turns: what hpcoll itself takes.

mpirun -n 2 python benchmarks/gpu_calls/overhead.py 300    # calls of each kind; needs a C compiler and no GPU
"""

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from mpi4py import MPI

import hpcoll
from hpcoll.runtime.gpu import cuda
from hpcoll.runtime.gpu.device import Gpu, GpuArray, Memory, gpu_of

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
SHARES = {"Allreduce": (1, 1), "Bcast": (1,), "Allgather": (P, 1), "Alltoall": (1, 1)}
SIZES = (1 << 10, 16 << 10, 64 << 10)
# forms on GPU arrays, and the forms on host arrays with which they are compared
FORMS = {
    "repeated": "blocking",
    "new arrays": "blocking",
    "in flight": "in flight",
    "persistent": "persistent",
}


def empty_driver() -> ctypes.CDLL:
    """Compile the driver, and let it stand for CUDA's."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "empty.so"
        source = Path(__file__).with_name("empty_driver.c")
        subprocess.run(
            [os.environ.get("CC", "cc"), "-O2", "-w", "-shared", "-fPIC", "-o", made, source], check=True
        )
        library = ctypes.CDLL(str(made))
    cuda.use(library)
    return library


def forms(comm: Any, method: str, arrays: list[Any]) -> dict[str, Callable[[], Any]]:
    """A call in all forms, but on new arrays."""
    run, start, planned = (
        getattr(comm, method),
        getattr(comm, f"I{method.lower()}"),
        getattr(comm, f"{method}_init")(*arrays),
    )

    def started() -> None:
        planned.Start()
        planned.Wait()

    return {
        "blocking": lambda: run(*arrays),
        "in flight": lambda: start(*arrays).Wait(),
        "persistent": started,
    }


def measured(comm: Any, gpu: Gpu, method: str, nbytes: int, n: int) -> dict[str, float]:
    """Microseconds above the host's call, by form, on the slowest rank."""
    counts = [nbytes // 4 // share for share in SHARES[method]]
    memories = [Memory(gpu, 4 * count) for count in counts]
    float32 = np.dtype(np.float32)

    def made() -> list[Any]:
        return [GpuArray(one, (count,), float32) for one, count in zip(memories, counts)]

    images = [np.full(count, RANK + 1, float32) for count in counts]
    on_gpu, on_host = forms(comm, method, made()), forms(comm, method, images)
    calls = {
        "repeated": on_gpu.pop("blocking"),
        "new arrays": lambda: getattr(comm, method)(*made()),
        **on_gpu,
    }
    calls |= {f"host {form}": call for form, call in on_host.items()}
    times: dict[str, list[int]] = {form: [] for form in calls}
    for _ in range(20 + n):
        for form, call in calls.items():
            begun = time.perf_counter_ns()
            call()
            times[form].append(time.perf_counter_ns() - begun)
    found = {form: WORLD.allreduce(median(one[20:]), MPI.MAX) / 1000 for form, one in times.items()}
    return {form: found[form] - found[f"host {host}"] for form, host in FORMS.items()}


def main(n: int) -> None:
    library = empty_driver()
    gpu, comm = gpu_of(0), hpcoll.Communicator(WORLD.Dup())
    library.empty_driver_rests(1)
    for method in SHARES:
        for nbytes in SIZES:
            found = measured(comm, gpu, method, nbytes, n)
            if RANK == 0:
                told = ", ".join(f"{form} {us:.1f}" for form, us in found.items())
                print(f"{method} {nbytes >> 10} KiB: us above the host's call: {told}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
