"""The cost model of collectives on arrays in GPU memory that all ranks map: kernels and copies, turns on a shared GPU, bytes.

Ranks are processes. Without MPS a GPU works for one process at a time, and each turn costs a context switch, which takes longer than a
short kernel. So the number of turns counts most.
"""

import math
from typing import NamedTuple

from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.placement import Nodes, members
from hpcoll.schedules.row import Algorithm


class GpuCosts(NamedTuple):
    """Constants of a GPU and its links; none was measured here.

    Attributes:
        copy: Bytes per second that its memory reads and writes, together.
        link: Bytes per second to and from other GPUs of the node, each way.
        launch: Seconds of the host for launching a kernel or a copy.
        sync: Seconds from a kernel's end until the host, and then a peer's host, knows of it.
        switch: Seconds of a context switch to another process.
        lane: Bytes of a message that one kernel works on.
    """

    copy: float
    link: float
    launch: float = 5e-6
    sync: float = 10e-6
    switch: float = 100e-6
    lane: int = 16 << 20


H200 = GpuCosts(copy=4.3e12, link=4.0e11)  # copy as published; link: nine tenths of NVLink's data sheet


class GpuPrediction(NamedTuple):
    """The costs of a call.

    Attributes:
        rounds: Times that ranks wait for work of other ranks' GPUs.
        launches: Kernels and copies of the busiest rank.
        switches: Context switches of the busiest GPU.
        moved: Bytes that the busiest GPU's memory reads and writes.
        linked: Bytes that reach the busiest GPU from others.
        seconds: Of the whole call.
    """

    rounds: int
    launches: int
    switches: int
    moved: float
    linked: float
    seconds: float


def predict(row: Algorithm, gpus: Nodes, nbytes: float, gpu: GpuCosts = H200) -> GpuPrediction:
    """Return the costs of a call where all ranks map each other's GPU memory.

    Args:
        row: Row of the catalogue.
        gpus: Number of each rank's GPU.
        nbytes: m, bytes of the whole message as the catalogue counts it.
        gpu: Constants of the GPUs.
    """
    p, sharing, nlanes = len(gpus), max(map(len, members(gpus))), max(1, math.ceil(nbytes / gpu.lane))
    if p < 2:
        return GpuPrediction(0, 0, 0, 0.0, 0.0, 0.0)
    nchunks, used = nlanes if row.chunked else 1, row.on_gpu
    rounds, messages, critical = (row.cost(field, p, nchunks, gpus) for field in ("rounds", "messages", "critical"))
    turns = int(used.turns or rounds)
    launches = int(used.launches or max(messages, rounds)) * (1 if row.chunked else nlanes)
    workers = 1 if used.one_works else sharing
    moved = row.evaluate(used.moved, p, nchunks, gpus) if used.moved else critical * (3 if COLLECTIVES[row.collective].reduces else 2)
    linked = workers * critical * (p - sharing) / (p - 1) * nbytes
    switches = turns * workers if sharing > 1 else 0
    waits = turns * (gpu.launch + gpu.sync) + (launches - turns) * gpu.launch + switches * gpu.switch
    return GpuPrediction(
        turns, launches, switches, workers * moved * nbytes, linked, waits + max(workers * moved * nbytes / gpu.copy, linked / gpu.link)
    )
