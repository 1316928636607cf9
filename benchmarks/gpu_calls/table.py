"""Tables of the measurements of `program.py`, for docs/evidence/gpu.md: ``python benchmarks/gpu_calls/table.py build/gpu/calls-*.json``."""

import json
import sys
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any

from hpcoll.base.text import format_nbytes

LIBRARY, PICKED = "library", "picked"


def _row(cells: Iterable[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _us(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _wins(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield for each size how many collectives were faster than the library, and by how much on the average."""
    for nbytes in sorted({row["nbytes"] for row in rows}):
        ratios = [row["ways"][LIBRARY] / row["ways"][PICKED] for row in rows if row["nbytes"] == nbytes]
        mean = prod(ratios) ** (1 / len(ratios))
        won = sum(ratio > 1 for ratio in ratios)
        yield f"{format_nbytes(nbytes)}: {won} of {len(ratios)}, library / picked {mean:.2f}"


def table(document: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a document's tables."""
    rows = [row for row in document["rows"] if "collective" in row]
    mps = ", with MPS" if document["mps"] else ""
    yield f"### {document['nranks']} ranks on {document['gpu']}{mps}"
    yield ""
    yield "Faster than copies around the library: " + "; ".join(_wins(rows)) + "."
    wrong = [
        f"{row['collective']} of {format_nbytes(row['nbytes'])} {row['wrong']}"
        for row in rows
        if row["wrong"]
    ]
    yield f"Wrong answers: {', '.join(wrong) or 'none'}. Left out for want of time: {document['left_out']} rows."
    yield ""
    ways = list(dict.fromkeys(way for row in rows for way in row["ways"]))
    forms = list(dict.fromkeys(form for row in rows for form in row.get("forms", {})))
    heads = ["collective", "message", *ways, *forms, "library / picked"]
    yield _row(heads)
    yield _row(["---"] * len(heads))
    for row in rows:
        numbers = [_us(row["ways"].get(way)) for way in ways]
        numbers += [_us(row.get("forms", {}).get(form)) for form in forms]
        ratio = row["ways"][LIBRARY] / row["ways"][PICKED]
        yield _row([row["collective"], format_nbytes(row["nbytes"]), *numbers, f"{ratio:.2f}"])
    yield ""
    for row in document["rows"]:
        if "halo" in row:
            shape, told = (
                " x ".join(map(str, row["halo"])),
                [f"{way} {_us(us)}" for way, us in row["ways"].items()],
            )
            yield f"Ghost layers of {shape} floats with corners: {', '.join(told)}."
    yield ""


def main(files: list[str]) -> None:
    for file in files:
        print(*table(json.loads(Path(file).read_text())), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
