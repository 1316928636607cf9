"""The sources of registered algorithms: files that ``HPCOLL_ALGORITHMS`` or a command names, and installed packages.

A file is read once by a process, when settings are first read. Packages are looked at when a name is asked for that nobody has
registered: looking takes some 70 ms. The model chooses among rows of files and programs only, which ranks compare.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.base.files import reading
from hpcoll.base.text import LINE, printable
from hpcoll.schedules.catalogue import CATALOGUE, register, registered
from hpcoll.schedules.ir import Writer
from hpcoll.schedules.row import Algorithm, exception_in_words

VARIABLE = "HPCOLL_ALGORITHMS"
GROUP = "hpcoll.algorithms"  # of entry points: modules that register when they are imported
_PACKAGE = "an installed package"
_MOST_NBYTES = 64 << 20  # of a file
_read: dict[Path, tuple[Algorithm, ...]] = {}  # rows of the files that were read
# by key, of rows that are not the program's: the file with a digest, or `_PACKAGE`
_origins: dict[str, str] = {}


def read_files(value: str) -> tuple[Algorithm, ...]:
    """Register the algorithms of files, with ``:`` between their names, and return all of their rows.

    A ``.py`` file is run. ArgumentError: a file cannot be read, or is wrong; nothing of it is registered then.
    """
    names = [name for name in value.split(os.pathsep) if name]
    if not names:
        raise ArgumentError(f"expected names of files with {os.pathsep!r} between them, got {value!r}")
    return tuple(row for name in names for row in read_file(Path(name)))


def read_file(path: Path) -> tuple[Algorithm, ...]:
    """Register the algorithms of a file, and return their rows; errors as of `read_files`."""
    where = path.absolute()
    if where not in _read:
        reader = READERS.get(path.suffix.lower())
        if reader is None:
            raise ArgumentError(f"{shown(path)}: expected a name that ends with {' or '.join(READERS)}")
        text = _content(path)
        with _registering(f"{path.name} with content {_digest(text)}") as rows:
            reader(where, text)
        if not rows:
            raise ArgumentError(f"{shown(path)}: registers no algorithm")
        _read[where] = tuple(rows)
    return _read[where]


@contextmanager
def _registering(origin: str) -> Iterator[list[Algorithm]]:
    """Note where the rows come from that are registered meanwhile, and yield the list that has them then; none stays after an error."""
    before = len(registered())
    rows: list[Algorithm] = []
    try:
        yield rows
    except BaseException:
        for row in registered()[before:]:
            del CATALOGUE[row.key]
        raise
    rows += registered()[before:]
    _origins.update((row.key, origin) for row in rows)


def shown(path: Path) -> str:
    """Return a file's name for a text."""
    return printable(str(path), LINE)


def _content(path: Path) -> bytes:
    try:
        with reading(path) as file:
            text = file.read(_MOST_NBYTES + 1)
    except OSError as error:
        raise ArgumentError(f"{shown(path)}: cannot be read: {error.strerror or error}") from None
    if len(text) > _MOST_NBYTES:
        raise ArgumentError(f"{shown(path)}: expected at most {_MOST_NBYTES >> 20} MiB")
    return text


def _digest(content: bytes) -> str:
    import hashlib  # which brings a library of ciphers

    return hashlib.blake2b(content, digest_size=6).hexdigest()


def _run(path: Path, text: bytes) -> None:
    """Run a Python file as a module of its own."""
    module = ModuleType(f"hpcoll_algorithms_{path.stem}")
    module.__file__ = str(path)
    try:
        exec(compile(text, str(path), "exec"), vars(module))  # noqa: S102 (what the user names is the user's program)
    except (Exception, SystemExit) as error:
        raise ArgumentError(f"{shown(path)}: {_in_words(error)}") from None


def _in_words(error: BaseException) -> str:
    return str(error) if isinstance(error, ArgumentError) else printable(exception_in_words(error), LINE)


def _program(path: Path, text: bytes) -> None:
    """Register the program of a file as a row; where it is wrong, as one that says so when it is first used."""
    from hpcoll.analysis.verify import Proof  # these take longer to import than most programs can make use of
    from hpcoll.formats.reading import read_program
    from hpcoll.formats.rows import row_of
    from hpcoll.registry.proof import program_proof

    program = read_program(path)
    try:
        row = row_of(program, program_proof(program, text))
    except ScheduleError as error:
        row = row_of(program, Proof(0, 0, False, False, 0))._replace(builder=_refusing(str(error)))
    register(row._replace(name=name_in_file(path)))


def name_in_file(path: Path) -> str:
    """Return the name of the algorithm of a file: the file's, in small letters, digits and underscores."""
    name = re.sub("[^a-z0-9]+", "_", path.stem.lower()).strip("_")
    return (name if name[:1].isalpha() else f"file_{name}")[:64]


def _refusing(text: str) -> Callable[[Writer], None]:
    def refuse(writer: Writer) -> None:
        raise ScheduleError(text)

    return refuse


PROGRAMS = (".xml", ".json")  # suffixes of `hpcoll.formats.reading.READERS`
# By suffix; they register what a file of that text has.
READERS: dict[str, Callable[[Path, bytes], None]] = {".py": _run, **dict.fromkeys(PROGRAMS, _program)}


@cache
def read_packages() -> None:
    """Register the algorithms of installed packages: import the modules that their entry points of `GROUP` name.

    ArgumentError: one of them cannot be imported, or registers a name that is taken.
    """
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        try:
            with _registering(_PACKAGE):
                point.load()
        except Exception as error:
            raise ArgumentError(
                f"entry point {point.name} of {GROUP} ({point.value}): {_in_words(error)}"
            ) from None


def read_all() -> None:
    """Register what the variable names and what installed packages have."""
    if value := os.environ.get(VARIABLE, "").strip():
        try:
            read_files(value)
        except ArgumentError as error:
            raise ArgumentError(f"environment variable {VARIABLE}: {error}") from None
    read_packages()


def of_program() -> tuple[Algorithm, ...]:
    """Return the rows that the program has registered."""
    return tuple(row for row in registered() if row.key not in _origins)


def compared() -> tuple[Algorithm, ...]:
    """Return the registered rows that ranks compare, among which the model chooses: all but those of installed packages."""
    return tuple(row for row in registered() if _origins.get(row.key) != _PACKAGE)


def content(row: Algorithm) -> str:
    """Return where a row comes from, and a digest of its file or of its facts."""
    return _origins.get(row.key) or f"facts {_digest(repr(tuple(row._replace(builder=None))).encode())}"
