"""Breaks the runtime on purpose, one line at a time in a copy of the tree, and sees whether the short run notices.

  tests/mutations.py            all of `mutants.py`: a table, and status 1 when more than one is missed
  tests/mutations.py 3 7        those with these numbers
  tests/mutations.py --check    only whether every text, and every file that is tried first, is where the table says

First come the tests that should notice, then all of the short run. A run that hangs counts as one that notices only when it says in which
case. A case counts only when it passes in the copy that is not broken. The environments are those of the tree: each process of a run checks
that it imports the copy. What was compiled of the unbroken parts is taken along.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import environments
import outcomes
import run
from environments import ROOT
from mutants import MUTANTS, Mutant
from outcomes import FAILED, TOKENS
from slowness import slowed

PART_S = 900  # most seconds of a part of the run
CASE_S = 45  # of a case: hangs end sooner than elsewhere, first calls compile
PARTS = {(one.library, one.nranks): one for one in run.MPI[run.SHORT]}
ALLOWED = 1  # that may be missed
FOLDERS = ("hpcoll", "jobs", "examples", "tests", "benchmarks", "requirements", "docs", ".ci")
COPIED = (*FOLDERS, "setup.cfg", "pyproject.toml", "README.md", "CHANGES.md", "SECURITY.md")
UNIT = (run.LIBRARIES[0], 0)
CACHE = "cache"  # what was compiled, in the copy


class Part(NamedTuple):
    """A part of the short run: without MPI, ``nranks`` is 0."""

    library: str
    nranks: int
    files: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.library} {self.nranks}" if self.nranks else "unit"


def parts(mutant: Mutant) -> list[Part]:
    """Return what is tried, in order."""
    words = mutant.first.split()
    first = Part(*UNIT, tuple(f"tests/unit/{name}" for name in words[1:]))
    if words[0] != "unit":
        first = Part(words[0], int(words[1]), tuple(f"tests/mpi/{name}" for name in words[2:]))
    return [first, *(Part(*key, short_files(*key)) for key in PARTS), Part(*UNIT, short_files(*UNIT))]


@cache
def short_files(library: str, nranks: int) -> tuple[str, ...]:
    """Return the files of a part of the short run; none where it has no such part."""
    if not nranks:
        return run.files("unit", run.SHORT)
    one = PARTS.get((library, nranks))
    return run.files("mpi", run.SHORT, one.names or ("*",), one.markers) if one else ()


def copy_tree(copy: Path) -> None:
    """The tree as it is now; hpcoll lies in it as it is installed."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, copy / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        elif (ROOT / name).exists():
            shutil.copy2(ROOT / name, copy / name)
    words = [
        run.python(run.LIBRARIES[0]),
        "-c",
        "from hpcoll.base import disk_cache; print(disk_cache.folder())",
    ]
    kept = Path(subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip())
    if kept.is_dir():  # names of files hold a digest of all that they were made from
        shutil.copytree(kept, copy / CACHE / "hpcoll")


def pytest_configure() -> None:
    """As a plugin of pytest: what is imported is the copy, in which every process of a run starts."""
    import hpcoll

    if Path(hpcoll.__file__).parent.parent != Path.cwd():
        raise SystemExit(f"{hpcoll.__file__} is not in the copy {Path.cwd()}")


def attempt(copy: Path, part: Part, without: Iterable[str] = ()) -> tuple[str, str]:
    """Run a part, without some cases; the first case that failed and how, or empty texts."""
    folder = copy / "outcomes"
    folder.mkdir(exist_ok=True)
    outcomes.clear(folder)
    environment = os.environ | {
        TOKENS: str(folder),
        "PYTHONPATH": f"{copy}{os.pathsep}{copy / 'tests'}",
        "NUMBA_CACHE_DIR": str(copy / CACHE),
        "MPI_LIMIT_S": str(PART_S - 20),
    }
    how = (
        ["tests/mpi_run.py", str(part.nranks)]
        if part.nranks
        else ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
    )
    limited = ["timeout", "-k", "5", str(slowed(PART_S)), run.python(part.library)]
    command = [*limited, *how, *part.files, "-p", "mutations", f"--timeout={CASE_S}"]
    command += [
        "-m",
        run.SHORT + (PARTS[part.library, part.nranks].markers if part.nranks else ""),
        "-x",
        *(f"--deselect={name}" for name in without),
    ]
    if part.files == short_files(*UNIT):
        command += ["-n", str(os.cpu_count() or 1)]
    with (copy / "log").open("wb") as log:
        subprocess.run(
            command,
            cwd=copy,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    cases = {name: case for name, case in outcomes.merge(folder, max(1, part.nranks)).items() if "::" in name}
    if not cases:
        print(
            f"      no case ran: {part.title}: {' '.join(part.files)}\n{(copy / 'log').read_text(errors='replace')[-2000:]}",
            flush=True,
        )
    return next(((name, case.note) for name, case in cases.items() if case.outcome == FAILED), ("", ""))


def noticed(copy: Path, mutant: Mutant) -> str:
    """Return what notices a break, or an empty text."""
    file = copy / mutant.file
    text = file.read_text()
    for part in parts(mutant):
        without: list[str] = []
        while True:
            file.write_text(text.replace(mutant.old, mutant.new))
            name, how = attempt(copy, part, without)
            file.write_text(text)
            if not name:
                break
            if passes(copy, part._replace(files=(name,))):
                return f"{part.title}: {name.removeprefix('tests/')}: {how}"
            without.append(name)
    return ""


@cache
def passes(copy: Path, part: Part) -> bool:
    """Say whether the copy that is not broken passes a case."""
    name, how = attempt(copy, part)
    if name:
        print(f"      not counted, for it fails without a break too: {part.title}: {name}: {how}", flush=True)
    return not name


def misplaced() -> list[str]:
    """Rows whose text does not occur once, or whose files that are tried first are not in the short run."""
    found = []
    for mutant in MUTANTS:
        file = ROOT / mutant.file
        n = file.read_text().count(mutant.old) if file.exists() else 0
        found += [] if n == 1 else [f"{mutant.name}: its text occurs {n} times in {mutant.file}"]
        first = parts(mutant)[0]
        left = set(first.files) - set(short_files(first.library, first.nranks))
        found += [f"{mutant.name}: not in the short run on {first.title}: {name}" for name in sorted(left)]
    return found


def main(words: list[str]) -> int:
    """Check the table, then try each row."""
    problems = misplaced()
    print("\n".join(problems or [f"{len(MUTANTS)} breaks, each where the table says"]), flush=True)
    if problems or words == ["--check"]:
        return 1 if problems else 0
    problem = environments.make(run.LIBRARIES)
    if problem:
        print(problem)
        return 1
    chosen = [(i, MUTANTS[i]) for i in (map(int, words) if words else range(len(MUTANTS)))]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="hpcoll-mutations-") as folder:
        copy = Path(folder)
        copy_tree(copy)
        for i, mutant in chosen:
            start = time.monotonic()
            found = noticed(copy, mutant)
            missed += not found
            verdict = f"{'noticed' if found else 'MISSED '} {time.monotonic() - start:5.0f} s"
            print(f"{i:3d}  {verdict}  {mutant.name}\n      {found}", flush=True)
    print(f"\n{len(chosen) - missed} of {len(chosen)} noticed")
    return 1 if missed > ALLOWED else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
