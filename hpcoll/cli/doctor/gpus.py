"""GPU checks of ``hpcoll doctor``: the GPUs that one process sees, and whether ranks of a machine see the same ones.

A process of its own asks the driver (``python -m hpcoll.cli.doctor.gpus``), because a process that has started it must not fork.
"""

import ctypes
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcoll.base.errors import DeviceError
from hpcoll.base.machine import ProcessLocation, read
from hpcoll.base.text import counted, format_nbytes, printable
from hpcoll.cli.doctor.findings import NOTE, OK, WARN, Finding, one_line
from hpcoll.runtime.gpu.cuda import DeviceAttribute, Driver

NO_CUDA = "no device and no driver"
DEVICE = "GPU"  # subject of the line about one GPU; ranks that see the same GPUs write the same lines
_MAJOR, _MINOR, _REGISTERS = (
    DeviceAttribute.MAJOR,
    DeviceAttribute.MINOR,
    DeviceAttribute.CAN_REGISTER_HOST_MEMORY,
)
_MPICH_CUDA = 0  # MPIX_GPU_SUPPORT_CUDA
_NO_DEVICE = "CUDA_ERROR_NO_DEVICE"
_ALL = "give each rank all GPUs of its host: srun --gpus-per-node=N --gpu-bind=none, no CUDA_VISIBLE_DEVICES of its own; "
_ALL += "hpcoll.local_device() says which one to use"
_AWARE = "a CUDA-aware build (the cluster's module, HPC-X, conda-forge's), or NVIDIA's UCX: pip install libucx-cu13, jobs/cuda_aware_mpi.sh"


def survey(library: Any = None) -> dict[str, Any]:
    """Ask the driver, and return the answer fit for JSON: ``driver``, ``devices`` and ``compiler``, or else ``absent`` or ``error``."""
    try:
        driver = Driver(library or ctypes.CDLL("libcuda.so.1"))
        devices = [_device(driver, ordinal) for ordinal in range(driver.count)]
    except OSError as error:
        return {"absent": one_line(error)}
    except (
        AttributeError,
        DeviceError,
    ) as error:  # a function that an old driver lacks, or an answer that it does not give
        return {"error": one_line(error)}
    return {
        "driver": driver.version(),
        "devices": devices,
        "compiler": _compiler(devices[0]["capability"]) if devices else "",
    }


def _device(driver: Driver, ordinal: int) -> dict[str, Any]:
    major, minor, registers = (
        driver.device_attribute(ordinal, attribute) for attribute in (_MAJOR, _MINOR, _REGISTERS)
    )
    name, nbytes, bus_id = driver.device_name(ordinal), driver.device_nbytes(ordinal), driver.bus_id(ordinal)
    return {
        "name": name,
        "nbytes": nbytes,
        "bus_id": bus_id,
        "capability": [major, minor],
        "registers": bool(registers),
    }


def _compiler(capability: Sequence[int]) -> str:
    """Return why Numba cannot compile for a GPU; the empty string when it can."""
    try:
        from numba import types

        from hpcoll.kernels.device import compile_text

        compile_text(lambda x: None, types.void(types.float32[:]), (capability[0], capability[1]))
    except (
        Exception
    ) as error:  # a missing package, a library that does not fit: whatever a broken installation raises
        return one_line(error)[:200]
    return ""


def judge(
    answer: Mapping[str, Any], present: bool, packages: Mapping[str, str], environment: Mapping[str, str]
) -> list[Finding]:
    """Return findings from the answer of a `survey`.

    ``present``: there are device files. ``packages``: versions of the installed Python packages for CUDA.
    """
    if "absent" in answer and not present:
        return [Finding(OK, "CUDA", NO_CUDA)]
    if "absent" in answer:
        what = "start the container with --gpus all (docker) or --nv (apptainer), or install the driver"
        return [Finding(WARN, "CUDA", f"devices, but no driver library: {answer['absent']}", what)]
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if visible is None else f", CUDA_VISIBLE_DEVICES={printable(visible)}"
    if not answer.get("devices"):
        error = answer.get("error", _NO_DEVICE)
        level = WARN if present or _NO_DEVICE not in error else NOTE
        what = "see nvidia-smi, CUDA_VISIBLE_DEVICES, and --gpus or --gres of the job"
        return [Finding(level, "CUDA", f"the driver gives no device: {error}{hidden}", what)]
    devices, (major, minor) = answer["devices"], answer["driver"]
    names = [device["name"] for device in devices]
    models = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    findings = [Finding(OK, "CUDA", f"{models}, driver for CUDA {major}.{minor}{hidden}")]
    findings += [_describe(device) for device in devices]
    return [*findings, *_software(packages, answer["compiler"], f"cuda{max(12, major)}")]


def _describe(device: Mapping[str, Any]) -> Finding:
    capability = ".".join(map(str, device["capability"]))
    text = f"{device['name']} at {device['bus_id']}, {format_nbytes(device['nbytes'])}, compute capability {capability}"
    if device["registers"]:
        return Finding(OK, DEVICE, text)
    return Finding(
        NOTE,
        DEVICE,
        f"{text}, cannot use shared host memory",
        "arrays of this GPU travel between ranks by copies of their own",
    )


def _software(packages: Mapping[str, str], problem: str, extra: str) -> list[Finding]:
    """Report packages that make GPU arrays, and the compiler for kernels."""
    subject, install, findings = "CUDA packages", f"pip install 'hpcoll[{extra}]'", []
    if packages:
        findings.append(Finding(OK, subject, ", ".join(f"{name} {text}" for name, text in packages.items())))
    if not any(name.startswith(("cupy", "torch")) for name in packages):
        findings.append(
            Finding(NOTE, subject, "neither CuPy nor PyTorch, which make GPU arrays, is installed", install)
        )
    if "numba-cuda" not in packages:
        return [
            *findings,
            Finding(
                WARN, subject, "numba-cuda is not installed: GPU arrays are combined on the host", install
            ),
        ]
    if problem:
        return [
            *findings,
            Finding(
                WARN,
                "CUDA compiler",
                f"numba-cuda cannot compile a kernel: {problem}",
                f"{install} --force-reinstall",
            ),
        ]
    return [*findings, Finding(OK, "CUDA compiler", "numba-cuda compiles kernels")]


def check_ucx(maps: Path = Path("/proc/self/maps")) -> list[Finding]:
    """Report the UCX that the MPI library has loaded, if any, and whether it knows GPU memory; MPI must run."""
    mapped = re.findall(r"(/\S*libucp\S*)$", read(maps), re.M)
    findings = []
    for path in dict.fromkeys(mapped):
        if any(Path(path).parent.glob("ucx/libuct_cuda*")):
            findings.append(Finding(OK, "UCX", f"{path}, with modules for CUDA"))
        else:
            what = f"for messages from GPU memory to other hosts: {_AWARE}"
            findings.append(Finding(NOTE, "UCX", f"{path}, without modules for CUDA", what))
    return findings


def cuda_awareness(mpi: str) -> bool | None:
    """Say whether the MPI library under mpi4py's extension module claims to take GPU arrays, or None if it says nothing."""
    extension, flag = ctypes.CDLL(mpi), ctypes.c_int()
    if (
        hasattr(extension, "MPIX_GPU_query_support")
        and extension.MPIX_GPU_query_support(_MPICH_CUDA, ctypes.byref(flag)) == 0
    ):
        return bool(flag.value)
    return (
        bool(extension.MPIX_Query_cuda_support()) if hasattr(extension, "MPIX_Query_cuda_support") else None
    )


def check_awareness(says: bool | None, wish: str, gpus: bool) -> Finding:
    """Report whether the MPI library ``says`` that it takes arrays in GPU memory; ``wish``: the value of ``HPCOLL_CUDA_PATH``."""
    subject, text = "MPI and CUDA", f"the library says that it is {'' if says else 'not '}CUDA-aware"
    if says is None:
        text = "the library does not say whether it is CUDA-aware"
    if wish == "direct" and not says:
        what = f"unset HPCOLL_CUDA_PATH, unless the library's UCX has modules for CUDA; else {_AWARE}"
        return Finding(WARN, subject, f"HPCOLL_CUDA_PATH=direct, but {text}", what)
    if says or not gpus:
        return Finding(OK, subject, text)
    what = f"pass GPU arrays to hpcoll's calls only, never to the library's own; for speed between hosts: {_AWARE}"
    return Finding(NOTE, subject, text, what)


def check_gpus(locations: Sequence[ProcessLocation], seen: Sequence[frozenset[str]]) -> list[list[Finding]]:
    """Return findings for each rank: whether it sees the GPUs of its machine's other ranks, has one for itself, and may map theirs.

    ``seen`` are the texts of each rank's findings about its GPUs.
    """
    findings: list[list[Finding]] = [[] for _ in locations]
    for machine in dict.fromkeys(place.machine for place in locations):
        ranks = [rank for rank, place in enumerate(locations) if place.machine == machine and seen[rank]]
        if not ranks:
            continue
        union = frozenset().union(*(seen[rank] for rank in ranks))
        apart = len({locations[rank] for rank in ranks}) > 1
        for rank in ranks:
            if seen[rank] != union:
                text = f"this rank sees {len(seen[rank])} of the {len(union)} of its machine: it cannot map the others' memory"
                findings[rank].append(Finding(WARN, "GPUs", text, _ALL))
            if apart:
                text = "ranks of a machine are in different PID or IPC namespaces: they cannot map each other's GPU memory (CUDA IPC)"
                what = "one container per host; or start each with --ipc=host --pid=host (docker), without --pid or --ipc (apptainer)"
                findings[rank].append(Finding(WARN, "GPUs", text, what))
            if len(ranks) > len(union):
                text = f"{len(ranks)} ranks of a machine share {counted(len(union), 'GPU')}: their kernels take turns"
                what = "start as many ranks as GPUs; or nvidia-cuda-mps-control -d before, so that kernels of several ranks run at once"
                findings[rank].append(Finding(NOTE, "GPUs", text, what))
    return findings


def main() -> None:
    """Run the process that asks the driver."""
    print(json.dumps(survey()))


if __name__ == "__main__":
    main()
