"""The tuning table: what was fastest where it was measured. Floor 6; knows neither MPI nor who measures.

One JSON file holds **sections**, one per `Site` (hosts, MPI library, number of ranks) and class of element types. A section has, for
each collective, entries in order of size; of entries with one size the first that can serve a call counts.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcoll.catalogue import algorithms
from hpcoll.config import Entry, Table, check_algorithm
from hpcoll.dtypes import kind
from hpcoll.errors import ArgumentError

FORMAT = 1
BYTES = "bytes"  # class of data that is moved and not combined
_LAST_RESORT = "f4"
_MAX_INTEGER = 2**63 - 1
_SHOWN = 100  # characters of a value in a warning


class Site(NamedTuple):
    """Where a measurement holds.

    Attributes:
        mpi: Version text of the MPI library, in one line.
        nranks: Ranks of the communicator.
        hosts: Every host's name with the number of ranks on it, sorted.
    """

    mpi: str
    nranks: int
    hosts: tuple[tuple[str, int], ...]


class Section(NamedTuple):
    """What was measured at one site with one class of element types: per collective, entries in order of size."""

    site: Site
    type_class: str
    collectives: Mapping[str, tuple[Entry, ...]]


class Document(NamedTuple):
    """A file: its format, the version of hpcoll that wrote it, and its sections; none of another format's are read."""

    format: int
    version: str
    sections: tuple[Section, ...]


class Misfit(NamedTuple):
    """Why a table says nothing about a communicator: the field, what the file has there, and what this run has."""

    field: str
    found: str
    expected: str


def type_class(dtype: np.dtype | None) -> str:
    """Class of element types that are tuned together: kind and size, or ``bytes`` for data that is only moved (None).

    >>> type_class(np.dtype("float32")), type_class(np.dtype("uint64")), type_class(None)
    ('f4', 'i8', 'bytes')
    """
    return BYTES if dtype is None else f"{kind(dtype)}{dtype.itemsize}"


def lookup(table: Table, type_class: str, collective: str, nbytes: int) -> tuple[str, tuple[Entry, ...]]:
    """Entries of the measured size that is nearest to ``nbytes`` by ratio, best first, and the class they were measured with.

    Without entries for the class itself, those of another class with equally large elements count, else those of ``f4``; for
    moved data there is one class only. Nothing measured gives ``("", ())``.
    """
    alike = [] if type_class == BYTES else [*(letter + type_class[1:] for letter in "ficb"), _LAST_RESORT]
    for name in (type_class, *alike):
        entries = table.get(name, {}).get(collective, ())
        if entries:
            nearest = min((abs(_log(entry.nbytes) - _log(nbytes)), entry.nbytes) for entry in entries)[1]
            return name, tuple(entry for entry in entries if entry.nbytes == nearest)
    return "", ()


def _log(nbytes: int) -> float:
    return math.log2(max(1, nbytes))


def fit(document: Document, site: Site) -> tuple[Table, Misfit | None]:
    """What a file says about a site; when it says nothing, the first field in which no section is like this site."""
    if document.format != FORMAT:
        return {}, Misfit("format", str(document.format), str(FORMAT))
    if not document.sections:
        return {}, Misfit("sections", "nothing", f"{site.nranks} ranks")
    sections = list(document.sections)
    for field, expected in site._asdict().items():
        alike = [section for section in sections if getattr(section.site, field) == expected]
        if not alike:
            found = list(dict.fromkeys(_text(getattr(section.site, field)) for section in sections))
            return {}, Misfit(field, *_around_difference(" or ".join(found), _text(expected)))
        sections = alike
    return {section.type_class: section.collectives for section in sections}, None


def _text(value: Any) -> str:
    return ", ".join(f"{host} ({count})" for host, count in value) if isinstance(value, tuple) else str(value)


def _around_difference(found: str, expected: str) -> tuple[str, str]:
    """Two texts, cut to where they differ when they are long."""
    if max(len(found), len(expected)) <= _SHOWN:
        return found, expected
    same = next((i for i, (one, other) in enumerate(zip(found, expected)) if one != other), min(len(found), len(expected)))
    start = max(0, same - _SHOWN // 4)
    return found[start : start + _SHOWN], expected[start : start + _SHOWN]


def merge(old: Iterable[Section], new: Iterable[Section]) -> tuple[Section, ...]:
    """Old sections with new ones added; of one site and class, a collective that is measured again replaces its old entries."""
    merged: dict[tuple[Site, str], Section] = {}
    for section in (*old, *new):
        before = merged.get((section.site, section.type_class))
        collectives = {**(before.collectives if before else {}), **section.collectives}
        merged[section.site, section.type_class] = section._replace(collectives=collectives)
    return tuple(merged.values())


def write(path: Path, document: Document) -> None:
    """Replace a file as a whole: whoever reads it, and whatever stops this process, finds the old or the new one.

    Raises:
        OSError: nothing was changed.
    """
    path = path.resolve()  # a link stays one
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(as_text(document))
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


def as_text(document: Document) -> str:
    """JSON with one entry per line, so that people can read and compare files."""
    sections = [_section_text(section) for section in document.sections]
    head = f'{{\n "format": {document.format},\n "hpcoll": {json.dumps(document.version)},\n "sections": ['
    return head + ",".join(f"\n{text}" for text in sections) + "\n ]\n}\n"


def _section_text(section: Section) -> str:
    site = section.site._asdict() | {"hosts": dict(section.site.hosts), "type": section.type_class}
    columns = []
    for collective, entries in section.collectives.items():
        lines = ",\n".join(f"    {json.dumps(entry._asdict())}" for entry in entries)
        columns.append(f"   {json.dumps(collective)}: [\n{lines}\n   ]")
    return f'  {json.dumps(site)[:-1]}, "collectives": {{\n' + ",\n".join(columns) + "\n  }}"


def read(path: Path) -> Document:
    """A file's content, checked.

    Raises:
        ArgumentError: it cannot be read, or something in it is wrong; names the file with the line or the field.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"tuning file {path} cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise ArgumentError(f"tuning file {path}, line {error.lineno}: expected JSON, got {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"tuning file {path}: expected JSON, got {error}") from None
    try:
        version = _integer(content, "format", "")
        if version != FORMAT:
            return Document(version, "", ())
        sections = _member(content, "sections", list, "")
        parsed = tuple(_section(section, f"sections[{index}]") for index, section in enumerate(sections))
        return Document(version, _member(content, "hpcoll", str, ""), merge((), parsed))
    except ArgumentError as error:
        raise ArgumentError(f"tuning file {path}, {error}") from None


def _section(content: Any, where: str) -> Section:
    hosts = _member(content, "hosts", dict, where)
    counts = tuple(sorted((host, _integer(hosts, host, f"{where}.hosts")) for host in hosts))
    site = Site(_member(content, "mpi", str, where), _integer(content, "nranks", where), counts)
    name, columns = _member(content, "type", str, where), _member(content, "collectives", dict, where)
    found = {}
    for collective in columns:
        path = f"{where}.collectives.{collective}"
        _checked(algorithms, path, collective)
        lines = _member(columns, collective, list, f"{where}.collectives")
        found[collective] = tuple(_entry(line, collective, f"{path}[{index}]") for index, line in enumerate(lines))
        sizes = [entry.nbytes for entry in found[collective]]
        if sizes != sorted(sizes):
            raise ArgumentError(f"field {path}: expected ascending nbytes, got {sizes}")
    return Section(site, name, found)


def _entry(content: Any, collective: str, where: str) -> Entry:
    algorithm = _member(content, "algorithm", str, where)
    _checked(check_algorithm, f"{where}.algorithm", collective, algorithm)
    times = [_member(content, field, (int, float), where) for field in ("us", "native_us")]
    for field, us in zip(("us", "native_us"), times):
        if isinstance(us, bool) or not 0 < us < math.inf:
            raise ArgumentError(f"field {where}.{field}: expected microseconds above 0, got {us!r}")
    return Entry(_integer(content, "nbytes", where, 0), algorithm, _integer(content, "segment", where), *times)


def _checked(check: Any, where: str, *arguments: str) -> None:
    try:
        check(*arguments)
    except ArgumentError as error:
        raise ArgumentError(f"field {where}: {error}") from None


def _integer(content: Any, key: str, where: str, least: int = 1) -> int:
    number = _member(content, key, int, where)
    if isinstance(number, bool) or not least <= number <= _MAX_INTEGER:
        raise ArgumentError(f"field {_path(where, key)}: expected an integer from {least} to 2**63 - 1, got {number!r}")
    return int(number)


_NAMES = {int: "an integer", str: "text", list: "a list", dict: "an object", (int, float): "a number"}


def _member(content: Any, key: str, wanted: Any, where: str) -> Any:
    """A member of a JSON object, of one type."""
    if not isinstance(content, dict):
        raise ArgumentError(f"{f'field {where}' if where else 'the whole'}: expected an object, got {_short(content)}")
    if key not in content:
        raise ArgumentError(f"field {_path(where, key)}: expected {_NAMES[wanted]}, got none")
    if not isinstance(content[key], wanted):
        raise ArgumentError(f"field {_path(where, key)}: expected {_NAMES[wanted]}, got {_short(content[key])}")
    return content[key]


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _short(content: Any) -> str:
    text = json.dumps(content)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
