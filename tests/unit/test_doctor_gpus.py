"""Findings of ``hpcoll doctor`` about GPUs: over the driver's double, and from folders that the tests build."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcoll.base.machine import ProcessLocation, location
from hpcoll.cli.doctor import gpus, probes
from hpcoll.cli.doctor.findings import NOTE, OK, WARN, Finding

HERE = ProcessLocation("machine", "pid:[1]", "ipc:[1]")
PACKAGES = {"cupy-cuda13x": "14", "numba-cuda": "1"}
pytestmark = pytest.mark.double(ngpus=2, forgives=("failures",))


def test_a_driver_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert probes.cuda(tmp_path) == [Finding(OK, "CUDA", gpus.NO_CUDA)]
    (tmp_path / "nvidia0").touch()
    (finding,) = probes.cuda(tmp_path)
    assert (finding.level, finding.found.startswith("devices, but no driver library: ")) == (WARN, True)
    assert "file too short" in finding.found


def test_a_process_that_cannot_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))
    (finding,) = probes.cuda(tmp_path)
    assert (finding.level, finding.found.partition(",")[0]) == (
        WARN,
        "the driver gives no device: asking it ended with status 1",
    )


def test_a_machine_with_gpus(double: Any) -> None:
    answer = json.loads(json.dumps(gpus.survey(double.library)))
    assert len({device["bus_id"] for device in answer["devices"]}) == 2
    first, *devices, packages, _ = gpus.judge(answer, True, PACKAGES, {})
    name, other = (device["name"] for device in answer["devices"])
    assert first == Finding(OK, "CUDA", f"1 x {name}, 1 x {other}, driver for CUDA 13.0")
    where = f"{name} at {answer['devices'][0]['bus_id']}, 1 GiB, compute capability 9.0"
    assert devices[0] == Finding(OK, "GPU", where)
    assert devices[1].subject == "GPU"
    assert packages == Finding(OK, "CUDA packages", "cupy-cuda13x 14, numba-cuda 1")


def test_the_process_that_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It prints what the driver says; here, that there is none."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    (tmp_path / "libcuda.so.1").touch()
    asked = subprocess.run(
        [sys.executable, "-m", "hpcoll.cli.doctor.gpus"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "file too short" in json.loads(asked.stdout)["absent"]


def test_a_driver_that_fails(double: Any) -> None:
    double.fail("cuDeviceGetName", 999)
    answer = gpus.survey(double.library)
    assert answer["error"].startswith("cuDeviceGetName failed with ")
    assert gpus.judge(answer, False, {}, {})[0].level == WARN
    hidden = {"error": "cuInit failed with CUDA_ERROR_NO_DEVICE (100)"}
    assert gpus.judge(hidden, False, {}, {})[0].level == NOTE
    (finding,) = gpus.judge(hidden, True, {}, {"CUDA_VISIBLE_DEVICES": ""})
    assert (finding.level, finding.found) == (
        WARN,
        f"the driver gives no device: {hidden['error']}, CUDA_VISIBLE_DEVICES=",
    )


DEVICE = {"name": "A", "nbytes": 1 << 30, "bus_id": "0:1", "capability": [9, 0], "registers": True}


def judged(packages: dict[str, str], problem: str, **device: Any) -> list[Finding]:
    """Findings about one GPU and the packages for it."""
    answer = {"driver": (13, 0), "devices": [DEVICE | device], "compiler": problem}
    return gpus.judge(answer, True, packages, {})


@pytest.mark.parametrize(
    ("packages", "problem", "levels"),
    [
        (PACKAGES, "", [OK, OK]),
        ({"torch": "2", "numba-cuda": "1"}, "", [OK, OK]),
        ({"numba-cuda": "1"}, "", [OK, NOTE, OK]),
        ({}, "No module", [NOTE, WARN]),
        (PACKAGES, "libnvvm is missing", [OK, WARN]),
    ],
)
def test_packages(packages: dict[str, str], problem: str, levels: list[str]) -> None:
    found = judged(packages, problem)[2:]
    assert [one.level for one in found] == levels
    assert all("hpcoll[cuda13]" in one.remedy for one in found if one.level != OK)


def test_the_compiler(double: Any) -> None:
    pytest.importorskip("numba_cuda")
    assert gpus.survey(double.library)["compiler"] == ""
    assert gpus._compiler((1, 0)) != ""


def test_a_gpu_that_cannot_use_host_memory() -> None:
    assert judged(PACKAGES, "", registers=False)[1].level == NOTE


@pytest.mark.parametrize(
    ("says", "wish", "level", "text"),
    [
        (True, "", OK, "the library says that it is CUDA-aware"),
        (True, "direct", OK, "the library says that it is CUDA-aware"),
        (False, "", NOTE, "the library says that it is not CUDA-aware"),
        (None, "staged", NOTE, "the library does not say whether it is CUDA-aware"),
        (
            False,
            "direct",
            WARN,
            "HPCOLL_CUDA_PATH=direct, but the library says that it is not CUDA-aware",
        ),
    ],
)
def test_awareness(says: bool | None, wish: str, level: str, text: str) -> None:
    found = gpus.check_awareness(says, wish, True)
    assert (found.level, found.found) == (level, text)
    assert gpus.check_awareness(False, "", False).level == OK


def test_which_ucx_is_loaded(tmp_path: Path) -> None:
    for name in ("with", "without"):
        (tmp_path / name / "ucx").mkdir(parents=True)
    (tmp_path / "with" / "ucx" / "libuct_cuda.so.0").touch()
    lines = "".join(
        f"7f00-7f01 r-xp 0000 08:01 5   {tmp_path}/{name}/libucp.so.0.0.0\n" * 2
        for name in ("with", "without")
    )
    (tmp_path / "maps").write_text(f"{lines}7f02-7f03 r-xp 0000 08:01 5   {tmp_path}/libuct.so\n")
    one, other = gpus.check_ucx(tmp_path / "maps")
    assert one == Finding(OK, "UCX", f"{tmp_path}/with/libucp.so.0.0.0, with modules for CUDA")
    assert (other.level, "libucx-cu13" in other.remedy) == (NOTE, True)
    assert gpus.check_ucx(tmp_path / "absent") == []


# --- all ranks together


def together(*ranks: tuple[ProcessLocation, str]) -> list[list[tuple[str, str]]]:
    """Levels and first words of what each rank hears; it sees the GPUs that are named by letters."""
    found = gpus.check_gpus([one for one, _ in ranks], [frozenset(seen) for _, seen in ranks])
    return [[(one.level, " ".join(one.found.split()[:3])) for one in mine] for mine in found]


def test_ranks_that_see_the_same_gpus() -> None:
    assert together((HERE, "ab"), (HERE, "ab")) == [[], []]
    assert together((HERE, ""), (HERE, "")) == [[], []]
    assert together((HERE, "a"), (HERE._replace(machine="other"), "b")) == [[], []]


def test_ranks_that_see_different_gpus() -> None:
    sees = (WARN, "this rank sees")
    assert together((HERE, "a"), (HERE, "b"), (HERE._replace(machine="other"), "c")) == [[sees], [sees], []]
    assert together((HERE, "ab"), (HERE, "b")) == [[], [sees]]
    (remedy,) = {
        one.remedy for mine in gpus.check_gpus([HERE] * 2, [frozenset("a"), frozenset("b")]) for one in mine
    }
    assert "--gpus-per-node=N --gpu-bind=none" in remedy


def test_ranks_in_different_containers() -> None:
    apart = HERE._replace(objects="ipc:[2]")
    found = together((HERE, "ab"), (apart, "ab"))
    assert found == [[(WARN, "ranks of a")]] * 2
    assert "--ipc=host" in gpus.check_gpus([HERE, apart], [frozenset("ab")] * 2)[0][0].remedy


def test_ranks_that_share_gpus() -> None:
    assert together(*[(HERE, "a")] * 3) == [[(NOTE, "3 ranks of")]] * 3


def test_where_a_process_runs(tmp_path: Path) -> None:
    here = location()
    assert here.processes.startswith("pid:[")
    assert here.objects.startswith("ipc:[")
    assert location(tmp_path) == ProcessLocation("", "", "")


@pytest.mark.gpu
def test_a_real_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *_ = probes.cuda()
    assert (first.level, ", driver for CUDA 1" in first.found) == (OK, True)
    assert (second.level, second.subject) == (OK, "GPU")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (finding,) = probes.cuda()
    assert (finding.level, "CUDA_ERROR_NO_DEVICE" in finding.found) == (WARN, True)
