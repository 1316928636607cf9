"""``hpcoll bench --memory device`` over the driver's double: every way to serve GPU arrays is a row, and a wrong answer is found."""

from typing import Any

import pytest
from cuda_double import Double
from mpi4py import MPI
from test_bench import QUICK, bench, document

from hpcoll.cli.bench import device
from hpcoll.cli.bench.modes import MODES
from hpcoll.comm.arguments.methods import BY_COLLECTIVE
from hpcoll.selection.config import CUDA_PATHS

WORLD = MPI.COMM_WORLD
SMALL_LINK = 1 << 16
DEVICE = ["--memory", "device"]
pytestmark = [pytest.mark.mpi, pytest.mark.double, pytest.mark.once]


@pytest.fixture
def double(blame: Double, monkeypatch: pytest.MonkeyPatch) -> Double:
    """A GPU, with little to measure of its copies, and no NCCL."""
    measured = device.rates
    monkeypatch.setattr("hpcoll.cli.bench.contenders.rates", lambda gpu: measured(gpu, SMALL_LINK))
    monkeypatch.setattr("hpcoll.cli.bench.nccl._find", lambda: None)
    return blame


CALLS = (
    [(collective, "blocking") for collective in BY_COLLECTIVE]
    + [("allreduce", mode) for mode in MODES[1:]]
    + [("bcast", "overlap")]
)


@pytest.mark.parametrize(("collective", "mode"), CALLS)
def test_the_library_on_copies(
    collective: str, mode: str, double: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [collective, *QUICK, *DEVICE, "--mode", mode, "--algorithms", "native", "-r", str(WORLD.size - 1)]
    found = document(capsys, *flags)
    assert found["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert {result["algorithm"] for result in found["results"]} == {"native"}
    assert found["notes"][0].startswith("nccl is left out: ")
    assert found["gpu"]["ranks_per_gpu"] == WORLD.size
    assert min(found["gpu"][name] for name in ("to_gpu", "from_gpu", "copy")) > 0
    assert not double.races
    assert not double.failures


@pytest.mark.parametrize("collective", ["allreduce", "bcast", "gather", "alltoall", "barrier"])
def test_every_way(collective: str, double: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, collective, *QUICK, *DEVICE, "-r", str(WORLD.size - 1))
    names = list(dict.fromkeys(result["algorithm"] for result in found["results"]))
    left_out = [note.partition(" is left out")[0] for note in found["notes"]]
    assert names[:2] == ["native", "auto"]
    assert {f"auto@{way}" for way in CUDA_PATHS} <= {*names, *left_out}
    assert found["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert not double.races


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("hpcoll.runtime.gpu.local_gpu.driver", lambda: None)
    assert bench("allreduce", *QUICK, *DEVICE) == 2
    assert ("memory device: this process sees no GPU" in capsys.readouterr().err) is (WORLD.rank == 0)
