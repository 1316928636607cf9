"""Python processes that hpcoll starts import nothing from the working directory, where other users may have put modules."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from platforms import interpreter
from slowness import slowed

from hpcoll.base import children
from hpcoll.base.children import trusted

THEIRS = ("hpcoll", "mpi4py", "numpy", "numba", "llvmlite", "ml_dtypes", "sitecustomize", "usercustomize")
HPCOLL = str(Path(sys.executable).with_name("hpcoll"))
# What a stranger would write: note it, and say what the trial of the MPI library waits for.
PLANTED = (
    "import os, sys\nopen({ran!r}, 'a').write(__name__ + ' ')\nprint('arrives', flush=True)\nos._exit(0)\n"
)
TRIAL = """
import os, subprocess, sys  # before the path of this process itself is open to all
from hpcoll.runtime.gpu import cuda_aware
sys.path[:0] = ["", ".", os.getcwd()]
print(cuda_aware._tried(0))
"""
BARE = f"""
import os, subprocess, sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("children", {children.__file__!r})
children = module_from_spec(spec)
spec.loader.exec_module(children)
sys.path[:0] = ["", ".", os.getcwd()]
program = "import json, multiprocessing, sys; sys.exit(json.loads(sys.argv[1]))"
print(subprocess.run(children.python(program, "7")).returncode)
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module of every name; what runs is noted beside it."""
    folder, text = tmp_path / "shared", PLANTED.format(ran=str(tmp_path / "ran"))
    folder.mkdir()
    for name in (*sys.stdlib_module_names, *THEIRS):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    return folder


def ran(folder: Path) -> list[str]:
    noted = folder.with_name("ran")
    return noted.read_text().split() if noted.exists() else []


def said(command: Iterable[str | Path]) -> str:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMPI_COMM", "PMI", "PRTE_"))
    }
    done = subprocess.run(
        [*map(str, command)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=slowed(120),
        check=False,
    )
    return done.stdout + done.stderr


def test_nothing_was_planted_in_vain(planted: Path) -> None:
    assert said([sys.executable, "-c", "import json"]) == "arrives\n"
    assert ran(planted)


def test_proofs(planted: Path) -> None:
    assert "all correct" in said(
        [HPCOLL, "verify", "bcast/binomial", "--max-nranks", "3", "--extra", "4", "--jobs", "2"]
    )
    assert ran(planted) == []


def test_doctor(planted: Path) -> None:
    text = said([HPCOLL, "doctor"])
    assert "mpi4py 4" in text, text
    assert "asking it" not in text, text
    assert ran(planted) == []


def test_the_trial_with_gpu_memory(planted: Path) -> None:
    """A planted answer would be kept, too."""
    program = planted.with_name("program.py")
    program.write_text(TRIAL)
    assert said([sys.executable, program]) == "b'does not arrive'\n"
    assert ran(planted) == []


@pytest.mark.parametrize("release", ["3.10", "3.11", "3.12", "3.13"])
def test_every_python(release: str, planted: Path) -> None:
    """Python 3.13 imports before the first line of ``python -c`` runs; Python 3.10 cannot be told to leave the working directory out."""
    if not interpreter(release):
        pytest.skip(f"no Python {release}")
    program = planted.with_name("program.py")
    program.write_text(BARE)
    assert said([interpreter(release), program]) == "7\n"
    assert ran(planted) == []


def test_what_a_program_has_put_on_its_path_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = trusted()
    for one in ("/its/own", tmp_path / ".." / tmp_path.name, tmp_path, "relative", ""):
        monkeypatch.syspath_prepend(one)
    assert trusted() == ["/its/own", *before]


def test_hpcoll_in_the_working_directory_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(children.__file__).parents[2]
    monkeypatch.chdir(root)
    for one in ("/other", root):
        monkeypatch.syspath_prepend(one)
    assert (trusted()[0], trusted()[-1]) == ("/other", str(root))
