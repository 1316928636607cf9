"""Step 4: hpcoll's own view of the machine, and an allreduce of a short and a long message beside MPI on copies in host memory."""

from __future__ import annotations

from parts import Parts

NRANKS = 2
_DOCTOR_S = 30.0


def run(parts: Parts) -> None:
    """Run doctor, then a benchmark per size: where one fails, the other size's figures are still there."""
    knobs = parts.knobs
    if knobs.small:
        parts("doctor", [*knobs.ranks(NRANKS), "-m", "hpcoll", "doctor"], _DOCTOR_S)
    for size in knobs.small:
        parts(
            f"bench-small-{size}",
            bench(parts, "allreduce", NRANKS, size, size, f"bench-small-{size}"),
            knobs.bench_limit_s,
        )


def bench(parts: Parts, collective: str, nranks: int, least: str, most: str, name: str) -> list[str]:
    """Return the command of a benchmark whose results are in a file of its name after every size."""
    sizes = ["-b", least, "-e", most, "-f", "16"]
    program = [
        "-m",
        "mpi4py",
        "-m",
        "hpcoll",
        "bench",
        collective,
        "--memory",
        "device",
        "--format",
        "json",
        *sizes,
    ]
    return [
        *parts.knobs.ranks(nranks),
        *program,
        "--output",
        str(parts.folder / f"{name}.json"),
        *parts.knobs.bench_options,
    ]
