"""Everything that the check has found so far, as one archive, one table and one JSON document, all named after the GPU.

It is read from the folder of each step: the outcome (``step.json``), the parts (``parts.jsonl``), their output. Each file is replaced at
once, so that it is whole while the check runs, and after it was cut off.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import tempfile
import traceback
from pathlib import Path
from typing import Any

import bench_tables
from bench_tables import row
from contained import OK

_UNKNOWN = "gpu"
_MAY_LACK = (1, 2)  # steps that report what is missing
_TAIL_LINES = 25  # of a part that did not go well
_FILE_NBYTES = 1 << 20  # of a file, in the archive: its end
_MARK = '{"what":'  # a finding of a probe

Facts = dict[str, Any]


def read(work: Path) -> Facts:
    """Return steps with their parts, findings of probes, benchmarks."""
    steps = []
    for path in sorted(work.glob("*/step.json")):
        step = _json(path)
        if step:
            step["parts"] = [_part(path.parent, one) for one in lines_of(path.parent / "parts.jsonl")]
            step["end"] = [] if step["status"] in (OK, "running") else _tail(path.parent / "log.txt")
            steps.append(step)
    benches = [
        {"part": path.stem, **document}
        for path in sorted(work.glob("*/bench-*.json"))
        for document in [_json(path)]
        if document
    ]
    doctor = next((_text(path) for path in work.glob("*/doctor.txt")), "")
    return {"gpu": name_of(work, doctor), "steps": steps, "doctor": doctor, "bench": benches}


def _part(folder: Path, part: Facts) -> Facts:
    log = folder / f"{part['name']}.txt"
    text = _text(log)
    ranks = sorted((folder / part["name"]).glob("rank-*"), key=lambda path: int(path.name.split("-")[1]))
    part["findings"] = [
        found for line in text.splitlines() if line.startswith(_MARK) for found in [_parsed(line)] if found
    ]
    part["ranks"] = [_text(path).strip() for path in ranks]
    part["skipped"] = sorted(set(re.findall(r"^SKIPPED .*", text, re.M)))
    part["end"] = [] if part["status"] == OK else _tail(log)
    return part


def name_of(work: Path, doctor: str = "") -> str:
    """Return the GPU's name as nvidia-smi has it, or the driver; else "gpu"."""
    texts = [_text(work / "1-facts" / "nvidia-smi.txt"), _text(work / "3-probes" / "context.txt"), doctor]
    patterns = (
        r"^GPU 0: (.+?) \(UUID",
        r'^\{"what": "name of GPU 0", "value": "([^"]+)"',
        r"CUDA: \d+ x ([^,\n]+)",
    )
    found = [
        match[1]
        for text, pattern in zip(texts, patterns)
        for match in [re.search(pattern, text, re.M)]
        if match
    ]
    return found[0] if found else _UNKNOWN


def is_good(work: Path) -> bool:
    """Say whether all that has run went well; facts and packages that are missing are no failures by themselves."""
    steps = read(work)["steps"]
    parts = [part for step in steps if step["number"] not in _MAY_LACK for part in step["parts"]]
    return all(one["status"] == OK for one in (*steps, *parts))


def summary(work: Path) -> list[str]:
    """Return a line per step, and one per part of it that did not go well."""
    lines = []
    for step in read(work)["steps"]:
        bad = [part for part in step["parts"] if part["status"] != OK]
        lines.append(
            f"{step['number']} {step['name']}: {step['status']}, {len(step['parts'])} parts, {len(bad)} not good"
        )
        lines += [f"    {part['name']}: {part['status']}" for part in bad]
    return lines


def write(work: Path, out: Path) -> Path:
    """Write all three, and return the table's path."""
    found = read(work)
    stem = re.sub(r"[^a-z0-9]+", "-", found["gpu"].lower()).strip("-") or _UNKNOWN
    if stem != _UNKNOWN:  # its name is known only now
        for suffix in (".md", ".json", ".tar.gz"):
            (out / f"{_UNKNOWN}{suffix}").unlink(missing_ok=True)
    _replace(out / f"{stem}.md", ("\n".join(table(found, f"{stem}.tar.gz")) + "\n").encode())
    _replace(out / f"{stem}.json", (json.dumps(found, indent=1) + "\n").encode())
    _replace(out / f"{stem}.tar.gz", archive(work))
    return out / f"{stem}.md"


def try_to_write(work: Path, out: Path) -> Path | None:
    """Write all three, or print why that is not possible: steps go on without."""
    try:
        return write(work, out)
    except Exception:
        traceback.print_exc()
        return None


def _replace(path: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def archive(work: Path) -> bytes:
    """Return an archive of all files below a folder; of long ones the end."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=3) as tar:
        for path in sorted(work.rglob("*")):
            if path.is_file() and not path.is_symlink():
                content = path.read_bytes()[-_FILE_NBYTES:]
                entry = tarfile.TarInfo(str(path.relative_to(work)))
                entry.size, entry.mtime = len(content), int(path.stat().st_mtime)
                tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def table(found: Facts, archive_name: str) -> list[str]:
    """Return the document in Markdown: how steps and parts went, what probes found, benchmarks, and the ends of what did not go well."""
    lines = [
        f"# {found['gpu']}",
        "",
        f"Everything that was printed is in `{archive_name}`.",
        "",
        *_steps(found),
    ]
    for step in found["steps"]:
        lines += _step(step)
    for document in found["bench"]:
        lines += _bench(document)
    lines += _ends(found)
    skipped = sorted({text for step in found["steps"] for part in step["parts"] for text in part["skipped"]})
    lines += ["## Tests that were skipped", "", *(f"- {text}" for text in skipped), ""] if skipped else []
    return lines + (
        ["## hpcoll doctor", "", "```", found["doctor"].rstrip(), "```"] if found["doctor"] else []
    )


def _steps(found: Facts) -> list[str]:
    head = ["step", "began", "status", "seconds", "parts", "not good"]
    lines = [row(head), row(["---"] * len(head))]
    for step in found["steps"]:
        bad = [part["name"] for part in step["parts"] if part["status"] != OK]
        cells = [
            f"{step['number']} {step['name']}",
            step["began"],
            step["status"],
            f"{step['seconds']:.0f}",
            str(len(step["parts"])),
        ]
        lines.append(row([*cells, ", ".join(bad)]))
    return [*lines, ""]


def _step(step: Facts) -> list[str]:
    """Return the parts of a step, and their findings."""
    if not step["parts"]:
        return []
    lines = [
        f"## {step['number']} {step['name']}",
        "",
        row(["part", "status", "seconds", "ranks"]),
        row(["---"] * 4),
    ]
    lines += [
        row([part["name"], part["status"], f"{part['seconds']:.1f}", "; ".join(part["ranks"])])
        for part in step["parts"]
    ]
    findings = [(part["name"], one) for part in step["parts"] for one in part["findings"]]
    if findings:
        lines += ["", row(["probe", "what", "found", "unit"]), row(["---"] * 4)]
        lines += [
            row([name, str(one["what"]), _cell(one.get("value")), str(one.get("unit", ""))])
            for name, one in findings
        ]
    return [*lines, ""]


def _bench(document: Facts) -> list[str]:
    try:
        return bench_tables.table(document)
    except (
        KeyError,
        TypeError,
        ValueError,
        ZeroDivisionError,
    ) as error:  # a report must not end where a benchmark is not as it should be
        return [f"## {document['part']}", "", f"not as expected: {type(error).__name__} {error}", ""]


def _cell(value: object) -> str:
    return (
        bench_tables.number(value)
        if isinstance(value, float)
        else str(value).replace("|", "\\|").replace("\n", " ")
    )


def _ends(found: Facts) -> list[str]:
    """Return the last lines of steps and parts that did not go well."""
    lines = []
    for step in found["steps"]:
        named = [
            (f"step {step['number']} {step['name']}", step),
            *((part["name"], part) for part in step["parts"]),
        ]
        for name, one in named:
            if one["end"]:
                lines += [f"### {name}: {one['status']}", "", "```", *one["end"], "```", ""]
    return ["## What did not go well", "", *lines] if lines else []


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _tail(path: Path) -> list[str]:
    return [line for line in _text(path).splitlines() if not line.startswith(_MARK)][-_TAIL_LINES:]


def _parsed(text: str) -> Facts:
    """Return a JSON object, or an empty one where it was cut off."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _json(path: Path) -> Facts:
    return _parsed(_text(path))


def lines_of(path: Path) -> list[Facts]:
    """Return the objects of a file with one in each line; a line that was cut off is none."""
    return [found for line in _text(path).splitlines() for found in [_parsed(line)] if found]
