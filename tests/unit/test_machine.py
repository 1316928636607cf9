"""Caches, cache domains and free memory, read from files of machines made up for it."""

from pathlib import Path

import pytest

from hpcoll.base.machine import domain_of, last_level_nbytes, left_nbytes, ncaches


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (["48K", "1024K", "32768K"], 32 << 20),
        (["64K", "2M"], 2 << 20),
        ([], 32 << 20),
        (["unknown"], 32 << 20),
    ],
)
def test_the_largest_counts(sizes: list[str], expected: int, tmp_path: Path) -> None:
    for i, size in enumerate(sizes):
        (tmp_path / f"index{i}").mkdir()
        (tmp_path / f"index{i}/size").write_text(size + "\n")
    assert last_level_nbytes(tmp_path) == expected


def test_this_processor() -> None:
    assert last_level_nbytes() >= 1 << 18
    assert domain_of(0) in (frozenset(), domain_of(0) | {0})


Core = dict[str, str]  # what files of a core's folder say


def write(folder: Path, cores: dict[int, Core]) -> Path:
    """A folder of cores, as the system shows them."""
    for core, files in cores.items():
        for name, text in files.items():
            path = folder / f"cpu{core}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
    return folder


def several_l3(core: int) -> Core:
    """Two sockets of 4 last-level caches of 8 cores, with a second hardware thread of core c as c + 64."""
    own, mine, socket = core % 64, core % 64 // 8 * 8, core % 64 // 32 * 32
    threads = f"{own},{own + 64}"
    return {
        "cache/index0/level": "1",
        "cache/index0/shared_cpu_list": threads,
        "cache/index2/level": "2",
        "cache/index2/shared_cpu_list": threads,
        "cache/index3/level": "3",
        "cache/index3/shared_cpu_list": f"{mine}-{mine + 7},{mine + 64}-{mine + 71}",
        "topology/thread_siblings_list": threads,
        "topology/core_siblings_list": f"{socket}-{socket + 31},{socket + 64}-{socket + 95}",
    }


def test_of_several_caches_the_last_level_counts(tmp_path: Path) -> None:
    """Hardware threads of a core included."""
    cpus = write(tmp_path, {core: several_l3(core) for core in (0, 13, 77)})
    assert domain_of(0, cpus) == {*range(8), *range(64, 72)}
    assert domain_of(13, cpus) == domain_of(77, cpus) == {*range(8, 16), *range(72, 80)}


@pytest.mark.parametrize("hidden", ["cache/index3/shared_cpu_list", "cache/index3/level"])
def test_of_private_caches_only_the_socket_counts(hidden: str, tmp_path: Path) -> None:
    """As where the system does not show the cache that cores share, or shows a file that says nothing."""
    files = several_l3(40)
    if hidden.endswith("level"):
        files = {name: text for name, text in files.items() if "index3" not in name}
    else:
        files[hidden] = ""
    assert domain_of(40, write(tmp_path, {40: files})) == {*range(32, 64), *range(96, 128)}


def test_how_many_caches_there_are(tmp_path: Path) -> None:
    assert ncaches(write(tmp_path / "all", {core: several_l3(core) for core in range(128)})) == 8
    assert ncaches(write(tmp_path / "some", {core: several_l3(core) for core in range(8)})) == 1
    assert ncaches(tmp_path / "hidden") == 1


def test_what_the_system_hides_is_no_domain(tmp_path: Path) -> None:
    assert domain_of(0, tmp_path) == frozenset()
    assert (
        domain_of(
            0, write(tmp_path, {0: {"cache/index0/level": "unknown", "topology/core_siblings_list": "all"}})
        )
        == frozenset()
    )


# --- memory

GB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "meminfo").write_text(f"MemTotal:  {64 * GB >> 10} kB\nMemAvailable:   {16 * GB >> 10} kB\n")
    (tmp_path / "membership").write_text("0::/job/step\n")
    return {
        "root": tmp_path / "groups",
        "membership": tmp_path / "membership",
        "meminfo": tmp_path / "meminfo",
    }


def group(machine: dict[str, Path], name: str, **files: object) -> None:
    folder = machine["root"] / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, value in files.items():
        (folder / f"memory.{file}").write_text(f"{value}\n")


def test_what_is_left_is_the_least_that_any_group_leaves(machine: dict[str, Path]) -> None:
    assert left_nbytes(**machine) == 16 * GB
    group(machine, "job", max=8 * GB, current=3 * GB)
    group(machine, "job/step", max="max", current=GB)
    assert left_nbytes(**machine) == 5 * GB
    group(machine, "job/step", max=4 * GB, current=5 * GB)
    assert left_nbytes(**machine) == 0


def test_groups_of_the_first_version(machine: dict[str, Path]) -> None:
    machine["membership"].write_text("3:cpu,memory:/job\n2:pids:/other\n")
    group(machine, "memory/job", limit_in_bytes=2 * GB, usage_in_bytes=GB)
    assert left_nbytes(**machine) == GB


def test_a_machine_that_does_not_say(machine: dict[str, Path]) -> None:
    machine["meminfo"].unlink()
    assert left_nbytes(**machine) == 0
    group(machine, "job", max=GB)
    assert left_nbytes(**machine) == GB
