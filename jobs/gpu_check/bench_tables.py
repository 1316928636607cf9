"""Benchmarks of GPU arrays as tables: documents of ``hpcoll bench --memory device --format json``, and the worth of their times."""

from __future__ import annotations

from typing import Any


def by_algorithm(document: dict[str, Any], size: int) -> dict[str, dict[str, Any]]:
    """Return out-of-place results of one size, by name."""
    return {
        one["algorithm"]: one["out_of_place"]
        for one in document["results"]
        if one["size"] == size and one["out_of_place"]
    }


def share_of_memory(document: dict[str, Any], size: int, us: float) -> float:
    """Return the time of an allreduce over that of reading and writing the message once per rank at the GPU's own copy rate: 1 is best."""
    gpu = document["gpu"]
    return us / (2 * gpu["ranks_per_gpu"] * size / (gpu["copy"] * 1e3))


def share_of_link(document: dict[str, Any], side: dict[str, Any]) -> float:
    """Return the share of a link's rate that all ranks of a GPU together reach."""
    gpu = document["gpu"]
    return float(gpu["ranks_per_gpu"] * side["bus_bw"] / min(gpu["to_gpu"], gpu["from_gpu"]))


def table(document: dict[str, Any]) -> list[str]:
    """Return a benchmark in Markdown: microseconds out of place, and their worth."""
    sizes = sorted({one["size"] for one in document["results"]})
    names = list(dict.fromkeys(one["algorithm"] for one in document["results"]))
    gpu, allreduce = document["gpu"], document["collective"] == "allreduce"
    worth = ["native / auto", *(["auto / memory"] if allreduce else []), "staged / link", "wrong"]
    head = ["bytes", *(f"{name} us" for name in names), *worth]
    where = f"{document['nranks']} ranks on {gpu['ngpus']} GPU{'' if gpu['ngpus'] == 1 else 's'}"
    rates = f"pinned copies {gpu['to_gpu']:.1f} and {gpu['from_gpu']:.1f} GB/s, memory {gpu['copy']:.0f} GB/s"
    title = f"## {document['collective']}, {where}{', with MPS' if str(document.get('part', '')).endswith('-mps') else ''}"
    lines = [title, "", f"{rates}; {document['config']['mpi']}", "", row(head), row(["---"] * len(head))]
    for size in sizes:
        found = by_algorithm(document, size)
        auto, staged = found.get("auto"), found.get("auto@staged")
        wrong = sum(
            side["nwrong"] or 0 for one in document["results"] if one["size"] == size for side in sides(one)
        )
        cells = [f"{size:,}", *(number(found[name]["time"] if name in found else None) for name in names)]
        cells += [number(auto["ratio"] if auto else None)]
        cells += (
            [number(share_of_memory(document, size, auto["time"]) if auto else None)] if allreduce else []
        )
        disturbed = any(one.get("disturbed") for one in document["results"] if one["size"] == size)
        cells[0] += " *" * disturbed  # a note says what that means
        lines.append(row([*cells, number(share_of_link(document, staged) if staged else None), str(wrong)]))
    return [*lines, "", *(f"- {note}" for note in document["notes"]), ""]


def sides(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the forms of a call that there are."""
    return [result[side] for side in ("out_of_place", "in_place") if result[side]]


def row(cells: list[str]) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(cells)} |"


def number(value: float | None) -> str:
    """Return a number with two digits behind the point, or none where it is large."""
    return "-" if value is None else f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"
