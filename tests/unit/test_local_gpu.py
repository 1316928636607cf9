"""The GPU that a process is told to use under each launcher, and probes of whether the MPI library takes GPU memory."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cuda_double import Double, installed
from slowness import slowed

from hpcoll.base.errors import ArgumentError, DeviceError
from hpcoll.base.launchers import LAUNCHERS
from hpcoll.runtime.gpu import cuda_aware
from hpcoll.runtime.gpu.device import gpu_of
from hpcoll.runtime.gpu.local_gpu import local_device, local_rank

OPENMPI = {"OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
MPICH = {"MPI_LOCALRANKID": "2", "PMI_SIZE": "4"}
SLURM = {"SLURM_LOCALID": "2", "SLURM_STEP_NUM_TASKS": "4"}
SHELL = {"SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "1"}  # of a shell that srun started


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher, no MPI."""
    for name in (name for one in LAUNCHERS for name in (one.local_rank, one.nranks) if name):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)  # type: ignore[arg-type]


@pytest.fixture
def gpus() -> Iterator[Any]:
    with ExitStack() as stack:
        yield lambda n: stack.enter_context(installed(n))


class Comm:
    """Four ranks, of which this one is the second on its node."""

    size = 4

    def Split_type(self, kind: str) -> Any:
        assert kind == "shared"
        self.node = SimpleNamespace(rank=1, Free=lambda: freed.append(True))
        freed: list[bool] = []
        self.freed = freed
        return self.node


def mpi(monkeypatch: pytest.MonkeyPatch, *, running: bool = True) -> Comm:
    comm = Comm()
    module = SimpleNamespace(
        COMM_WORLD=comm,
        COMM_TYPE_SHARED="shared",
        Is_initialized=lambda: True,
        Is_finalized=lambda: not running,
    )
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)  # type: ignore[arg-type]
    return comm


@pytest.mark.parametrize(
    "environ", [OPENMPI, MPICH, SLURM, *({one.local_rank: "2"} for one in LAUNCHERS if one.local_rank)]
)
@pytest.mark.parametrize("running", [False, True])
def test_launchers(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], running: bool) -> None:
    if running:
        mpi(monkeypatch)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert local_rank() == 2


@pytest.mark.parametrize(
    ("environ", "running", "wanted"),
    [
        (SHELL | OPENMPI, False, 2),  # mpirun in a shell under srun
        (SHELL | OPENMPI, True, 2),
        (SHELL | MPICH, False, 2),
        (SHELL | MPICH, True, 2),
        # srun in a shell under mpirun
        (SLURM | OPENMPI | {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, True, 2),
        (SHELL, True, 1),  # nothing but a leftover: MPI is asked
    ],
)
def test_one_launcher_in_another(
    environ: dict[str, str], running: bool, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm = mpi(monkeypatch) if running else None
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert local_rank() == wanted
    assert wanted == 2 or (comm and comm.freed == [True])


def test_communicator_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OPENMPI.items():
        monkeypatch.setenv(name, value)
    assert local_rank(mpi(monkeypatch)) == 1


@pytest.mark.parametrize("running", [None, False])
def test_nobody_knows(monkeypatch: pytest.MonkeyPatch, running: bool | None) -> None:
    if running is not None:
        mpi(monkeypatch, running=running)
    text = "no launcher says which rank of its node this process is, and MPI is not initialised: pass a communicator"
    with pytest.raises(ArgumentError) as caught:
        local_rank()
    assert str(caught.value) == text


def test_ranks_take_turns(monkeypatch: pytest.MonkeyPatch, gpus: Any) -> None:
    found = []
    for ngpus in (1, 2, 4):  # 1: Slurm's --gpus-per-task, or two ranks and more on one GPU
        gpus(ngpus)
        for rank in range(4):
            monkeypatch.setenv("SLURM_LOCALID", str(rank))
            found.append(local_device())
    assert found == [0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("visible", "why"),
    [
        (None, "no CUDA driver or no GPU is here"),
        ("", "CUDA_VISIBLE_DEVICES is ''"),
        ("9", "CUDA_VISIBLE_DEVICES is '9'"),
    ],
)
@pytest.mark.usefixtures("no_driver")
def test_no_gpu(monkeypatch: pytest.MonkeyPatch, visible: str | None, why: str) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(DeviceError) as caught:
        local_device()
    assert str(caught.value) == f"this process sees no GPU: {why}"


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


ANSWERS = {
    "arrives": ("echo arrives", True),
    "does not": ("echo does not arrive", False),
    "fails": ("echo arrives; exit 1", False),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_an_answer_is_kept(what: str, double: Double, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body, answer = ANSWERS[what]
    trials = Trials(folder, monkeypatch, body)
    assert [asked(), asked()] == [answer] * 2
    assert len(trials) == 1


def test_one_that_hangs_is_ended_with_what_it_started_and_not_tried_again(
    double: Double, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cuda_aware._LIMIT_S <= 15
    monkeypatch.setattr(cuda_aware, "_LIMIT_S", 0.5)
    trials = Trials(folder, monkeypatch, f"sleep 50 &\necho $! >{folder}/pid\nsleep 50")
    start = time.monotonic()
    assert [asked(), asked()] == [False] * 2
    assert time.monotonic() - start < slowed(10)
    assert len(trials) == 1
    state = Path("/proc", (folder / "pid").read_text().strip(), "stat")
    for _ in range(100):  # whoever adopts it may be slow to notice its end
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("it runs on")


@pytest.mark.parametrize("what", ["settings", "driver"])
def test_other_circumstances_are_tried(
    what: str, double: Double, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials(folder, monkeypatch, "echo arrives")
    asked()
    if what == "settings":
        monkeypatch.setenv("UCX_TLS", "tcp")
    else:
        double.version = (99, 9)
    asked()
    assert len(trials) == 2
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "7")  # differs from rank to rank
    asked()
    assert len(trials) == 2
