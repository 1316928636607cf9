from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyHpcoll(PythonPackage, CudaPackage):
    """Fast, proven MPI collectives for Python programs that are written with mpi4py.

    The MPI library is the one of py-mpi4py: ``py-hpcoll ^openmpi``, ``py-hpcoll ^mpich``.
    """

    pypi = "hpcoll/hpcoll-@VERSION@.tar.gz"

    license("BSD-3-Clause")

    version("@VERSION@", sha256="@SHA256@")

    variant("torch", default=False, description="A backend of torch.distributed")

    depends_on("mpi", type=("build", "run"))

    with default_args(type="build"):
        depends_on("py-setuptools@64:")

    with default_args(type=("build", "run")):
        depends_on("python@3.10:")
        depends_on("py-ml-dtypes@0.4:")
        depends_on("py-mpi4py@4.0:")
        depends_on("py-numba@0.60:")
        depends_on("py-numpy@1.26:")
        depends_on("py-torch@2.9:", when="+torch")
        # kernels for GPU memory need numba-cuda besides, for which Spack has no recipe
        for arch in CudaPackage.cuda_arch_values:
            depends_on(f"py-cupy+cuda cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")

    conflicts("cuda_arch=none", when="+cuda", msg="CuPy is built for a kind of GPU: cuda_arch=90")

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def two_ranks(self):
        hpcoll = Executable(self.prefix.bin.hpcoll)
        hpcoll("run", "-n", "2", "-m", "hpcoll", "bench", "allreduce", "-e", "1K", "-n", "5")
