"""Step 3: probes of the driver without MPI and without hpcoll, each in a process of its own: one that crashes costs only itself."""

from __future__ import annotations

from knobs import HERE
from parts import Parts

ORDER = (
    "symbols",
    "context",
    "kernel",
    "memory",
    "registered",
    "handles",
    "stale",
    "rates",
    "peer-rates",
    "switches",
)


def run(parts: Parts) -> None:
    """Run all probes, or those that are named."""
    wanted = ORDER if parts.knobs.probes == ("all",) else parts.knobs.probes
    for name in wanted:
        command = [parts.knobs.interpreter(), str(HERE / "probes.py"), name]
        parts(name, command, parts.knobs.probe_limit_s, environment={"COPY_SIZES": parts.knobs.copy_sizes})
