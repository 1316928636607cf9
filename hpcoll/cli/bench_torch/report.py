"""The table of ``hpcoll bench-torch``: times of hpcoll and gloo, their ratio at each size, and geometric means. No torch, no MPI."""

from collections.abc import Sequence
from statistics import geometric_mean
from typing import NamedTuple

from hpcoll.base.busy import MARK, CoreUse, verdict
from hpcoll.base.text import counted, format_nbytes, table

HPCOLL, GLOO = "hpcoll", "gloo"
BLOCKING, ASYNC = "blocking", "async"
MODES = (BLOCKING, ASYNC)
_WIDTH = 120
_METHOD = (
    "us: median of the time per call of the slowest rank; ratio is gloo / hpcoll; async: async_op=True, then wait()",
    "all four take turns in one run, in random order; float32; the tensors of a list lie apart",
)


class TorchResult(NamedTuple):
    """The result of an operation at one size."""

    operation: str
    size: int  # bytes of the whole message
    us: dict[tuple[str, str], float]  # per call, by backend and mode
    nwrong: int  # wrong elements on all ranks
    beside: CoreUse | None = None  # the use of the cores meanwhile

    def ratio(self, mode: str) -> float:
        """Return gloo's time over hpcoll's."""
        return self.us[GLOO, mode] / self.us[HPCOLL, mode]


def report(results: Sequence[TorchResult], nranks: int, version: str, notes: Sequence[str] = ()) -> list[str]:
    """Return lines: a row per operation and size, then the means."""
    times = [f"{backend} {mode}" for mode in MODES for backend in (HPCOLL, GLOO)]
    header = ["operation", "size", *times, *(f"ratio {mode}" for mode in MODES), ""]
    rows = [
        [
            result.operation,
            format_nbytes(result.size),
            *(f"{result.us[backend, mode]:.1f}" for mode in MODES for backend in (HPCOLL, GLOO)),
            *(f"{result.ratio(mode):.2f}" for mode in MODES),
            MARK if result.beside is not None and result.beside.disturbed else "",
        ]
        for result in results
    ]
    for name in dict.fromkeys(result.operation for result in results):
        rows.append(_mean(name, [result for result in results if result.operation == name]))
    rows.append(_mean("all", results))
    wrong = sum(result.nwrong for result in results)
    return [
        *(f"# {text}" for text in (f"torch {version}, {counted(nranks, 'rank')}", *_METHOD, *notes)),
        *table(header, rows, _WIDTH, numbers=range(1, len(header))),
        f"# least ratio: {', '.join(_least(results, mode) for mode in MODES)}; wrong elements: {wrong}",
        *(f"# {text}" for text in verdict(result.beside for result in results if result.beside is not None)),
    ]


def _mean(name: str, results: Sequence[TorchResult]) -> list[str]:
    return [
        name,
        "mean",
        *[""] * 4,
        *(f"{geometric_mean(result.ratio(mode) for result in results):.2f}" for mode in MODES),
        "",
    ]


def _least(results: Sequence[TorchResult], mode: str) -> str:
    one = min(results, key=lambda result: result.ratio(mode))
    return f"{mode} {one.ratio(mode):.2f} ({one.operation}, {format_nbytes(one.size)})"
