"""Whether the MPI library takes addresses of GPU memory: tried, in a process of its own.

What a library says of itself proves little: one without any CUDA code sends GPU memory well when its transport (UCX) recognises it,
and one that has it may lack it at run time. A wrong guess ends a process, so it is another one that tries.
"""

import os
import sys
from functools import lru_cache

from hpcoll.base.launchers import PREFIXES
from hpcoll.runtime.gpu.device import Gpu

_LIMIT_S = 60
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
print("takes" if all(trial(nbytes) for nbytes in (8, 1 << 16, 1 << 22)) else "takes not")
"""


@lru_cache
def takes_gpu_memory(gpu: Gpu) -> bool:
    """Whether a message of GPU memory arrives, in a process of its own with this one's libraries and settings."""
    import subprocess

    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    command = [sys.executable, "-c", _TRIAL, str(gpu.ordinal)]
    try:
        ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0 and ended.stdout.split() == [b"takes"]
