"""What is installed; lock files hold what it asks for, with hashes of all."""

import ast
import configparser
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import debian
import platforms
import pytest
import run
import setuptools
from clients.table import CLIENTS, TOOLS
from lock import FILES, HEADER, LOCKS, entries, locked
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


def test_packages_are_those_of_hpcoll() -> None:
    """The link `kernels` at the top adds none."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    found = setuptools.find_packages(str(ROOT), include=config["options.packages.find"]["include"].split())
    assert sorted(found) == sorted(
        ".".join(init.parent.relative_to(ROOT).parts) for init in (ROOT / "hpcoll").rglob("__init__.py")
    )


@pytest.mark.parametrize(
    ("words", "status", "begin"),
    [("-m hpcoll show", 2, "hpcoll: "), ("-c import\thpcoll", 1, "ModuleNotFoundError: ")],
)
def test_a_checkout_without_what_hpcoll_needs_says_what_to_install(
    words: str, status: int, begin: str
) -> None:
    command = [sys.executable, "-S", *words.split(" ")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    told = f"ml_dtypes is missing; this installs hpcoll and what it needs: python -m pip install {ROOT}"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (status, begin + told)
    assert len(done.stderr.splitlines()) == 1 or "-c" in words


def test_what_the_short_run_leaves_out_is_there() -> None:
    for folder, names in run.LATER.items():
        assert [one for one in names.split() if not [*ROOT.glob(f"tests/{folder}/test_{one}.py")]] == []


def test_what_runs_on_one_rank_alone_is_in_a_run() -> None:
    """On one rank `.ci/run` takes smoke cases only: a file that starts jobs of its own there, and is none, would never run."""
    files = {path.name: path.read_text() for path in (ROOT / "tests/mpi").glob("test_*.py")}
    alone = {name: text for name, text in files.items() if "enough in the run on one rank" in text}
    assert alone
    assert [name for name, text in alone.items() if "pytest.mark.smoke" not in text] == []


def test_what_needs_three_ranks_is_in_a_run() -> None:
    """`.ci/run` takes `once` on two ranks, and `twice` on three: a test or file with such a mark that needs more would never run."""
    never = []
    for path in (ROOT / "tests/mpi").glob("test_*.py"):
        tree = ast.parse(path.read_text())
        assigned = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
        of_file = "".join(text for text in assigned if text.startswith("pytestmark"))
        for test in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
            marks = [ast.unparse(mark) for mark in test.decorator_list]
            for mark, more in (("pytest.mark.once", "[3-9]"), ("pytest.mark.twice", "[4-9]")):
                if (mark in marks or mark in of_file) and re.search(f"min_size={more}", "".join(marks)):
                    never.append(f"{path.name}::{test.name}")
    assert never == []


PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
# Files that go together.
INSTALLED = {
    name: (name, *lock.over)
    for name, lock in FILES.items()
    if name not in ("run", "clients") and not lock.apart
}
ENTRY = re.compile(r"[a-z\d-]+==[\w.]+( ; [^\\\n]+)?( \\\n    --hash=sha256:[\da-f]{64})+\n")


def wanted(files: tuple[str, ...]) -> Iterator[Requirement]:
    """Return what setup.cfg and the table of files ask for."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = [config["options.extras_require"][one] for name in files for one in FILES[name].extras]
    texts = [
        config["options"]["install_requires"],
        *extras,
        *(one for name in files for one in FILES[name].packages),
    ]
    return (Requirement(line) for text in texts for line in text.splitlines() if line)


def releases(files: tuple[str, ...], python: str, machine: str) -> dict[str, set[str]]:
    """The releases of each package that pip would install."""
    where = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_machine": machine,
    }
    found: dict[str, set[str]] = {}
    for entry in (Requirement(entry.split(" \\")[0]) for name in files for entry in entries(name)):
        if entry.marker is None or entry.marker.evaluate(where):
            found.setdefault(entry.name, set()).add(str(entry.specifier).removeprefix("=="))
    return found


def test_files_are_releases_with_hashes_and_nothing_else() -> None:
    """No line says where an index is, and pip refuses a file that has another hash than the one here."""
    assert sorted(LOCKS.iterdir()) == sorted(LOCKS / f"{name}.txt" for name in FILES)
    for name in FILES:
        assert (LOCKS / f"{name}.txt").read_text() == HEADER + "".join(entries(name))
        assert [entry for entry in entries(name) if not ENTRY.fullmatch(entry)] == [], name


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("files", INSTALLED.values(), ids=INSTALLED)
def test_they_hold_what_is_asked_for(files: tuple[str, ...], python: str, machine: str) -> None:
    """One release of each package, within the bounds of setup.cfg; where this fails, tests/run.sh lock mends it."""
    found = releases(files, python, machine)
    assert {name: versions for name, versions in found.items() if len(versions) > 1} == {}
    bad = [str(one) for one in wanted(files) if one.name.replace("_", "-") not in found]
    bad += [
        str(one)
        for one in wanted(files)
        for version in found.get(one.name.replace("_", "-"), ())
        if version not in one.specifier
    ]
    assert bad == []


@pytest.mark.filterwarnings("ignore:Setuptools is replacing distutils")  # where pip is imported
@pytest.mark.parametrize("python", PYTHONS)
def test_a_root_gets_the_releases_of_its_own_interpreter(python: str) -> None:
    """Whatever the interpreter is that installs them; without the markers, which pip would judge by that one."""
    kept = debian.Root("testing", ()).fitting(python, locked(platforms.NEEDED, platforms.LOCKED))
    found = dict(line.split(" \\")[0].split("==") for line in kept.splitlines() if "==" in line)
    wanted = releases(platforms.LOCKED[:2], python, debian.Root("testing", ()).machine)
    assert found == {
        name: "".join(wanted[name]) for name in ("numpy", "numba", "llvmlite", "ml-dtypes", "mpi4py")
    }


def test_a_root_that_cannot_be_made_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "PATH", "/nowhere")
    other = next(one for one in debian.MACHINES if one != debian.HERE)
    assert debian.lacks(debian.Root("stable", ())) == "install Debian's debootstrap and util-linux"
    assert debian.lacks(debian.Root("stable", (), other)).endswith(" and qemu-user-static")


def test_nothing_has_an_upper_bound() -> None:
    """Whoever needs a newer Numba can install hpcoll: private parts that it uses are tried, and left alone where they differ."""
    assert [str(one) for one in wanted(()) if not re.fullmatch(r">=[\d.]+", str(one.specifier))] == []


def test_the_oldest_releases_that_are_let_in_are_tried() -> None:
    """`tests/run.sh platforms` has an environment of them: where a bound moves, so must the release."""
    lower = {one.name: re.findall(r">=([\d.]+)", str(one.specifier))[0] for one in wanted(())}
    oldest = dict(one.split("==") for one in platforms.SOFTWARE["oldest"].packages)
    assert {name: f"{bound}.0" for name, bound in lower.items()} == {
        name: oldest[name] for name in oldest if name != "llvmlite"
    }


def test_what_clients_need_is_locked() -> None:
    needed = {one for client in CLIENTS.values() for one in (client.package, *client.installs) if one}
    for one in map(Requirement, (*needed, *TOOLS)):
        found = [
            Requirement(line.split(" \\")[0]) for line in locked([str(one)]).splitlines() if "==" in line
        ]
        assert found, one
        assert all(str(each.specifier).removeprefix("==") in one.specifier for each in found), one
