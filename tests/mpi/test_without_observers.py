"""Diagnosis and telemetry hang on one line of the package each: with that taken out calls run all the same."""

import shutil
from pathlib import Path

import pytest
from launching import HEAD, STARTS_JOBS, command, finished, spoken

import hpcoll

pytestmark = STARTS_JOBS
CALLS = f"""
sys.path += [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1])!r}]
from forms import every, in_every_form
from reference import agreed
wrong = [one for count in (3, 20_000) for one in in_every_form(comm, every(comm, count, roots=[1]))]
x = np.ones(1)
for _ in range(5000):  # past the number at which ranks compare calls
    comm.Allreduce(MPI.IN_PLACE, x, MPI.MAX)
    comm.Ibarrier().Wait()
comm.stragglers()
from hpcoll.comm.requests.call_hooks import HOOKS
say(hpcoll.__file__, agreed(wrong), *(type(one.__self__).__name__ for one in HOOKS.begins.functions + HOOKS.made.functions))
"""


@pytest.mark.parametrize(
    ("file", "observer", "left"),
    [("context/attach.py", "Diagnosis", "Telemetry"), ("communicator.py", "Telemetry", "Diagnosis")],
)
def test_collectives_without_an_observer(tmp_path: Path, file: str, observer: str, left: str) -> None:
    """Blocking, in flight and persistent ones, of a copy of the package on two ranks."""
    package = tmp_path / "hpcoll"
    shutil.copytree(Path(hpcoll.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    installs = package / "comm" / file
    lines = installs.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(f"HOOKS.observe({observer}())")]
    assert len(kept) == len(lines) - 1
    installs.write_text("".join(kept))
    done = finished(command(2, CALLS, head=f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{HEAD}"), {})
    assert spoken(2, done.stdout) == {rank: [f"{package}/__init__.py [] {left}"] for rank in range(2)}, (
        done.stderr
    )
