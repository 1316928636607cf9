"""Findings of ``hpcoll doctor`` about one machine and its launcher; probes of hardware read folders that the tests build."""

import math
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from hpcoll.cli.doctor import probes
from hpcoll.cli.doctor.findings import FAIL, NOTE, OK, WARN, Finding, as_text, merge
from hpcoll.cli.doctor.gpus import judge
from hpcoll.cli.doctor.launchers import (
    Launcher,
    MpiLibrary,
    check_launch,
    family_of_mpiexec,
    find_launcher,
    own_mpiexec,
    remedy,
)


def test_a_wrong_setting() -> None:
    (finding,) = probes.settings({"HPCOLL_SEGMENT": "0"})
    assert (finding.level, finding.found) == (
        FAIL,
        "environment variable HPCOLL_SEGMENT: segment must be at least 1 byte, got '0'",
    )


def test_a_tuning_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "table").touch()
    assert probes.tuning_file({"HPCOLL_TUNING": str(tmp_path / "table")}) == []
    assert probes.tuning_file({"HPCOLL_TUNING": str(tmp_path)})[0].level == FAIL
    assert probes.tuning_file({}) == []
    assert probes.tuning_file({"HPCOLL_TUNING": "x" * 5000})[0].level == FAIL, (
        "the system takes no such names"
    )


def test_values_that_would_drive_a_terminal() -> None:
    """Are printed, cut, without what a terminal obeys."""
    evil = "\x1b]0;mine\x07\x1b[2J\udcff"
    odd = {"HPCOLL_TUNING": evil, f"HPCOLL_{evil}": evil, "HPCOLL_RECORD": "x" * 10_000}
    found = [
        *probes.settings(odd),
        *probes.tuning_file(odd),
        *judge({}, True, {}, {"CUDA_VISIBLE_DEVICES": evil}),
    ]
    text = as_text(merge([found, []], [evil, "b"]))
    assert text.replace("\n", "").isprintable()
    assert "HPCOLL_TUNING=?]0;mine??[2J?" in text
    assert max(map(len, text.splitlines())) < 1000


def test_a_distribution_that_is_missing() -> None:
    (found,) = probes.software()
    assert (found.level, "numba " in found.found, "mpi4py " in found.found) == (OK, True, True)
    found, missing = probes.software(["numpy", "no-such-distribution"])
    assert (found.level, missing.level) == (OK, FAIL)
    assert missing.found == "no-such-distribution is not installed"


def test_containers(tmp_path: Path) -> None:
    assert "container" not in probes.system(tmp_path, {})[0].found
    (tmp_path / ".dockerenv").touch()
    assert probes.system(tmp_path, {"APPTAINER_NAME": "x"})[0].found.endswith(
        ", in a container (docker, apptainer)"
    )


def test_shared_memory(tmp_path: Path) -> None:
    assert probes.shared_memory(tmp_path)[0].level == OK
    assert not any(tmp_path.iterdir())
    (tmp_path / "file").touch()
    for folder in (tmp_path / "absent", tmp_path / "file", Path("/proc")):
        (finding,) = probes.shared_memory(folder)
        assert (finding.level, finding.found.startswith(f"{folder} cannot be used: ")) == (WARN, True)
    state = os.statvfs(tmp_path)
    size, free = state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize
    assert probes.shared_memory(tmp_path, (size + free) // 2)[0].level == WARN
    (finding,) = probes.shared_memory(tmp_path, size)
    assert finding.level == NOTE
    assert "--shm-size" in finding.remedy


def write(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


GROUPS_2 = {
    "member": "0::/job/step",
    "g/job/memory.max": str(512 << 20),
    "g/job/step/memory.max": "max",
    "g/memory.max": str(4 << 30),
    "g/job/step/cpu.max": "300000 100000",
    "g/job/cpu.max": "150000 100000",
    "g/cpu.max": "max 100000",
}
GROUPS_1 = {
    "member": "5:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/other\n0::/",
    "g/memory/job/memory.limit_in_bytes": str(512 << 20),
    "g/memory/memory.limit_in_bytes": "9223372036854771712",
    "g/cpu/job/cpu.cfs_quota_us": "75000",
    "g/cpu/job/cpu.cfs_period_us": "50000",
    "g/cpu/cpu.cfs_quota_us": "-1",
    "g/cpu/cpu.cfs_period_us": "50000",
}


@pytest.mark.parametrize("files", [GROUPS_2, GROUPS_1])
def test_limits_by_control_groups(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, files | {"meminfo": "MemTotal:        8388608 kB\nMemFree:  1 kB"})
    places = tmp_path / "g", tmp_path / "member"
    assert probes.cpu_quota(*places) == 1.5
    (finding,) = probes.memory(*places, tmp_path / "meminfo")
    assert (finding.level, finding.found) == (NOTE, "8 GiB, limited to 512 MiB by a control group")


def test_no_limits(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "meminfo": "MemTotal:        8388608 kB",
            "member": "0::/gone",
            "g/memory.max": "max",
            "g/cpu.max": "max 100000",
        },
    )
    assert probes.cpu_quota(tmp_path / "g", tmp_path / "member") == math.inf
    assert (
        probes.memory(tmp_path / "g", tmp_path / "member", tmp_path / "meminfo")[0].found
        == "8 GiB, no limit by a control group"
    )
    assert (
        probes.memory(tmp_path, tmp_path, tmp_path)[0].found == "of unknown size, no limit by a control group"
    )


PORTS = {
    "mlx5_0/ports/1/state": "4: ACTIVE",
    "mlx5_0/ports/1/phys_state": "5: LinkUp",
    "mlx5_0/ports/1/link_layer": "InfiniBand",
    "mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)",
    "mlx5_1/ports/1/state": "2: INIT",
    "mlx5_1/ports/1/phys_state": "5: LinkUp",
    "mlx5_1/ports/1/link_layer": "InfiniBand",
    "mlx5_1/ports/1/rate": "200 Gb/sec (4X HDR)",
    "mlx5_2/ports/1/state": "1: DOWN",
    "mlx5_2/ports/1/phys_state": "3: Disabled",
    "mlx5_2/ports/1/link_layer": "Ethernet",
    "mlx5_2/ports/1/rate": "40 Gb/sec (4X QDR)",
}


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
    assert first == Finding(
        OK, "InfiniBand", "mlx5_0 port 1: InfiniBand, 200 Gb/sec (4X HDR), ACTIVE, LinkUp"
    )
    assert (second.level, "opensm" in second.remedy) == (NOTE, True)
    assert (third.level, third.found) == (NOTE, "mlx5_2 port 1: RoCE, 40 Gb/sec (4X QDR), DOWN, Disabled")
    assert "ip link set" in third.remedy
    assert (locked.level, locked.found) == (WARN, "at most 8 KiB")
    assert probes.locked_memory(NOTE, "GPUs")[0][:3] == (NOTE, *locked[1:3])


def test_network_devices_of_which_none_works(tmp_path: Path) -> None:
    write(
        tmp_path,
        {name: text for name, text in PORTS.items() if not name.startswith("mlx5_0")}
        | {"mlx5_3/ports/1/gids/0": "::"},
    )
    found = [
        finding
        for finding in probes.infiniband(tmp_path, tmp_path / "none")
        if finding.subject == "InfiniBand"
    ]
    assert [finding.level for finding in found] == [WARN] * 4
    assert found[2].found == "mlx5_3 port 1: unknown link, , , "
    assert found[3].found == f"{tmp_path}/none/uverbs* is absent or not yours to open"
    assert probes.infiniband(tmp_path / "none") == [Finding(OK, "InfiniBand", "no InfiniBand or RoCE device")]


def test_locks(node_folder: Path) -> None:
    folder = node_folder / f"hpcoll-{os.geteuid()}"
    assert probes.locks() == [Finding(OK, "compile locks", f"{folder} is writable, and yours alone")]
    folder.chmod(0o777)
    (found,) = probes.locks()
    assert (found.level, found.found.startswith(f"{folder} can be written by other users")) == (WARN, True)


OURS = MpiLibrary("Open MPI", "5.0.1", "/nowhere/openmpi/5.0/lib/libmpi.so.40", "3.1", 8, "4.1.0")
THEIRS = MpiLibrary("MPICH", "4.2.0", "/nowhere/mpich/4.2/lib/libmpi.so.12", "4.1", 4, "4.1.0")


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        (
            {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1", "SLURM_STEP_NUM_TASKS": "2"},
            ("Open MPI's mpirun", 4, 1),
        ),
        (
            {"PMI_SIZE": "4", "PMI_RANK": "3", "MPI_LOCALNRANKS": "2", "SLURM_STEP_NUM_TASKS": "2"},
            ("mpiexec of MPICH or Intel MPI", 4, 3),
        ),
        (
            {"PMI_SIZE": "4", "PMI_RANK": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"},
            ("srun", 4, 3),
        ),
        ({"PMI_SIZE": "8", "PMI_RANK": "7", "PALS_RANKID": "7"}, ("PALS (aprun or mpiexec)", 8, 7)),
        ({"PMI_SIZE": "8", "PMI_RANK": "7"}, ("a launcher that speaks PMI", 8, 7)),
        ({"PMIX_RANK": "7"}, ("a launcher that speaks PMIx", 0, 7)),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, None),  # a batch script, before srun
        ({}, None),
    ],
)
def test_launchers(variables: dict[str, str], launcher: tuple[str, int, int] | None) -> None:
    found = find_launcher(variables)
    assert (found and (found.name, found.size, found.rank)) == launcher


MPIRUN = Launcher("Open MPI's mpirun", "Open MPI", "OMPI_COMM_WORLD_SIZE", 4, 0)
PMIX = Launcher("a launcher that speaks PMIx", "", "", 0, 0)


@pytest.mark.parametrize(
    ("launcher", "nranks", "variables", "level", "text"),
    [
        (MPIRUN, 4, {}, OK, "Open MPI's mpirun, 4 ranks"),
        (
            MPIRUN,
            1,
            {},
            FAIL,
            "Open MPI's mpirun started 4 ranks (OMPI_COMM_WORLD_SIZE=4), but MPICH sees one rank in each",
        ),
        (
            MPIRUN,
            3,
            {},
            WARN,
            "Open MPI's mpirun started 4 ranks (OMPI_COMM_WORLD_SIZE=4), but MPI.COMM_WORLD has 3 ranks",
        ),
        (PMIX, 2, {}, OK, "a launcher that speaks PMIx, 2 ranks"),
        (PMIX, 1, {}, NOTE, "a launcher that speaks PMIx, one rank"),
        (None, 2, {}, OK, "one that leaves no trace, 2 ranks"),
        (None, 1, {"SLURM_NTASKS": "8"}, NOTE, "none, one rank, in a Slurm job of 8 tasks"),
    ],
)
def test_launches(
    launcher: Launcher | None, nranks: int, variables: dict[str, str], level: str, text: str
) -> None:
    finding = check_launch(launcher, nranks, THEIRS, variables)
    assert (finding.level, finding.found[: len(text)]) == (level, text)


def test_how_to_start_under_slurm() -> None:
    srun = Launcher("srun", "", "SLURM_STEP_NUM_TASKS", 4, 0)
    assert remedy(srun, OURS).startswith("srun --mpi=pmix, if")
    assert remedy(srun, THEIRS).startswith("srun --mpi=pmi2 or --mpi=pmix, if")
    assert remedy(srun, THEIRS._replace(name="Intel MPI")).startswith("export I_MPI_PMI_LIBRARY=")
    assert "have mpi4py load Open MPI" in remedy(MPIRUN, THEIRS)
    assert remedy(MPIRUN, OURS).endswith("the mpiexec that belongs to /nowhere/openmpi/5.0/lib/libmpi.so.40")


def test_mpiexec_programs(tmp_path: Path) -> None:
    for name, text in (
        ("mpiexec", "HYDRA build details:"),
        ("mpiexec.openmpi", "mpiexec (OpenRTE) 4.1.4"),
        ("silent", ""),
    ):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho '{text}'\n")
        program.chmod(0o700)
    families = [
        family_of_mpiexec(str(tmp_path / "bin" / name))
        for name in ("mpiexec", "mpiexec.openmpi", "silent", "absent")
    ]
    assert families == ["MPICH", "Open MPI", "", ""]
    assert own_mpiexec(OURS._replace(path=str(tmp_path / "lib/x86_64/libmpi.so"))) == str(
        tmp_path / "bin/mpiexec.openmpi"
    )
    assert own_mpiexec(THEIRS._replace(path=str(tmp_path / "lib/libmpi.so"))) == str(tmp_path / "bin/mpiexec")
    assert own_mpiexec(OURS._replace(path="")) == ""
