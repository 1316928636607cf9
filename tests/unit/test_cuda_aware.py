"""Whether the MPI library takes GPU memory is tried in another process, which may hang, and is remembered for later processes."""

import sys
import time
from pathlib import Path

import mpi4py
import pytest
from cuda_double import Double

from hpcoll.runtime.gpu import cuda_aware
from hpcoll.runtime.gpu.device import gpu_of

mpi4py.rc.initialize = False
from mpi4py import MPI  # noqa: E402


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path


class Trials:
    """Stands for the Python that tries; a shell script, which counts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
        self._started, script = folder / "started", folder / "python"
        script.write_text(f"#!/bin/sh\necho >>{self._started}\n{body}\n")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))

    def __len__(self) -> int:
        return len(self._started.read_text().splitlines())


def asked() -> bool:
    """The answer for a process that has not asked yet."""
    cuda_aware.takes_gpu_memory.cache_clear()
    return cuda_aware.takes_gpu_memory(gpu_of(0))


ANSWERS = {"takes": ("echo takes", True), "takes not": ("echo takes not", False), "fails": ("echo takes; exit 1", False)}


@pytest.mark.parametrize("what", ANSWERS)
def test_an_answer_is_kept(what: str, double: Double, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body, answer = ANSWERS[what]
    trials = Trials(folder, monkeypatch, body)
    assert [asked(), asked()] == [answer] * 2
    assert len(trials) == 1


def test_one_that_hangs_is_ended_with_what_it_started_and_not_tried_again(
    double: Double, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    assert cuda_aware._LIMIT_S <= 15
    monkeypatch.setattr(cuda_aware, "_LIMIT_S", 0.5)
    trials = Trials(folder, monkeypatch, f"sleep 50 &\necho $! >{folder}/pid\nsleep 50")
    start = time.monotonic()
    assert [asked(), asked()] == [False] * 2
    assert time.monotonic() - start < 10
    assert len(trials) == 1
    state = Path("/proc", (folder / "pid").read_text().strip(), "stat")
    for _ in range(100):  # whoever adopts it may be slow to notice its end
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("it runs on")


@pytest.mark.parametrize("what", ["settings", "driver", "library", "host"])
def test_other_circumstances_are_tried(what: str, double: Double, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(folder, monkeypatch, "echo takes")
    asked()
    if what == "settings":
        monkeypatch.setenv("UCX_TLS", "tcp")
    elif what == "driver":
        double.version = (99, 9)
    elif what == "host":
        monkeypatch.setattr("platform.node", lambda: "another")
    else:
        monkeypatch.setattr(MPI, "Get_library_version", lambda: "another")
    asked()
    assert len(trials) == 2
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "7")  # differs from rank to rank
    asked()
    assert len(trials) == 2
