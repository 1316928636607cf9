"""Gathers what jobs/gpu_check.sh has so far: ``gpu_report.py FOLDER`` writes ``<name of the GPU>.json`` and ``.md``, and prints a summary.

The folder's ``parts`` hold a line per part in ``verdicts``, a result file per rank of the tests, and a JSON document per benchmark.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

UNKNOWN = "unknown GPU"
FAILED_TAIL = 12  # lines of a part that failed


def verdicts(parts: Path) -> list[dict[str, Any]]:
    """Every part that has run, with the results of its ranks."""
    found = []
    text = (parts / "verdicts").read_text() if (parts / "verdicts").exists() else ""
    for line in text.splitlines():
        name, status, seconds = line.split("\t")
        tokens = sorted((parts / name).glob("rank-*"), key=lambda path: int(path.name.split("-")[1]))
        output = (parts / f"{name}.txt").read_text(errors="replace") if (parts / f"{name}.txt").exists() else ""
        found.append({
            "name": name, "status": status, "seconds": int(seconds), "ranks": [path.read_text().strip() for path in tokens],
            "skipped": sorted(set(re.findall(r"^SKIPPED .*", output, re.M))), "end": output.splitlines()[-FAILED_TAIL:],
        })  # fmt: skip
    return found


def benches(parts: Path) -> list[dict[str, Any]]:
    """Every benchmark that has ended."""
    found = []
    for path in sorted(parts.glob("bench-*.json")):
        try:
            found.append(json.loads(path.read_text()))
        except ValueError:  # it was ended while writing
            continue
    return found


def by_algorithm(document: dict[str, Any], size: int) -> dict[str, dict[str, Any]]:
    """Out-of-place results of one size, by name."""
    return {one["algorithm"]: one["out_of_place"] for one in document["results"] if one["size"] == size and one["out_of_place"]}


def share_of_memory(document: dict[str, Any], size: int, us: float) -> float:
    """Time of an allreduce over that of reading and writing the message once per rank at the GPU's own copy rate: 1 is best."""
    gpu = document["gpu"]
    return us / (2 * gpu["ranks_per_gpu"] * size / (gpu["copy"] * 1e3))


def share_of_link(document: dict[str, Any], side: dict[str, Any]) -> float:
    """What all ranks of a GPU send through its link, over what the link carries."""
    gpu = document["gpu"]
    return float(gpu["ranks_per_gpu"] * side["bus_bw"] / min(gpu["to_gpu"], gpu["from_gpu"]))


def table(document: dict[str, Any]) -> list[str]:
    """A benchmark in Markdown: microseconds out of place, and what they are worth."""
    sizes = sorted({one["size"] for one in document["results"]})
    names = list(dict.fromkeys(one["algorithm"] for one in document["results"]))
    gpu, allreduce = document["gpu"], document["collective"] == "allreduce"
    worth = ["native / auto", *(["auto / memory"] if allreduce else []), "staged / link", "wrong"]
    head = ["bytes", *(f"{name} us" for name in names), *worth]
    where = f"{document['nranks']} ranks on {gpu['ngpus']} GPU{'' if gpu['ngpus'] == 1 else 's'}"
    rates = f"pinned copies {gpu['to_gpu']:.1f} and {gpu['from_gpu']:.1f} GB/s, memory {gpu['copy']:.0f} GB/s"
    lines = [f"## {document['collective']}, {where}", "", f"{rates}; {document['config']['mpi']}", "", row(head), row(["---"] * len(head))]
    for size in sizes:
        found = by_algorithm(document, size)
        auto, staged = found.get("auto"), found.get("auto@staged")
        wrong = sum(side["nwrong"] or 0 for one in document["results"] if one["size"] == size for side in sides(one))
        cells = [f"{size:,}", *(number(found[name]["time"] if name in found else None) for name in names)]
        cells += [number(auto["ratio"] if auto else None)]
        cells += [number(share_of_memory(document, size, auto["time"]) if auto else None)] if allreduce else []
        lines.append(row([*cells, number(share_of_link(document, staged) if staged else None), str(wrong)]))
    return [*lines, "", *(f"- {note}" for note in document["notes"]), ""]


def sides(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [result[side] for side in ("out_of_place", "in_place") if result[side]]


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def summary(parts: list[dict[str, Any]]) -> list[str]:
    """A line per part, below it the ranks that failed and the end of what it printed; then one for all."""
    lines = []
    for part in parts:
        verdict = "ok" if part["status"] == "0" else "cut" if part["status"] in ("124", "137") else part["status"]
        verdict = verdict if verdict in ("ok", "cut", "skipped") else "FAILED"
        passed = sum(int(text.split()[0]) for text in part["ranks"])
        tests = f", {passed} passed on {len(part['ranks'])} ranks" if part["ranks"] else ""
        lines.append(f"{verdict:7} {part['seconds']:4} s  {part['name']}{tests}")
        if verdict != "ok":
            lines += [f"        {text}" for text in (*part["ranks"], *part["end"])]
    bad = sum(part["status"] != "0" for part in parts)
    return [*lines, f"{len(parts)} parts, {bad} not good"]


def main(folder: Path) -> None:
    """Write what there is, and print the summary."""
    parts, documents = verdicts(folder / "parts"), benches(folder / "parts")
    doctor = (folder / "parts" / "doctor.txt").read_text(errors="replace") if (folder / "parts" / "doctor.txt").exists() else ""
    told = re.search(r"CUDA: \d+ x ([^,\n]+)", doctor)
    name = documents[0]["gpu"]["name"] if documents else told[1] if told else UNKNOWN
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    lines = [f"# {name}", "", "```", *summary(parts), "```", ""]
    for document in documents:
        lines += table(document)
    skipped = sorted({text for part in parts for text in part["skipped"]})
    lines += ["## Tests that were skipped", "", *(f"- {text}" for text in skipped), ""] if skipped else []
    lines += ["## hpcoll doctor", "", "```", doctor.rstrip(), "```"]
    text = json.dumps({"gpu": name, "parts": parts, "doctor": doctor, "bench": documents}, indent=1)
    for old in folder.glob("unknown-gpu.*"):
        old.unlink()
    (folder / f"{stem}.json").write_text(text + "\n")
    (folder / f"{stem}.md").write_text("\n".join(lines) + "\n")
    print(*summary(parts), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
