"""The double of the CUDA driver keeps the driver's rules about memory and handles."""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import cuda_double
import numpy as np
import pytest
from cuda_double import Double
from driver_cases import N, driver, filled

from hpcoll.base.errors import DeviceError
from hpcoll.runtime.gpu.cuda import Attribute, DeviceAttribute, IpcHandle, MemoryType

pytestmark = pytest.mark.double(forgives=("races", "failures"))
TESTS = Path(cuda_double.__file__).parents[1]


def child(code: str, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=environment, text=True, stdout=subprocess.PIPE
    )


def test_host_touches_no_gpu_memory() -> None:
    """Where it does the process ends, but for managed memory that lives and a double that is readable: here four forks of one process."""
    code = """if True:
        import ctypes, os, resource, cuda_double
        from hpcoll.runtime.gpu import cuda
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        READABLE = {"readable": True}
        for options, memory, frees in ({}, "device", 0), ({}, "managed", 0), ({}, "managed", 1), (READABLE, "device", 0):
            pid = os.fork()
            if not pid:
                double = cuda_double.install(**options)
                cuda.driver()
                address = double.allocate(100, memory)
                double.array(address, 100)[3] = 42
                if frees:
                    double.release(address)
                os._exit(ctypes.c_ubyte.from_address(address + 3).value)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        """
    with child(code) as process:
        assert process.communicate()[0].split() == [str(-signal.SIGSEGV), "42", str(-signal.SIGSEGV), "42"]


def test_pointers_are_known_until_freed(double: Double) -> None:
    base, other = driver().allocate(N), driver().allocate(N)
    assert base % 512 == other % 512 == 0
    assert abs(base - other) > N + 4096
    assert driver().address_range(base + 5) == (base, N)
    assert driver().attribute(base + N - 1, Attribute.MEMORY_TYPE) == MemoryType.DEVICE
    assert driver().attribute(base + N, Attribute.MEMORY_TYPE) == MemoryType.UNKNOWN
    number = driver().attribute(base, Attribute.BUFFER_ID)
    assert number != driver().attribute(other, Attribute.BUFFER_ID)
    driver()("cuMemFree_v2", base)
    value = ctypes.c_uint64()
    assert double.library.cuPointerGetAttribute(ctypes.addressof(value), Attribute.MEMORY_TYPE, base) == 1
    assert driver().allocate(N) == base  # an address comes back, a number does not
    assert driver().attribute(base, Attribute.BUFFER_ID) not in (number, 0)


@pytest.mark.double(host_pointers=False, forgives=("failures",))
def test_registered_memory_at_another_address(double: Double) -> None:
    """Kernels do not reach it at the host's, and the driver says so; memory that it allocates itself they do."""
    mine, pinned, there = np.zeros(N, np.uint8), driver().allocate_pinned(N), ctypes.c_uint64()
    assert driver().device_attribute(0, DeviceAttribute.CAN_USE_HOST_POINTER) == 0
    assert double.library.cuMemHostRegister_v2(mine.ctypes.data, N, 3) == 0
    assert double.library.cuMemHostGetDevicePointer_v2(ctypes.byref(there), mine.ctypes.data, 0) == 0
    assert there.value != mine.ctypes.data
    assert double.library.cuMemsetD8Async(mine.ctypes.data, 1, N, 0) == 700
    driver()("cuMemHostUnregister", mine.ctypes.data)
    with pytest.raises(DeviceError, match="kernels reach host memory at"):
        driver().register(mine.ctypes.data, N)
    assert driver().attribute(mine.ctypes.data, Attribute.MEMORY_TYPE) == MemoryType.UNKNOWN
    driver()("cuMemsetD8Async", pinned, 1, N, 0)
    double.finish()


def test_gpus_are_told_apart() -> None:
    double = cuda_double.install(gpus=(3, 1), memory_nbytes=1 << 20)
    assert driver().count == 2
    assert driver().bus_id(0) != driver().bus_id(1)
    assert driver().current_ordinal() == 0
    driver()("cuCtxSetCurrent", driver().primary_context(1))
    assert driver().current_ordinal() == 1
    there = driver().allocate(N)
    assert driver().attribute(there, Attribute.DEVICE_ORDINAL) == 1
    stream = driver().stream()
    driver()("cuCtxSetCurrent", driver().primary_context(0))
    event = driver().event()
    assert double.library.cuEventRecord(event, stream) == 400  # of another GPU
    assert double.library.cuMemsetD8Async(there, 1, N, 0) == 700
    with pytest.raises(DeviceError, match="OUT_OF_MEMORY"):
        driver().allocate(2 << 20)
    double.uninstall()


PEER = """if True:
    import sys, time, cuda_double
    from hpcoll.runtime.gpu import cuda
    double = cuda_double.install(gpus=(int(sys.argv[2]),), peer_access=sys.argv[2] == "0")
    driver = cuda.driver()
    try:
        base = driver.open(bytes.fromhex(sys.argv[1]))
    except cuda.DeviceError as error:
        sys.exit(str(error.code))
    try:
        driver.open(bytes.fromhex(sys.argv[1]))
    except cuda.DeviceError as error:
        assert error.code == cuda.ALREADY_MAPPED
    else:
        raise AssertionError("opened twice")
    nbytes = driver.address_range(base)[1]
    driver("cuMemsetD8Async", base + 3, 5, 7, driver.stream())
    print(driver.attribute(base, cuda.Attribute.MEMORY_TYPE), nbytes, double.array(base, nbytes).sum())
    double.finish()
    driver("cuIpcCloseMemHandle", base)
    assert driver.attribute(base, cuda.Attribute.MEMORY_TYPE) == 0
    """


def peer(handle: bytes, gpu: int = 0) -> tuple[str, int]:
    code = PEER.replace("sys.exit(str(error.code))", "print(error.code); sys.exit(1)")
    with child(code, handle.hex(), str(gpu)) as process:
        return process.communicate()[0].strip(), process.returncode


def test_memory_that_cannot_be_opened(double: Double) -> None:
    base = filled(double, 1)
    handle = driver().export(base)
    with pytest.raises(DeviceError, match="201"):
        driver().open(handle)
    assert peer(handle, 1) == ("217", 1)
    assert peer(bytes(64)) == ("400", 1)
    driver()("cuMemFree_v2", base)
    filled(double, 1)  # another file of the same number
    assert peer(handle) == ("400", 1)


def test_memory_that_cannot_be_exported(double: Double) -> None:
    base = filled(double, 1)
    for address in (double.pooled(N), double.managed(N), driver().allocate_pinned(N), base + 512):
        assert double.library.cuIpcGetMemHandle(ctypes.byref(IpcHandle()), address) == 1
        assert address == base + 512 or driver().attribute(address, Attribute.CAN_BE_EXPORTED) == 0
    assert driver().attribute(base, Attribute.CAN_BE_EXPORTED) == 1
    double.ipc = False
    with pytest.raises(DeviceError, match="801"):
        driver().export(base)


def test_wrong_handles_are_refused(double: Double) -> None:
    library, base = double.library, filled(double, 1)
    stream, event = driver().stream(), driver().event()
    driver()("cuStreamDestroy_v2", stream)
    driver()("cuEventDestroy_v2", event)
    out = ctypes.byref(ctypes.c_void_p())
    assert (
        library.cuMemsetD8Async(base, 0, 1, stream)
        == library.cuStreamSynchronize(stream)
        == library.cuStreamDestroy_v2(5)
        == 400
    )
    assert (
        library.cuEventQuery(event)
        == library.cuEventRecord(event, None)
        == library.cuStreamWaitEvent(None, event, 0)
        == 400
    )
    assert (
        library.cuModuleGetFunction(out, 7, b"fold")
        == library.cuLaunchKernel(7, *[1] * 6, 0, None, None, None)
        == 400
    )
    assert (
        library.cuMemFree_v2(base + 1)
        == library.cuMemFreeHost(base)
        == library.cuIpcCloseMemHandle(base)
        == 1
    )
    assert library.cuMemFree_v2(driver().allocate_pinned(N)) == 1
    assert library.cuMemFree_v2(0) == 0
    assert library.cuDeviceGet(ctypes.byref(ctypes.c_int()), 1) == 101
    assert driver().error_name(400) == "CUDA_ERROR_INVALID_HANDLE"


def test_nothing_works_before_it_is_started() -> None:
    double = cuda_double.install()
    assert double.library.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), N) == 3
    double.uninstall()


def test_calls_fail_when_told_to(double: Double) -> None:
    double.fail("cuMemAlloc_v2", 2, after=1)
    driver().allocate(N)
    with pytest.raises(DeviceError, match="OUT_OF_MEMORY"):
        driver().allocate(N)
    driver().allocate(N)
    assert double.calls["cuMemAlloc_v2"] == 3


def test_captured_streams_take_no_work(double: Double) -> None:
    stream, base = double.stream(), filled(double, 1)
    double.capture(stream)
    assert driver().is_capturing(stream)
    assert double.library.cuMemsetD8Async(base, 0, 1, stream) == 900
    double.capture(stream, False)
    assert not driver().is_capturing(stream)
