"""The tuning table and its file: the fastest algorithms where they were measured. Knows neither MPI nor who measures.

One JSON file has **sections**, one per `Site` (hosts, MPI library, number of ranks) and class of element types. A section has entries for
each collective, in order of size; of entries with one size the first counts that can serve a call. The file may also have the cost
model's constants, a line per site and level. They count wherever the MPI library is the same: the cost of a message does not depend on
the number of ranks.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcoll.analysis.cost import Network
from hpcoll.base.dtypes import BYTES
from hpcoll.base.errors import ArgumentError
from hpcoll.base.files import write_file
from hpcoll.base.json_fields import checked, integer, member, number, read_json, refused
from hpcoll.base.text import LINE, MAX_RANKS, printable, quoted
from hpcoll.schedules.catalogue import algorithms
from hpcoll.selection.config import Entry, Table, check_algorithm

FORMAT = 1
NODE, NETWORK = LEVELS = ("node", "network")  # fields of `hpcoll.analysis.cost.Levels` that are measured
_MEASURED = Network._fields[:-1]  # constants that are: all but how many streams a link carries
_LAST_RESORT = "f4"
_SHOWN = 100  # characters of a value in a warning
_TINY = 5e-324  # the least number above 0
_MOST_S, _MOST_US, _MOST_SPILL = 1e3, 1e9, 1e3  # of one message, or of a byte; of one call; times as much


class Site(NamedTuple):
    """The site of a measurement."""

    mpi: str  # version text of the MPI library, in one line
    nranks: int
    hosts: tuple[tuple[str, int], ...]  # name of every host with the number of ranks on it, sorted


class Section(NamedTuple):
    """The entries measured at a site with a class of element types: of each collective, in order of size."""

    site: Site
    type_class: str
    collectives: Mapping[str, tuple[Entry, ...]]


class Constants(NamedTuple):
    """The measured costs of messages at one level, ``node`` or ``network``, of a site."""

    site: Site
    level: str
    network: Network


class Document(NamedTuple):
    """A file: its format, the version of hpcoll that wrote it, its sections and constants (none where the format is another)."""

    format: int
    version: str
    sections: tuple[Section, ...]
    constants: tuple[Constants, ...] = ()


class Misfit(NamedTuple):
    """The field because of which a table has nothing for a communicator: its value in the file, and in this run."""

    field: str
    found: str
    expected: str


def lookup(table: Table, type_class: str, collective: str, nbytes: int) -> tuple[str, tuple[Entry, ...]]:
    """Return the class and entries of the measured size nearest to ``nbytes`` by ratio, best first.

    Without entries for the class itself, those of a class with equally large elements count, else those of ``f4``. Moved data has one
    class only. Without any entries, return ``("", ())``.
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
    """Return a file's table for a site; where none of its sections is for the site, also the first field in which all of them differ."""
    if document.format != FORMAT:
        return {}, Misfit("format", str(document.format), str(FORMAT))
    if not document.sections:
        return {}, None if document.constants else Misfit("sections", "nothing", f"{site.nranks} ranks")
    sections = list(document.sections)
    for field, expected in site._asdict().items():
        alike = [section for section in sections if getattr(section.site, field) == expected]
        if not alike:
            return {}, _misfit(field, [section.site for section in sections], site)
        sections = alike
    return {section.type_class: section.collectives for section in sections}, None


def fit_levels(document: Document, site: Site) -> tuple[dict[str, Constants], Misfit | None]:
    """Return the constants of each level measured at a site, else on one of its hosts, else anywhere; the latest of several.

    The MPI library must be the same, else there is a misfit. Costs of its messages between ranks of one host say nothing about several
    hosts, and the other way round.
    """
    alike = [constant for constant in document.constants if constant.site.mpi == site.mpi]
    if document.constants and not alike:
        return {}, _misfit("mpi", [constant.site for constant in document.constants], site)
    hosts = dict(site.hosts)

    def nearness(constants: Constants) -> tuple[bool, bool]:
        return constants.site == site, any(host in hosts for host, _ in constants.site.hosts)

    fitting = [
        constants
        for constants in alike
        if constants.level == NODE or (len(constants.site.hosts) > 1) == (len(hosts) > 1)
    ]
    return {constants.level: constants for constants in sorted(fitting, key=nearness)}, None


def _misfit(field: str, sites: Iterable[Site], site: Site) -> Misfit:
    texts = list(dict.fromkeys(_text(getattr(kept, field)) for kept in sites))
    return Misfit(field, *_around_difference(" or ".join(texts), _text(getattr(site, field))))


def _text(value: Any) -> str:
    return ", ".join(f"{host} ({count})" for host, count in value) if isinstance(value, tuple) else str(value)


def _around_difference(text: str, expected: str) -> tuple[str, str]:
    """Cut two long texts to where they differ."""
    if max(len(text), len(expected)) <= _SHOWN:
        return text, expected
    same = next(
        (i for i, (one, other) in enumerate(zip(text, expected)) if one != other),
        min(len(text), len(expected)),
    )
    start = max(0, same - _SHOWN // 4)
    return text[start : start + _SHOWN], expected[start : start + _SHOWN]


def merge(old: Iterable[Section], new: Iterable[Section]) -> tuple[Section, ...]:
    """Merge sections: of one site and class, a collective that is measured again replaces its old entries."""
    merged: dict[tuple[Site, str], Section] = {}
    for section in (*old, *new):
        before = merged.get((section.site, section.type_class))
        collectives = {**(before.collectives if before else {}), **section.collectives}
        merged[section.site, section.type_class] = section._replace(collectives=collectives)
    return tuple(merged.values())


def merge_constants(old: Iterable[Constants], new: Iterable[Constants]) -> tuple[Constants, ...]:
    """Merge constants, in order of measurement; of one site and level only the latest remain."""
    merged: dict[tuple[Site, str], Constants] = {}
    for constant in (*old, *new):
        merged.pop((constant.site, constant.level), None)
        merged[constant.site, constant.level] = constant
    return tuple(merged.values())


def write(path: Path, document: Document) -> None:
    """Replace a file, as `write_file`."""
    write_file(path, as_text(document))


def as_text(document: Document) -> str:
    """Return a document as JSON with an entry per line, so that people can read and compare files."""
    sections = [_section_text(section) for section in document.sections]
    head = f'{{\n "format": {document.format},\n "hpcoll": {json.dumps(document.version)},\n "sections": ['
    lines = [
        f"\n  {json.dumps(_site_members(constant.site) | {'level': constant.level} | _known(constant.network))}"
        for constant in document.constants
    ]
    levels = f',\n "levels": [{",".join(lines)}\n ]' if lines else ""
    return head + ",".join(f"\n{text}" for text in sections) + f"\n ]{levels}\n}}\n"


def _known(network: Network) -> dict[str, Any]:
    return {name: value for name, value in zip(_MEASURED, network) if value is not None}


def _site_members(site: Site) -> dict[str, Any]:
    return site._asdict() | {"hosts": dict(site.hosts)}


def _entry_members(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in entry._asdict().items() if name != "disturbed" or value}


def _section_text(section: Section) -> str:
    site = _site_members(section.site) | {"type": section.type_class}
    columns = []
    for collective, entries in section.collectives.items():
        lines = ",\n".join(f"    {json.dumps(_entry_members(entry))}" for entry in entries)
        columns.append(f"   {json.dumps(collective)}: [\n{lines}\n   ]")
    return f'  {json.dumps(site)[:-1]}, "collectives": {{\n' + ",\n".join(columns) + "\n  }}"


def read(path: Path) -> Document:
    """Read a file and check its content; an ArgumentError names the file with the line or the field."""
    subject = f"tuning file {printable(str(path), LINE)}"
    content = read_json(path, subject)
    try:
        version = integer(content, "format", "")
        if version != FORMAT:
            return Document(version, "", ())
        sections = member(content, "sections", list, "")
        parsed = tuple(_section(section, f"sections[{index}]") for index, section in enumerate(sections))
        # which older files do not have
        levels = member(content, "levels", list, "") if "levels" in content else []
        constants = [_constants(line, f"levels[{index}]") for index, line in enumerate(levels)]
        return Document(
            version, member(content, "hpcoll", str, ""), merge((), parsed), merge_constants((), constants)
        )
    except ArgumentError as error:
        raise ArgumentError(f"{subject}, {error}") from None


def _site(content: Any, where: str) -> Site:
    hosts = member(content, "hosts", dict, where)
    counts = tuple(sorted((host, integer(hosts, host, f"{where}.hosts", most=MAX_RANKS)) for host in hosts))
    return Site(member(content, "mpi", str, where), integer(content, "nranks", where, most=MAX_RANKS), counts)


def _section(content: Any, where: str) -> Section:
    site = _site(content, where)
    name, columns = member(content, "type", str, where), member(content, "collectives", dict, where)
    rows = {}
    for collective in columns:
        path = f"{where}.collectives.{collective}"
        checked(algorithms, path, collective)
        lines = member(columns, collective, list, f"{where}.collectives")
        rows[collective] = tuple(
            _entry(line, collective, f"{path}[{index}]") for index, line in enumerate(lines)
        )
        sizes = [entry.nbytes for entry in rows[collective]]
        if sizes != sorted(sizes):
            raise ArgumentError(f"field {path}: expected ascending nbytes, got {quoted(sizes)}")
    return Section(site, name, rows)


def _entry(content: Any, collective: str, where: str) -> Entry:
    algorithm = member(content, "algorithm", str, where)
    checked(check_algorithm, f"{where}.algorithm", collective, algorithm)
    expected = f"microseconds above 0, at most {_MOST_US:g}"
    us, native_us = (
        number(content, field, where, lambda us: 0 < us <= _MOST_US, expected)
        for field in ("us", "native_us")
    )
    disturbed = content.get("disturbed") is True
    return Entry(
        integer(content, "nbytes", where, 0),
        algorithm,
        integer(content, "segment", where),
        us,
        native_us,
        disturbed,
    )


def _constants(content: Any, where: str) -> Constants:
    site, level = _site(content, where), member(content, "level", str, where)
    if level not in LEVELS:
        raise refused(f"{where}.level", f"one of {', '.join(LEVELS)}", level)
    above, least = f"seconds above 0, at most {_MOST_S:g}", f"seconds, at least 0 and at most {_MOST_S:g}"

    def seconds(field: str, lowest: float, expected: str, most: float = _MOST_S) -> float:
        return number(content, field, where, lambda s: lowest <= s <= most, expected)

    alpha, beta = seconds("alpha", _TINY, above), seconds("beta", _TINY, above)
    gamma, handshake = seconds("gamma", 0.0, least), seconds("handshake", 0.0, least)
    overhead = seconds("overhead", 0.0, f"seconds from 0 to alpha, which is {alpha!r}", alpha)
    spill = seconds("spill", 1.0, f"a factor from 1 to {_MOST_SPILL:g}", _MOST_SPILL)
    eager, cache = integer(content, "eager", where, 0), integer(content, "cache", where)
    read_from = integer(content, "read_from", where) if "read_from" in content else None
    return Constants(
        site, level, Network(alpha, beta, gamma, overhead, eager, handshake, cache, spill, read_from)
    )
