"""A trial of the MPI library with addresses of GPU memory, in a process of its own, remembered on disk.

A library's own word proves little: one without any CUDA code sends GPU memory well when its transport (UCX) recognises it, and one that
has it may lack it at run time. A wrong guess ends a process, so another one tries. Where that hangs, it is ended with all that it started,
and the answer is no.
"""

import hashlib
import os
import platform
import signal
import tempfile
from contextlib import suppress
from functools import lru_cache

from hpcoll.base.children import python
from hpcoll.base.disk_cache import kept
from hpcoll.base.launchers import PREFIXES
from hpcoll.runtime.gpu.device import Gpu

_LIMIT_S = 15
_TAKES, _NOT = b"arrives", b"does not arrive"
_TEXT = "hpcoll: trying whether the MPI library takes GPU memory, once"
# Beginnings of variables by which users pick libraries and transports; none of them differs from job to job.
_SETTINGS = (
    "LD_",
    "MPI4PY_LIBMPI",
    "UCX_",
    "FI_",
    "MPIR_CVAR_",
    "MPICH_",
    "I_MPI_FABRICS",
    "I_MPI_OFFLOAD",
    "MV2_USE_",
    "PSM",
    "OMPI_MCA_pml",
    "OMPI_MCA_btl",
    "OMPI_MCA_mtl",
    "OMPI_MCA_smsc",
    "OMPI_MCA_opal_",
    "OMPI_MCA_accelerator",
)
_TRIAL = """
import sys
from mpi4py import MPI
from hpcoll.runtime.gpu.cuda import driver

def trial(nbytes):
    one, other = found.allocate(nbytes), found.allocate(nbytes)
    found("cuMemsetD8Async", one, 37, nbytes, 0)
    found("cuMemsetD8Async", other, 0, nbytes, 0)
    found("cuStreamSynchronize", 0)
    send, recv = (MPI.buffer.fromaddress(address, nbytes) for address in (one, other))
    MPI.COMM_SELF.Sendrecv([send, nbytes, MPI.BYTE], 0, 0, [recv, nbytes, MPI.BYTE], 0, 0)
    home = found.allocate_pinned(nbytes)
    found.copy(home, other, nbytes, 0)
    found("cuStreamSynchronize", 0)
    return set(bytes(MPI.buffer.fromaddress(home, nbytes))) == {37}

found = driver()
found("cuCtxSetCurrent", found.primary_context(int(sys.argv[1])))
print("arrives" if all(trial(nbytes) for nbytes in (8, 1 << 16, 1 << 22)) else "does not arrive")
"""


@lru_cache
def takes_gpu_memory(gpu: Gpu) -> bool:
    """Say whether a message of GPU memory arrives, in a process of its own with this one's libraries and settings.

    Tried once per host, GPU, driver, MPI library and settings of it; the answer is kept beside what was compiled.
    """
    return kept(f"gpu-memory-{_digest(gpu)}", lambda: _tried(gpu.ordinal), _TEXT) == _TAKES


def _digest(gpu: Gpu) -> str:
    """Return a digest of all that the answer depends on."""
    from mpi4py import MPI

    driver, ordinal = gpu.driver, gpu.ordinal
    where = platform.node(), driver.version(), driver.device_name(ordinal), driver.bus_id(ordinal)
    settings = sorted(item for item in os.environ.items() if item[0].startswith(_SETTINGS))
    return hashlib.sha256(repr((where, MPI.Get_library_version(), settings, _TRIAL)).encode()).hexdigest()[
        :32
    ]


def _tried(ordinal: int) -> bytes:
    """Return the other process's answer; no, where it fails or takes too long."""
    import subprocess

    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    with tempfile.TemporaryFile() as said:  # no pipe, which something that it started might hold
        try:
            one = subprocess.Popen(
                python(_TRIAL, str(ordinal)),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return _NOT
        try:
            status = one.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            return _NOT
        finally:
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
        said.seek(0)
        return _TAKES if status == 0 and said.read().strip() == _TAKES else _NOT
