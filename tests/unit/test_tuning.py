"""The tuning table: what is read, written, refused and looked up."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcoll.analysis.cost import Network
from hpcoll.base.dtypes import type_class
from hpcoll.base.errors import ArgumentError
from hpcoll.selection.config import NATIVE, Entry
from hpcoll.selection.tuning import (
    FORMAT,
    Constants,
    Document,
    Misfit,
    Section,
    Site,
    fit,
    lookup,
    merge,
    read,
    write,
)

HERE = Site("Some MPI 1.0", 8, (("a", 4), ("b", 4)))
SIZES = (
    Entry(8, "direct", 8, 2.5, 4.0),
    Entry(4096, "tree", 4096, 12.34, 40.14),
    Entry(1 << 20, "ring", 65536, 1500.0, 2000.0),
)
MOVED = (Entry(8, NATIVE, 8, 1.5, 1.0), Entry(1 << 20, "chain", 1 << 18, 90.0, 95.0))
NODE = Constants(HERE, "node", Network(2.5e-7, 8e-11, 2e-11, 0.0, 1 << 62, 0.0, 1 << 20, 1.5, 1 << 18))
NETWORK = Constants(HERE, "network", Network(1.2e-5, 8e-9, 0.0, 1.2e-5, 0, 3e-5, 1 << 62, 1.0))
DOCUMENT = Document(
    FORMAT,
    "1.2.3",
    (Section(HERE, "f4", {"allreduce": SIZES}), Section(HERE, "bytes", {"bcast": MOVED})),
    (NODE, NETWORK),
)
TABLE = fit(DOCUMENT, HERE)[0]


# --- files


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write(path, DOCUMENT)
    assert read(path) == DOCUMENT
    assert os.listdir(tmp_path) == ["table.json"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert (
        '    {"nbytes": 8, "algorithm": "direct", "segment": 8, "us": 2.5, "native_us": 4.0},\n'
        in path.read_text()
    )
    assert (
        '\n  {"mpi": "Some MPI 1.0", "nranks": 8, "hosts": {"a": 4, "b": 4}, "level": "node", "alpha": 2.5e-07, '
        in path.read_text()
    )
    for part in (Document(FORMAT, "", ()), DOCUMENT._replace(sections=()), DOCUMENT._replace(constants=())):
        write(path, part)
        assert read(path) == part


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_same_site_and_class_again_replaces_collective_by_collective() -> None:
    new = Section(HERE, "f4", {"reduce": MOVED[:1], "allreduce": SIZES[:1]})
    elsewhere = Section(HERE._replace(nranks=4), "f4", {"allreduce": SIZES[1:]})
    merged = merge(DOCUMENT.sections, [new, elsewhere])
    assert [(section.site.nranks, section.type_class) for section in merged] == [
        (8, "f4"),
        (8, "bytes"),
        (4, "f4"),
    ]
    assert merged[0].collectives == {"allreduce": SIZES[:1], "reduce": MOVED[:1]}
    assert merged[1:] == (DOCUMENT.sections[1], elsewhere)
    assert merge(DOCUMENT.sections, ()) == DOCUMENT.sections


def at(content: Any, *path: Any) -> Any:
    for key in path:
        content = content[key]
    return content


ENTRY = ("sections", 0, "collectives", "allreduce", 1)
NAME = r"sections\[0\].collectives.allreduce\[1\]"
CHANGES: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "no object": ((), [], r"the whole: expected an object, got \[\]"),
    "no format": (("format",), None, "field format: expected an integer, got none"),
    "format": (("format",), "1", 'field format: expected an integer, got "1"'),
    "sections": (("sections",), {}, "field sections: expected a list, got {}"),
    "version": (("hpcoll",), 1, "field hpcoll: expected text, got 1"),
    "nranks": (
        ("sections", 0, "nranks"),
        0,
        r"field sections\[0\].nranks: expected an integer from 1 .*, got 0",
    ),
    "hosts": (("sections", 0, "hosts"), ["a"], r"field sections\[0\].hosts: expected an object"),
    "collective": (
        ("sections", 1, "collectives", "allsum"),
        [],
        r"field sections\[1\].collectives.allsum: collective must be one of",
    ),
    "entry": (ENTRY, [8, "ring"], f"field {NAME}: expected an object, got"),
    "algorithm": (
        (*ENTRY, "algorithm"),
        "rings",
        f"field {NAME}.algorithm: allreduce algorithm must be one of ring, .*, got 'rings'",
    ),
    "nbytes": ((*ENTRY, "nbytes"), -1, f"field {NAME}.nbytes: expected an integer from 0 .*, got -1"),
    "order": (
        (*ENTRY, "nbytes"),
        7,
        r"field sections\[0\].collectives.allreduce: expected ascending nbytes, got \[8, 7, 1048576\]",
    ),
    "segment": ((*ENTRY, "segment"), 0, f"field {NAME}.segment: expected an integer from 1"),
    "a collective of control characters": (
        ("sections", 1, "collectives", "\x1b[31m"),
        [],
        r"field sections\[1\].collectives.\?\[31m: collective must be one of",
    ),
    "us": ((*ENTRY, "us"), "fast", f'field {NAME}.us: expected a number, got "fast"'),
    "negative": ((*ENTRY, "us"), -2.0, f"field {NAME}.us: expected microseconds above 0, .*, got -2.0"),
    "levels": (("levels",), {}, "field levels: expected a list, got {}"),
    "alpha": (("levels", 0, "alpha"), 0, r"field levels\[0\].alpha: expected seconds above 0, .*, got 0"),
    "beta": (
        ("levels", 1, "beta"),
        float("inf"),
        r"field levels\[1\].beta: expected seconds above 0, .*, got Infinity",
    ),
    "huge beta": (
        ("levels", 1, "beta"),
        10**400,
        r"field levels\[1\].beta: expected seconds above 0, .*, got 10{98}…$",
    ),
    "gamma": (
        ("levels", 1, "gamma"),
        -1e-12,
        r"field levels\[1\].gamma: expected seconds, at least 0 .*, got -1e-12",
    ),
    "overhead": (
        ("levels", 1, "overhead"),
        2e-5,
        r"field levels\[1\].overhead: expected seconds from 0 to alpha, .* 1.2e-05, got 2e-05",
    ),
    "eager": (("levels", 0, "eager"), -1, r"field levels\[0\].eager: expected an integer from 0 .*, got -1"),
    "cache": (("levels", 0, "cache"), 1 << 63, r"field levels\[0\].cache: expected an integer from 1"),
    "spill": (
        ("levels", 0, "spill"),
        0.5,
        r"field levels\[0\].spill: expected a factor from 1 to 1000, got 0.5",
    ),
    "long": (("hpcoll",), [1] * 100, "field hpcoll: expected text, got .{99}…$"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_wrong_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write(path, DOCUMENT)
    where, value, text = CHANGES[name]
    content = json.loads(path.read_text())
    if not where:
        content = value
    elif value is None:
        del at(content, *where[:-1])[where[-1]]
    else:
        at(content, *where[:-1])[where[-1]] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ArgumentError, match=f"^tuning file {re.escape(str(path))}, {text}"):
        read(path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{\n "format": 1,\n "sections": [}\n', ", line 3: expected JSON, got Expecting value"),
        (b"", ", line 1: expected JSON"),
        (b'{"format": 1, "hpcoll": "\xff"}', ": expected JSON, got .*utf-8"),
        (b"[" * 1_000_000, ": expected JSON, got .*recursion"),
    ],
)
def test_what_is_not_json_is_refused_with_the_line(content: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match=f"^tuning file {re.escape(str(path))}{text}"):
        read(path)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"^cannot read tuning file .*missing: No such file or directory$"
    ):
        read(tmp_path / "missing")
    with pytest.raises(ArgumentError, match=r"^cannot read tuning file .*: Is a directory$"):
        read(tmp_path)


# --- fit

OTHER = Section(Site("Other MPI", 8, (("a", 8),)), "f4", {})
LONG = "MPI 5.0 " + "built by somebody " * 20


@pytest.mark.parametrize(
    ("sections", "site", "misfit"),
    [
        (DOCUMENT.sections, HERE._replace(mpi="MPI 2"), Misfit("mpi", "Some MPI 1.0", "MPI 2")),
        (DOCUMENT.sections, HERE._replace(nranks=4, hosts=(("a", 4),)), Misfit("nranks", "8", "4")),
        (DOCUMENT.sections, HERE._replace(hosts=(("a", 8),)), Misfit("hosts", "a (4), b (4)", "a (8)")),
        (
            (*DOCUMENT.sections, OTHER),
            HERE._replace(mpi="MPI 2"),
            Misfit("mpi", "Some MPI 1.0 or Other MPI", "MPI 2"),
        ),
        (
            (*DOCUMENT.sections, OTHER),
            HERE._replace(hosts=(("c", 8),)),
            Misfit("hosts", "a (4), b (4)", "c (8)"),
        ),
        ((), HERE, Misfit("sections", "nothing", "8 ranks")),
    ],
)
def test_a_table_of_elsewhere_is_refused_by_the_first_field_that_differs(
    sections: tuple[Section, ...], site: Site, misfit: Misfit
) -> None:
    assert fit(Document(FORMAT, "", sections), site) == ({}, misfit)


def test_long_values_are_cut_to_where_they_differ() -> None:
    other = OTHER._replace(site=HERE._replace(mpi=f"{LONG} with gcc"))
    table, misfit = fit(Document(FORMAT, "", (other,)), HERE._replace(mpi=f"{LONG} icc"))
    assert table == {}
    assert misfit is not None
    assert misfit.found.endswith(" with gcc")
    assert misfit.expected.endswith(" icc")
    assert max(map(len, misfit)) < 50


def test_another_format_is_refused_and_not_looked_into(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text('{"format": 2, "tables": "elsewhere"}')
    assert fit(read(path), HERE) == ({}, Misfit("format", "2", "1"))


def test_sections_that_fit_are_taken_and_others_left() -> None:
    assert fit(Document(FORMAT, "", (*DOCUMENT.sections, OTHER)), HERE) == (
        {"f4": {"allreduce": SIZES}, "bytes": {"bcast": MOVED}},
        None,
    )


# --- lookup


@pytest.mark.parametrize(
    ("nbytes", "measured"),
    [
        (0, 8),
        (1, 8),
        (8, 8),
        (181, 8),
        (182, 4096),
        (4096, 4096),
        (65535, 4096),
        (65537, 1 << 20),
        (1 << 20, 1 << 20),
        (1 << 50, 1 << 20),
    ],
)
def test_between_sizes_the_nearest_by_ratio_counts(nbytes: int, measured: int) -> None:
    name, found = lookup(TABLE, "f4", "allreduce", nbytes)
    assert (name, [entry.nbytes for entry in found]) == ("f4", [measured])


def test_half_way_the_smaller_size_counts() -> None:
    assert lookup(TABLE, "f4", "allreduce", 65536)[1][0].nbytes == 4096


@pytest.mark.parametrize(
    ("classes", "wanted", "used"),
    [
        (("f4", "f8", "i4", "i8"), "i8", "i8"),
        (("f4", "f8", "c8"), "i8", "f8"),
        (("f4", "c8", "i8"), "f8", "i8"),
        (("f4", "i4"), "i8", "f4"),
        (("f4", "i4"), "b1", "f4"),
        (("i4", "bytes"), "i2", ""),
        (("f4",), "bytes", ""),
        ((), "f4", ""),
    ],
)
def test_a_class_that_was_not_measured_borrows(classes: tuple[str, ...], wanted: str, used: str) -> None:
    table = {name: {"allreduce": SIZES, "scan": ()} for name in classes}
    assert lookup(table, wanted, "allreduce", 8) == ((used, SIZES[:1]) if used else ("", ()))
    assert lookup(table, wanted, "scan", 8) == lookup(table, wanted, "reduce", 8) == ("", ())


def test_classes_of_element_types() -> None:
    names = {"int8": "i1", "uint16": "i2", "bool": "b1", "float64": "f8", "complex64": "c8"}
    assert {name: type_class(np.dtype(name)) for name in names} == names
