"""Step 6: the long benchmarks, and the same where processes share GPUs through NVIDIA's Multi-Process Service."""

from __future__ import annotations

from knobs import HERE, Knobs
from parts import Parts
from small_bench import bench

_LEAST = "1K"
_MPS = "nvidia-cuda-mps-control"


def run(parts: Parts) -> None:
    """Measure an allreduce on several numbers of ranks, the same with MPS, the other collectives on the first number."""
    knobs = parts.knobs
    first = knobs.bench_nranks[:1]
    for nranks in knobs.bench_nranks:
        one(parts, "allreduce", nranks)
    if not knobs.has(_MPS):
        parts.text("mps", f"{_MPS} was not found: nothing is measured with it")
    elif knobs.bench_nranks:
        parts(
            "switches-mps",
            [*with_mps(knobs), knobs.interpreter(), str(HERE / "probes.py"), "switches"],
            knobs.probe_limit_s,
        )
        for nranks in knobs.bench_nranks:
            one(parts, "allreduce", nranks, mps=True)
    for collective in knobs.collectives:
        for nranks in first:
            one(parts, collective, nranks)


def one(parts: Parts, collective: str, nranks: int, *, mps: bool = False) -> None:
    """Run a benchmark."""
    name = f"bench-{collective}-{nranks}{'-mps' if mps else ''}"
    command = bench(parts, collective, nranks, _LEAST, parts.knobs.largest, name)
    parts(name, [*(with_mps(parts.knobs) if mps else []), *command], parts.knobs.bench_limit_s)


def with_mps(knobs: Knobs) -> list[str]:
    """Return the start of a command that runs under a service of its own."""
    return [knobs.interpreter(), str(HERE / "mps.py"), knobs.program(_MPS)]
