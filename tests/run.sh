#!/usr/bin/env bash
# All checks, on a machine with nothing but Python 3.10 or newer and a package index that pip reaches.
#
#   tests/run.sh                         everything
#   tests/run.sh lint                    ruff, mypy, and shellcheck where it is installed
#   tests/run.sh unit                    the tests that need no MPI
#   tests/run.sh cluster                 the tests that emulate several hosts, where the machine allows that
#   tests/run.sh mpi [NRANKS] [LIBRARY]  the tests under mpiexec; LIBRARY is openmpi or mpich
#
# All other arguments go to pytest: tests/run.sh mpi 3 openmpi -x -k ring
# shellcheck disable=SC2317,SC2329  # stage calls functions by name
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1

PYTHON=${PYTHON:-python3}            # makes the environments
NRANKS=${NRANKS:-1 2 3 4 5}          # one run of tests/mpi for each
LIBRARIES=${LIBRARIES:-openmpi mpich}
export MPI_LIMIT_S=${MPI_LIMIT_S:-900}    # seconds for one run of tests/mpi

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
summary=()
failed=0

stage() { # stage TITLE COMMAND...: runs one stage and notes how it ended
    local title=$1 start=$SECONDS verdict=ok
    shift
    printf '\n==== %s\n' "$title"
    "$@" || { verdict=FAILED && failed=$((failed + 1)); }
    summary+=("$(printf '%-6s %5d s  %s' "$verdict" $((SECONDS - start)) "$title")")
    [ "$verdict" = ok ]
}

finish() { # one line per stage, then one line for all tests
    printf '\n==== summary\n'
    printf '%s\n' "${summary[@]}"
    find "$results" -name 'rank-*' -exec cat {} + |
        awk -v stages="$failed" '{ p += $1; f += $3 } END { printf "%d passed, %d failed; stages failed: %d\n", p, f, stages }'
    [ "$failed" -eq 0 ]
    exit
}

environment() { # environment LIBRARY: .venv-LIBRARY, made again only when what it depends on has changed
    local venv=.venv-$1 stamp
    stamp=$("$PYTHON" --version && pwd && cat setup.cfg pyproject.toml) || return
    [ "$stamp" = "$(cat "$venv/stamp" 2>/dev/null)" ] && return
    "$PYTHON" -m venv --clear "$venv" &&
        "$venv/bin/pip" install -qq --editable ".[dev,$1]" &&
        printf '%s\n' "$stamp" >"$venv/stamp"
}

types() { # mypy sees the packages where they are installed: kernels inside hpcoll
    rm -rf build/typed && mkdir -p build/typed/hpcoll &&
        ln -s "$PWD"/hpcoll/* "$PWD/kernels" build/typed/hpcoll/ &&
        "$bin/mypy" build/typed/hpcoll jobs
}

lint() {
    stage "ruff" "$bin/ruff" check .
    stage "mypy: hpcoll, kernels, jobs" types
    if command -v shellcheck >/dev/null; then
        stage "shellcheck" shellcheck tests/run.sh tests/cluster/*.sh jobs/*.sh jobs/*.sbatch .ci/run
    fi
}

unit() {
    mkdir "$results/unit"
    TEST_TOKENS=$results/unit stage "tests/unit" "$bin/python" -m pytest -q -n "$(nproc)" tests/unit "$@"
}

cluster() {
    mkdir "$results/cluster"
    TEST_TOKENS=$results/cluster stage "tests/cluster" env -u NRANKS "$bin/python" -m pytest -q tests/cluster "$@"
}

mpi() { # mpi NRANKS LIBRARY [PYTEST ARGUMENTS]
    local nranks=$1 library=$2
    shift 2
    mkdir "$results/mpi-$nranks-$library"
    TEST_TOKENS=$results/mpi-$nranks-$library stage "tests/mpi on $nranks ranks, $library" \
        ".venv-$library/bin/python" tests/mpi_run.py "$nranks" tests/mpi "$@"
}

stages=()
while [ $# -gt 0 ]; do
    case $1 in
    lint | unit | cluster | mpi) stages+=("$1") ;;
    [0-9] | [0-9][0-9]) NRANKS=$1 ;;
    openmpi | mpich) LIBRARIES=$1 ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit ;;
    *) break ;;
    esac
    shift
done
[ ${#stages[@]} -gt 0 ] || stages=(lint unit cluster mpi)
bin=.venv-${LIBRARIES%% *}/bin # all but mpi run in the first environment
case " ${stages[*]} " in
*" mpi "*) needed=$LIBRARIES ;;
*) needed=${LIBRARIES%% *} ;;
esac

for library in $needed; do
    stage "environment .venv-$library" environment "$library" || finish
done
for name in "${stages[@]}"; do
    case $name in
    lint) lint ;;
    unit) unit "$@" ;;
    cluster) cluster "$@" ;;
    mpi) for library in $LIBRARIES; do for n in $NRANKS; do mpi "$n" "$library" "$@"; done; done ;;
    esac
done
finish
