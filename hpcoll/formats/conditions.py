"""The meaning of a file's program: a standard collective, or conditions that stand in a file of their own.

A file of conditions is a JSON object. It has a standard ``collective``, or ``inputs`` and ``outputs``, a list of chunks for each gpu:

* A chunk of ``inputs`` is the name of the data in it, a text or an integer.
* A chunk of ``outputs`` is the name of the data that it must hold: the contributions of all gpus whose inputs have it, each exactly once.
  ``{"item": NAME, "gpus": [0, 2]}`` wants the contributions of these gpus alone, and ``null`` nothing.

``in_place`` says whether calls are in place, ``root`` is the gpu of the root, and ``shifts`` is for conditions in place: in each gpu chunk
``i`` of the input is chunk ``i + shift`` of the output.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcoll.base.budget import CELLS, Budget
from hpcoll.base.errors import ArgumentError
from hpcoll.base.json_fields import MAX_INTEGER, integer, member, read_json, refused
from hpcoll.base.text import MAX_BUILT, quoted
from hpcoll.schedules.collectives import COLLECTIVES, Collective, meaning

MSCCL = {  # names in MSCCL, by ours
    "allreduce": "allreduce",
    "allgather": "allgather",
    "reduce_scatter": "reducescatter",
    "alltoall": "alltoall",
    "bcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
NAMES = {theirs: ours for ours, theirs in MSCCL.items()} | {ours: ours for ours in MSCCL}


class Conditions(NamedTuple):
    """The conditions beside a program's file: its collective, and how it is called; None and empty: the file says so itself."""

    collective: str = ""
    in_place: bool | None = None
    root: int | None = None
    inputs: tuple[tuple[Any, ...], ...] = ()
    outputs: tuple[tuple[tuple[Any, int], ...], ...] = ()  # item, and bit mask of gpus
    shifts: tuple[int, ...] = ()


NO_CONDITIONS = Conditions()


class Named(NamedTuple):
    """A collective by hpcoll's name, with its meaning, its root, and for each rank what a call in place shares and the chunks it has."""

    collective: str
    meaning: Collective
    root: int
    shifts: list[int]  # chunk i of INPUT is chunk i + shift of OUTPUT
    sizes: list[tuple[int, int]]  # chunks of INPUT and of OUTPUT


def read_conditions(path: Path) -> Conditions:
    """Return the conditions of a file; ArgumentError: it cannot be read, or is not such a file."""
    content = read_json(path, str(path))
    try:
        return _conditions(content)
    except ArgumentError as error:
        raise ArgumentError(f"{path}: {error}") from None


def _conditions(content: Any) -> Conditions:
    if not isinstance(content, dict):
        raise refused("", "an object", content)
    unknown = sorted(set(content) - {"collective", "in_place", "root", "inputs", "outputs", "shifts"})
    if unknown:
        raise ArgumentError(f"unknown field {quoted(unknown[0])}")
    in_place = content.get("in_place")
    if not isinstance(in_place, bool | None):
        raise refused("in_place", "true or false", in_place)
    root = integer(content, "root", "", 0) if "root" in content else None
    if "inputs" not in content and "outputs" not in content:
        collective = member(content, "collective", str, "") if "collective" in content else ""
        if collective and collective not in NAMES:
            raise refused("collective", " or ".join(NAMES), collective)
        return Conditions(collective, in_place, root)
    budget = Budget()
    inputs = tuple(
        tuple(_name(chunk, f"inputs[{gpu}]") for chunk in chunks)
        for gpu, chunks in _lists(content, "inputs", budget)
    )
    owners: dict[str | int, int] = {}  # name -> bit mask of the gpus that have it
    for gpu, names in enumerate(inputs):
        for name in names:
            owners[name] = owners.get(name, 0) | 1 << gpu
    outputs = tuple(
        tuple(
            _wanted(chunk, owners, len(inputs), f"outputs[{gpu}][{index}]")
            for index, chunk in enumerate(chunks)
        )
        for gpu, chunks in _lists(content, "outputs", budget)
    )
    if len(inputs) != len(outputs):
        raise ArgumentError(
            f"field outputs: expected lists for {len(inputs)} gpus as in inputs, got {len(outputs)}"
        )
    shifts = member(content, "shifts", list, "") if "shifts" in content else [0] * len(inputs)
    if len(shifts) != len(inputs) or not all(type(shift) is int for shift in shifts):
        raise refused("shifts", f"{len(inputs)} integers", shifts)
    for gpu, (has, wants, shift) in enumerate(zip(inputs, outputs, shifts)):
        if not min(0, len(wants) - len(has)) <= shift <= max(0, len(wants) - len(has)):
            raise refused(f"shifts[{gpu}]", "a shift by which one buffer lies in the other", shift)
    return Conditions("custom", in_place, root, inputs, outputs, tuple(shifts))


def _lists(content: Any, key: str, budget: Budget) -> list[tuple[int, list[Any]]]:
    lists = member(content, key, list, "")
    if len(lists) > MAX_BUILT:
        raise ArgumentError(f"field {key}: expected lists for at most {MAX_BUILT} gpus, got {len(lists)}")
    for gpu, chunks in enumerate(lists):
        if not isinstance(chunks, list):
            raise refused(f"{key}[{gpu}]", "a list of chunks", chunks)
        budget.spend(len(chunks), CELLS)
    return list(enumerate(lists))


def _name(chunk: Any, where: str) -> str | int:
    if type(chunk) is not str and (type(chunk) is not int or abs(chunk) > MAX_INTEGER):
        raise refused(where, "names of data, texts or integers of 64 bits", chunk)
    return chunk


def _wanted(chunk: Any, owners: Mapping[str | int, int], ngpus: int, where: str) -> tuple[Any, int]:
    if chunk is None:
        return None, 0
    if isinstance(chunk, dict):
        name, gpus = _name(chunk.get("item"), f"{where}.item"), member(chunk, "gpus", list, where)
        if not gpus or not all(type(gpu) is int and 0 <= gpu < ngpus for gpu in gpus):
            raise refused(f"{where}.gpus", f"gpus below {ngpus}", gpus)
        return name, sum(1 << gpu for gpu in set(gpus))
    name = _name(chunk, where)
    if name not in owners:
        raise refused(where, "the name of data that a gpu has", chunk)
    return name, owners[name]


def standard(path: str, conditions: Conditions, coll: str, nranks: int, nchunks: int, root: int) -> Named:
    """Return a file's collective; ArgumentError: it has none that hpcoll knows, or its chunks do not fit.

    ``coll`` is its name in the file, which the conditions override, and ``nchunks`` are the chunks of a whole message,
    and ``root`` is the root by the file.
    """
    coll, root = (conditions.collective or coll).lower(), root if conditions.root is None else conditions.root
    if conditions.inputs:
        if len(conditions.inputs) != nranks:
            raise ArgumentError(
                f"{path}: expected conditions for {nranks} gpus, got some for {len(conditions.inputs)}"
            )
        return _custom(conditions)
    if coll not in NAMES:
        hint = (
            "; conditions of your own can stand beside it"
            if coll
            else ", and conditions beside the file can say it"
        )
        raise ArgumentError(
            f"{path}: expected coll to be one of {', '.join(NAMES)}, got {quoted(coll) if coll else 'none'}{hint}"
        )
    name = NAMES[coll]
    if COLLECTIVES[name].blocks and nchunks % nranks:
        raise ArgumentError(
            f"{path}: expected nchunksperloop to be a multiple of {nranks} gpus for {coll}, got {nchunks}"
        )
    if root >= nranks:
        raise ArgumentError(f"{path}: expected a root below {nranks}, got {root}")
    parts = nchunks // nranks if COLLECTIVES[name].blocks else 1
    collective = meaning(name, None, parts)._replace(always_in_place=False)
    shifts = [
        {"allgather": rank, "gather": rank, "reduce_scatter": -rank, "scatter": -rank}.get(name, 0) * parts
        for rank in range(nranks)
    ]
    root = root if collective.rooted else 0
    counts = [
        (collective.ninputs(*who), collective.noutputs(*who))
        for rank in range(nranks)
        if (who := (rank, nranks, root, nchunks))
    ]
    return Named(name, _shifted(collective, shifts, counts), root, shifts, counts)


def _shifted(collective: Collective, shifts: Sequence[int], sizes: Sequence[tuple[int, int]]) -> Collective:
    """Return a collective with the aliases that shifts make."""

    def aliases(rank: int, nranks: int, root: int, nchunks: int) -> list[tuple[int, int]]:
        (nin, nout), shift = sizes[rank], shifts[rank]
        return [(i, i + shift) for i in range(max(0, -shift), min(nin, nout - shift))]

    return collective._replace(aliases=aliases)


def _custom(conditions: Conditions) -> Named:
    """Return the collective that conditions describe."""
    inputs, outputs = conditions.inputs, conditions.outputs
    sizes = [(len(has), len(wants)) for has, wants in zip(inputs, outputs)]
    collective = Collective(
        "custom",
        lambda rank, *_: len(inputs[rank]),
        lambda rank, *_: len(outputs[rank]),
        lambda rank, index: inputs[rank][index],
        lambda rank, index: outputs[rank][index][0],
        lambda rank, index, *_: outputs[rank][index][1],
        None,
        one_extent=True,
        reduces=any(mask & (mask - 1) for wants in outputs for _, mask in wants),
    )
    return Named(
        "custom",
        _shifted(collective, conditions.shifts, sizes),
        conditions.root or 0,
        list(conditions.shifts),
        sizes,
    )
