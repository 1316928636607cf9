"""What the system says of memory: control groups of both versions, those above, and a machine that says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcoll.base import memory

GB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "meminfo").write_text(f"MemTotal:  {64 * GB >> 10} kB\nMemAvailable:   {16 * GB >> 10} kB\n")
    (tmp_path / "membership").write_text("0::/job/step\n")
    return {"root": tmp_path / "groups", "membership": tmp_path / "membership", "meminfo": tmp_path / "meminfo"}


def group(machine: dict[str, Path], name: str, **files: object) -> None:
    folder = machine["root"] / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, value in files.items():
        (folder / f"memory.{file}").write_text(f"{value}\n")


def test_what_is_left_is_the_least_that_any_group_leaves(machine: dict[str, Path]) -> None:
    assert memory.left_nbytes(**machine) == 16 * GB
    group(machine, "job", max=8 * GB, current=3 * GB)
    group(machine, "job/step", max="max", current=GB)
    assert memory.left_nbytes(**machine) == 5 * GB
    group(machine, "job/step", max=4 * GB, current=5 * GB)
    assert memory.left_nbytes(**machine) == 0


def test_groups_of_the_first_version(machine: dict[str, Path]) -> None:
    machine["membership"].write_text("3:cpu,memory:/job\n2:pids:/other\n")
    group(machine, "memory/job", limit_in_bytes=2 * GB, usage_in_bytes=GB)
    assert memory.left_nbytes(**machine) == GB


def test_a_machine_that_does_not_say(machine: dict[str, Path]) -> None:
    machine["meminfo"].unlink()
    assert memory.left_nbytes(**machine) == 0
    group(machine, "job", max=GB)
    assert memory.left_nbytes(**machine) == GB
