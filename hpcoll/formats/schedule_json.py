"""Programs as JSON of hpcoll's own, written and read; ``schedule.schema.json`` beside this module describes the format."""

import hashlib
import json
from collections.abc import Hashable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hpcoll.base.budget import CELLS, CHANNELS, NAMED, STEPS, Budget
from hpcoll.base.errors import ArgumentError
from hpcoll.base.json_fields import refused
from hpcoll.base.json_schema import check
from hpcoll.base.text import LINE, printable
from hpcoll.formats.program import FilePlace, FileProgram
from hpcoll.schedules.collectives import COLLECTIVES, Collective
from hpcoll.schedules.graph import Graph
from hpcoll.schedules.ir import Buffer, Chunk, Op, Schedule, Step

MARK, VERSION = "hpcoll_schedule", 1  # the field by which a file of this format is known
MAX_VALUES = 2_000_000  # of a file: read in seconds, in half a gigabyte
_OPTIONAL = ("uniform", "min_bytes", "max_bytes", "slots")


@cache
def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the format."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("schedule.schema.json").read_text())
    return found


def content_hash(program: FileProgram) -> str:
    """Return a hash of all that a program says but its name; equal programs have equal ones, whatever file they come from."""
    found = hashlib.sha256(_canonical(_head(program)))
    for s in program.schedules:
        found.update(_canonical(_rank(s)))
    return found.hexdigest()


def schedule_text(program: FileProgram) -> str:
    """Return the JSON text of a program, a step a line.

    Raises:
        ArgumentError: only conditions of the user's say what its collective does, or what is one memory in a call in place.
    """
    if program.collective not in COLLECTIVES:
        raise ArgumentError(
            f"JSON needs one of the collectives {', '.join(COLLECTIVES)}, got {program.collective}"
        )
    if program.in_place and any(
        _aliases(program.meaning, s) != _aliases(s.meaning, s) for s in program.schedules
    ):
        raise ArgumentError(
            f"JSON needs calls in place as hpcoll has them, got others of {program.collective}"
        )
    head = {MARK: VERSION, "name": program.name, "sha256": content_hash(program), **_head(program)}
    lines = ["{", *(f' "{key}": {json.dumps(value)},' for key, value in head.items()), ' "ranks": [']
    for s in program.schedules:
        part = _rank(s)
        channels = part.pop("channels")
        lines.append(
            "  {"
            + "".join(f'"{key}": {json.dumps(value)}, ' for key, value in part.items())
            + '"channels": ['
        )
        for number, steps in enumerate(channels):
            lines += [
                "   [",
                ",\n".join(f"    {json.dumps(step)}" for step in steps),
                "   ]" + "," * (number + 1 < len(channels)),
            ]
        lines.append("  ]}" + "," * (s.rank + 1 < program.nranks))
    return "\n".join([*lines, " ]", "}"]) + "\n"


def read_schedule(document: Any, path: str) -> FileProgram:
    """Return the program of a JSON file that `schedule_text` wrote; a verifier must say whether it is right.

    Args:
        document: Content of the file. Its list of ranks is emptied, because a long one need not be in memory twice.
        path: Name of the file.

    Raises:
        ArgumentError: a field does not fit the schema, or the content is not what was hashed.
    """
    try:
        check(document, json_schema(), MAX_VALUES)
        return _program(document, path)
    except ArgumentError as error:
        raise ArgumentError(f"{printable(path, LINE)}: {error}") from None


def _aliases(meaning: Collective, s: Schedule) -> list[tuple[int, int]] | None:
    return meaning.aliases and meaning.aliases(s.rank, s.nranks, s.root, s.nchunks)


def _head(program: FileProgram) -> dict[str, Any]:
    """Return all but the name and the ranks, without what has its default."""
    first = program.schedules[0]
    found = {key: getattr(program, key) for key in ("collective", "root", "in_place", "out_of_place")} | {
        "nchunks": first.nchunks
    }
    found |= {key: getattr(program, key) for key in _OPTIONAL if getattr(program, key)}
    return found | ({"targets": first.graph.targets, "sources": first.graph.sources} if first.graph else {})


def _rank(s: Schedule) -> dict[str, Any]:
    found: dict[str, Any] = {"scratch": s.scratch} if s.scratch else {}
    if s.links:
        found["links"] = s.links
    return {**found, "channels": [[_step(step) for step in steps] for steps in s.channels]}


def _step(step: Step) -> dict[str, Any]:
    found: dict[str, Any] = {"op": step.op.name.lower()}
    if step.peer >= 0:
        found["peer"] = step.peer
    if step.dst:
        found["dst"] = _chunk(step.dst)
    if step.srcs:
        found["srcs"] = [_chunk(src) for src in step.srcs]
    found |= {key: True for key in ("received_first", "put") if getattr(step, key)}
    return found | {"after": step.after} if step.op is Op.AFTER else found


def _chunk(chunk: Chunk) -> list[Any]:
    return [chunk.buffer.name.lower(), chunk.index, chunk.n]


def _canonical(part: dict[str, Any]) -> bytes:
    return json.dumps(part, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _program(document: dict[str, Any], path: str) -> FileProgram:
    ranks, collective, root = document["ranks"], COLLECTIVES[document["collective"]], document["root"]
    nranks, nchunks = len(ranks), document["nchunks"]
    if root >= nranks or (root and not collective.rooted):
        raise refused("root", f"a rank below {nranks}, and 0 where there is no root", root)
    if collective.blocks and not collective.neighbours and nchunks % nranks:
        raise refused("nchunks", f"a multiple of the {nranks} ranks", nchunks)
    if not document["in_place"] and not document["out_of_place"]:
        raise refused("out_of_place", "true where in_place is false", False)
    graph = _graph(document, nranks) if collective.neighbours else None
    if graph and nchunks != graph.degree:
        raise refused("nchunks", f"{graph.degree}, the most blocks that a rank sends or receives", nchunks)
    found = []
    for rank, part in enumerate(ranks):
        channels = tuple(
            tuple(_read_step(step, f"ranks[{rank}]") for step in steps) for steps in part["channels"]
        )
        scratch, links = tuple(map(_extent, part.get("scratch", ()))), tuple(part.get("links", ()))
        if links and len(links) != len(channels):
            raise refused(f"ranks[{rank}].links", f"a link for each of {len(channels)} channels", list(links))
        found.append(
            Schedule(
                collective.name,
                document["name"],
                nranks,
                rank,
                root,
                nchunks,
                channels,
                scratch,
                graph,
                links,
            )
        )
        ranks[rank] = None
    _check_sizes(found)
    places = tuple(
        tuple(
            tuple(FilePlace(-1, s.rank, c, i) for i in range(len(steps)))
            for c, steps in enumerate(s.channels)
        )
        for s in found
    )
    program = FileProgram(
        path,
        document["name"],
        collective.name,
        found[0].meaning,
        nranks,
        root,
        tuple(found),
        places,
        document["in_place"],
        document["out_of_place"],
        **{key: document[key] for key in _OPTIONAL if key in document},
    )
    if content_hash(program) != document["sha256"]:
        raise refused("sha256", f"{content_hash(program)}, the hash of the content", document["sha256"])
    return program


def _check_sizes(schedules: Sequence[Schedule]) -> None:
    """Refuse what a proof would need much memory for."""
    budget = Budget()
    for s in schedules:
        who = (s.rank, s.nranks, s.root, s.nchunks)
        budget.spend(s.meaning.ninputs(*who) + s.meaning.noutputs(*who) + len(s.scratch), CELLS)
        budget.spend(len(s.channels), CHANNELS)
        budget.spend(sum(map(len, s.channels)), STEPS)
        budget.spend(sum(run.n for steps in s.channels for step in steps for run in step.runs), NAMED)


def _read_step(step: dict[str, Any], where: str) -> Step:
    op = Op[step["op"].upper()]
    dst = _read_chunk(step["dst"]) if "dst" in step else None
    srcs = tuple(map(_read_chunk, step.get("srcs", ())))
    sends = op in (Op.SEND, Op.RECV, Op.RECV_REDUCE)
    if (
        sends != ("peer" in step)
        or (op is Op.AFTER) != ("after" in step)
        or (op in (Op.SEND, Op.AFTER)) != (dst is None)
    ):
        raise refused(where, "steps with the fields that their op needs", step)
    if op is not Op.AFTER and op is not Op.RECV and not srcs:
        raise refused(where, f"a {step['op']} with srcs", step)
    after: Sequence[int] = step.get("after", (-1, 0))
    return Step(
        op,
        step.get("peer", -1),
        dst,
        srcs,
        step.get("received_first", False),
        step.get("put", False),
        (after[0], after[1]),
    )


def _read_chunk(chunk: Sequence[Any]) -> Chunk:
    return Chunk(Buffer[chunk[0].upper()], chunk[1], chunk[2])


def _extent(extent: Any) -> Hashable:
    return tuple(map(_extent, extent)) if isinstance(extent, list) else extent


def _graph(document: dict[str, Any], nranks: int) -> Graph:
    targets, sources = (
        tuple(tuple(end and (end[0], end[1]) for end in ends) for ends in document.get(key, ()))
        for key in ("targets", "sources")
    )
    edges = [
        {(rank, block, end) for rank, ends in enumerate(side) for block, end in enumerate(ends) if end}
        for side in (targets, sources)
    ]
    if (
        len(targets) != nranks
        or len(sources) != nranks
        or edges[0] != {(*end, (rank, block)) for rank, block, end in edges[1]}
    ):
        raise refused(
            "targets", f"blocks of {nranks} ranks that arrive where sources says", document.get("targets")
        )
    degree = max(1, *(len(ends) for side in (targets, sources) for ends in side))
    return Graph(targets, sources, degree, any(not (a or b) for a, b in zip(targets, sources)))
