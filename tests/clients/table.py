"""The test suites of other packages that run with hpcoll in the place of ``MPI.COMM_WORLD``, and the cases that do not."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

NO_GPU = ("cupy", "numba")  # as mpi4py's own runner leaves them out
CPU_TORCH = "torch==2.13.0+cpu"  # a third of the size of others
# that sources are built with, beside what the environments have
TOOLS = (
    "cython",
    "setuptools-scm",
    "vcs-versioning",
)
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Client(NamedTuple):
    """A package whose tests run with hpcoll and without; cases are called as pytest calls them: ``test_module.py::Class::case``.

    Attributes:
        package: What pip calls its sources; without a version, that of the environments. Empty where the package index has no tests of
            it: they run where ``$CLIENT_SOURCES`` has a folder with its name and its sources.
        tests: Where its sources have the tests.
        runs: Patterns of the modules that run, for each number of ranks.
        ours: A folder beside this module with tests that run as well: of what hpcoll adds to the package.
        most: How many times as long all cases may take with hpcoll as without.
        installs: What pip installs for it, without dependencies.
        unlocked: More of that, which no public index has: pip must be told of a folder with it, and no hash is known.
        library: A C library that it is compiled against; where there is none, its tests are skipped.
        hidden: Packages that a module finds missing.
        mocked: Packages that it imports, and none of these tests uses.
        left_out: Patterns of cases that do not run, and why.
        differs: Patterns of cases that may fail with hpcoll only, and why.
        exhausts: What it runs out of without hpcoll as well, by MPI library and number of ranks, with which it does not run.
    """

    package: str
    tests: str
    runs: Mapping[int, tuple[str, ...]]
    most: float
    ours: str = ""
    installs: tuple[str, ...] = ()
    unlocked: tuple[str, ...] = ()
    library: str = ""
    hidden: Mapping[str, tuple[str, ...]] = NOTHING
    mocked: tuple[str, ...] = ()
    left_out: Mapping[str, str] = NOTHING
    differs: Mapping[str, str] = NOTHING
    exhausts: Mapping[tuple[str, int], str] = NOTHING


COLLECTIVES = ("test_cco_*.py", "test_comm*.py")
OF_MPI4PY = (
    *COLLECTIVES,
    *(
        "test_p2p_*.py",
        "test_group.py",
        "test_request.py",
        "test_rma*.py",
        "test_win.py",
        "test_threads.py",
        "test_pickle.py",
    ),
    *(
        "test_objmodel.py",
        "test_subclass.py",
        "test_handle.py",
        "test_attributes.py",
        "test_errhandler.py",
        "test_msgspec.py",
    ),
    *("test_msgzero.py", "test_topology.py", "test_ulfm.py", "test_util_pkl5.py", "test_util_sync.py"),
)
OF_PYLOPS = (
    *(
        "test_blockdiag.py",
        "test_distributedarray.py",
        "test_eigs.py",
        "test_fredholm.py",
        "test_halo.py",
        "test_linearop.py",
    ),
    *(
        "test_matrixmult.py",
        "test_nonstatconvolve.py",
        "test_prox.py",
        "test_solver.py",
        "test_stack.py",
        "test_stackedlinearop.py",
    ),
)
CLIENTS = {
    "mpi4py": Client(
        package="mpi4py",
        tests="test",
        runs={**dict.fromkeys((1, 2, 3), OF_MPI4PY), 5: COLLECTIVES},
        most=2.0,  # hardly a call is like one before, and each kind is described in Python first
        left_out={
            "test_rma.py::*World::testStartCompletePostTest": "MPICH's Win_test says yes only when it is asked again, "
            "unless the ranks met in MPI's own barrier: so it is after any other way of waiting for each other"
        },
        differs=dict.fromkeys(
            ("*TopoWorld*::testCartcomm", "*TopoWorld*::testGraphcomm", "*TopoWorld*::testDistgraphcomm*"),
            "MPI.Comm.fromint gives mpi4py's own type to any handle",
        )
        | {
            "*World*::testCommLock": "mpi4py's own bcast takes a lock of its private table, hpcoll's does not need it"
        },
        hidden={"arrayimpl": NO_GPU, "test_msgspec": NO_GPU},
    ),
    "mpi4py-fft": Client(
        package="mpi4py-fft==2.0.6",
        tests="tests",
        runs={
            2: ("test_pencil.py", "test_darray.py"),
            4: ("test_pencil.py", "test_darray.py", "test_mpifft.py"),
        },
        most=1.2,
        installs=("mpi4py-fft==2.0.6",),
        library="fftw3",
    ),
    "heat": Client(
        package="",
        tests="tests",
        runs=dict.fromkeys((2, 3), ("core/test_communication.py", "core/linalg/test_*.py")),
        most=1.2,
        ours="arrays",
        installs=("sympy", "networkx", "jinja2", "filelock", "fsspec", "mpmath", "markupsafe"),
        unlocked=(CPU_TORCH,),
        mocked=("torchvision", "torchvision.transforms"),
        exhausts={
            (
                "mpich",
                3,
            ): "context ids, of which MPICH has 2048: it makes some 2000 communicators and frees none"
        },
    ),
    "pylops-mpi": Client(
        package="pylops-mpi==0.8.0",
        tests="tests",
        runs=dict.fromkeys((2, 4), OF_PYLOPS),
        most=1.2,
        ours="arrays",
        installs=("pylops-mpi==0.8.0", "pylops", "pyproximal"),
    ),
}
