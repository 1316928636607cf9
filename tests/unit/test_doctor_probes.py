"""What ``hpcoll doctor`` finds out about one machine; probes of hardware read folders that the tests build."""

import math
import os
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcoll.cli.doctor import probes
from hpcoll.cli.doctor.findings import FAIL, NOTE, OK, WARN, Finding, as_text, merge
from hpcoll.cli.doctor.gpus import judge


def test_a_wrong_setting() -> None:
    finding, = probes.settings({"HPCOLL_SEGMENT": "0"})  # fmt: skip
    assert (finding.level, finding.found) == (FAIL, "environment variable HPCOLL_SEGMENT: segment must be at least 1 byte, got '0'")


def test_a_tuning_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "table").touch()
    assert probes.tuning_file({"HPCOLL_TUNING": str(tmp_path / "table")}) == []
    assert probes.tuning_file({"HPCOLL_TUNING": str(tmp_path)})[0].level == FAIL
    assert probes.tuning_file({}) == []
    assert probes.tuning_file({"HPCOLL_TUNING": "x" * 5000})[0].level == FAIL, "the system takes no such names"


def test_values_that_would_drive_a_terminal() -> None:
    """Are printed, cut, without what a terminal obeys."""
    evil = "\x1b]0;mine\x07\x1b[2J\udcff"
    odd = {"HPCOLL_TUNING": evil, f"HPCOLL_{evil}": evil, "HPCOLL_RECORD": "x" * 10_000}
    found = [*probes.settings(odd), *probes.tuning_file(odd), *judge({}, True, {}, {"CUDA_VISIBLE_DEVICES": evil})]
    text = as_text(merge([found, []], [evil, "b"]))
    assert text.replace("\n", "").isprintable()
    assert "HPCOLL_TUNING=?]0;mine??[2J?" in text
    assert max(map(len, text.splitlines())) < 1000


def test_a_distribution_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probes.installed("no-such-distribution") == ""
    monkeypatch.setattr(sys, "path", [])
    found = probes.software()
    assert [finding.level for finding in found] == [OK, *[FAIL] * 5]
    assert found[2].found == "numba is not installed"


def test_containers(tmp_path: Path) -> None:
    assert "container" not in probes.system(tmp_path, {})[0].found
    (tmp_path / ".dockerenv").touch()
    assert probes.system(tmp_path, {"APPTAINER_NAME": "x"})[0].found.endswith(", in a container (docker, apptainer)")


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert probes.shared_memory(tmp_path)[0].level == OK
    assert not any(tmp_path.iterdir())
    (tmp_path / "file").touch()
    for folder in (tmp_path / "absent", tmp_path / "file", Path("/proc")):
        finding, = probes.shared_memory(folder)  # fmt: skip
        assert (finding.level, finding.found.startswith(f"{folder} cannot be used: ")) == (WARN, True)
    state = os.statvfs(tmp_path)
    size, free = state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize
    monkeypatch.setattr(probes, "SMALL_SHM_NBYTES", (size + free) // 2)
    assert probes.shared_memory(tmp_path)[0].level == WARN
    monkeypatch.setattr(probes, "SMALL_SHM_NBYTES", size)
    finding, = probes.shared_memory(tmp_path)  # fmt: skip
    assert finding.level == NOTE
    assert "--shm-size" in finding.remedy


def write(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


GROUPS_2 = {
    "member": "0::/job/step",
    "g/job/memory.max": str(512 << 20), "g/job/step/memory.max": "max", "g/memory.max": str(4 << 30),
    "g/job/step/cpu.max": "300000 100000", "g/job/cpu.max": "150000 100000", "g/cpu.max": "max 100000",
}  # fmt: skip
GROUPS_1 = {
    "member": "5:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/other\n0::/",
    "g/memory/job/memory.limit_in_bytes": str(512 << 20), "g/memory/memory.limit_in_bytes": "9223372036854771712",
    "g/cpu/job/cpu.cfs_quota_us": "75000", "g/cpu/job/cpu.cfs_period_us": "50000",
    "g/cpu/cpu.cfs_quota_us": "-1", "g/cpu/cpu.cfs_period_us": "50000",
}  # fmt: skip


@pytest.mark.parametrize("files", [GROUPS_2, GROUPS_1])
def test_limits_by_control_groups(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, files | {"meminfo": "MemTotal:        8388608 kB\nMemFree:  1 kB"})
    places = tmp_path / "g", tmp_path / "member"
    assert probes.cpu_quota(*places) == 1.5
    finding, = probes.memory(*places, tmp_path / "meminfo")  # fmt: skip
    assert (finding.level, finding.found) == (NOTE, "8 GiB, limited to 512 MiB by a control group")


def test_no_limits(tmp_path: Path) -> None:
    write(tmp_path, {"meminfo": "MemTotal:        8388608 kB", "member": "0::/gone", "g/memory.max": "max", "g/cpu.max": "max 100000"})
    assert probes.cpu_quota(tmp_path / "g", tmp_path / "member") == math.inf
    assert probes.memory(tmp_path / "g", tmp_path / "member", tmp_path / "meminfo")[0].found == "8 GiB, no limit by a control group"
    assert probes.memory(tmp_path, tmp_path, tmp_path)[0].found == "of unknown size, no limit by a control group"


PORTS = {
    "mlx5_0/ports/1/state": "4: ACTIVE", "mlx5_0/ports/1/phys_state": "5: LinkUp",
    "mlx5_0/ports/1/link_layer": "InfiniBand", "mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)",
    "mlx5_1/ports/1/state": "2: INIT", "mlx5_1/ports/1/phys_state": "5: LinkUp",
    "mlx5_1/ports/1/link_layer": "InfiniBand", "mlx5_1/ports/1/rate": "200 Gb/sec (4X HDR)",
    "mlx5_2/ports/1/state": "1: DOWN", "mlx5_2/ports/1/phys_state": "3: Disabled",
    "mlx5_2/ports/1/link_layer": "Ethernet", "mlx5_2/ports/1/rate": "40 Gb/sec (4X QDR)",
}  # fmt: skip


@pytest.fixture
def memlock() -> Any:
    """Lets a test lower the limit on locked memory."""
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    yield lambda soft: resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, before[1]))
    resource.setrlimit(resource.RLIMIT_MEMLOCK, before)


def test_network_devices(tmp_path: Path, memlock: Any) -> None:
    write(tmp_path / "sys", PORTS)
    write(tmp_path / "dev", {"uverbs0": ""})
    memlock(8192)
    first, second, third, locked = probes.infiniband(tmp_path / "sys", tmp_path / "dev")
    assert first == Finding(OK, "InfiniBand", "mlx5_0 port 1: InfiniBand, 200 Gb/sec (4X HDR), ACTIVE, LinkUp")
    assert (second.level, "opensm" in second.remedy) == (NOTE, True)
    assert (third.level, third.found) == (NOTE, "mlx5_2 port 1: RoCE, 40 Gb/sec (4X QDR), DOWN, Disabled")
    assert "ip link set" in third.remedy
    assert (locked.level, locked.found) == (WARN, "at most 8 KiB")


def test_network_devices_of_which_none_works(tmp_path: Path) -> None:
    write(tmp_path, {name: text for name, text in PORTS.items() if not name.startswith("mlx5_0")} | {"mlx5_3/ports/1/gids/0": "::"})
    found = [finding for finding in probes.infiniband(tmp_path, tmp_path / "none") if finding.subject == "InfiniBand"]
    assert [finding.level for finding in found] == [WARN] * 4
    assert found[2].found == "mlx5_3 port 1: unknown link, , , "
    assert found[3].found == f"{tmp_path}/none/uverbs* is absent or not yours to open"
    assert probes.infiniband(tmp_path / "none") == [Finding(OK, "InfiniBand", "no InfiniBand or RoCE device")]


def test_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"hpcoll-{os.geteuid()}"
    assert probes.locks() == [Finding(OK, "compile locks", f"{folder} is writable, and yours alone")]
    folder.chmod(0o777)
    (found,) = probes.locks()
    assert (found.level, found.found.startswith(f"{folder} can be written by other users")) == (WARN, True)
