"""Diagnosis hangs on one line of the package: with that taken out calls run all the same."""

import shutil
from pathlib import Path

from launching import HEAD, STARTS_JOBS, command, finished, spoken

import hpcoll

pytestmark = STARTS_JOBS
LINE = "install(Diagnosis())"
CALLS = f"""
sys.path += [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1])!r}]
from forms import every, in_every_form
from reference import agreed
from hpcoll.comm.requests.call_hooks import hooks
wrong = [one for count in (3, 20_000) for one in in_every_form(comm, every(comm, count, roots=[1]))]
say(hpcoll.__file__, type(hooks()).__name__, agreed(wrong))
"""


def test_collectives_without_diagnosis(tmp_path: Path) -> None:
    """Blocking, in flight and persistent ones, of a copy of the package on two ranks."""
    package = tmp_path / "hpcoll"
    shutil.copytree(Path(hpcoll.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    attach = package / "comm" / "context" / "attach.py"
    lines = attach.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(LINE)]
    assert len(kept) == len(lines) - 1
    attach.write_text("".join(kept))
    done = finished(command(2, CALLS, head=f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{HEAD}"), {})
    assert spoken(2, done.stdout) == {rank: [f"{package}/__init__.py CallHooks []"] for rank in range(2)}, (
        done.stderr
    )
