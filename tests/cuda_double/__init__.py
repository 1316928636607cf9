"""A stand-in for the CUDA driver, at the level of its C functions, so that code for GPUs runs where there is none.

    with cuda_double.installed() as double:      # hpcoll.runtime.gpu.cuda.driver() drives it meanwhile
        array = double.Array((4, 5), np.float32).fill(1)
        ...

Tests have it as the fixture ``double`` (tests/conftest.py), with the options of `installed` as those of the marker ``double``.

Memory of the GPU cannot be touched by the host. Work on streams is done as late as it may be: when the host learns that an event
behind it has happened. Two pieces of work that touch the same bytes, and that nothing orders, are noted as a race.
"""

from cuda_double.arrays import Array, Dlpack
from cuda_double.double import Double, install
from cuda_double.fixtures import blamed, installed
from cuda_double.streams import Race

__all__ = ["Array", "Dlpack", "Double", "Race", "blamed", "install", "installed"]
