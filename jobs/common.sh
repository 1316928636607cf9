# What the jobs here share: how ranks start, and where results go. Sourced in the root of the checkout, which all nodes must see.
# shellcheck shell=bash
set -euo pipefail
. jobs/site.sh

RESULTS=${RESULTS:-jobs/results}         # folder, on a file system that all nodes see
NRANKS=${NRANKS:-${SLURM_NTASKS-}}       # of the job; Slurm says how many
HOSTFILE=${HOSTFILE-}                    # without Slurm: file of hosts, "node1 slots=4" a line (Open MPI) or "node1:4" (MPICH)

[ -n "$NRANKS" ] || { echo "${0##*/}: how many ranks? sbatch -N 2 --ntasks-per-node=4, or without Slurm NRANKS=8" >&2 && exit 2; }
set +u    # "module" is the site's own code
for module in $MODULES; do module load "$module"; done
set -u
export PYTHON PYTHONUNBUFFERED=1
export SLURM_GPU_BIND=${SLURM_GPU_BIND:-none}    # every rank sees its node's GPUs: what is hidden from a rank, CUDA IPC cannot reach
if [ -n "${SLURM_CPUS_PER_TASK-}" ]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi    # srun does not inherit it
if [ -n "$INTERFACE" ]; then
    export OMPI_MCA_btl_tcp_if_include=$INTERFACE PRTE_MCA_prte_if_include=$INTERFACE    # Open MPI: messages; start-up
    export FI_TCP_IFACE=$INTERFACE HYDRA_IFACE=$INTERFACE                                # MPICH and Intel MPI
fi
MPIRUN=${PYTHON%/*}/mpirun
[ -x "$MPIRUN" ] || MPIRUN=mpirun
# Variables that decide how the job runs: recorded, and sent to hosts that ssh reaches. MPICH's mpirun sends all, Open MPI's those with MCA.
settings='^(HPCOLL|UCX|FI|OMP|OPENBLAS|CUDA|NCCL)_|_MCA_|^MPIR_CVAR_|^MPICH_|^I_MPI_|^LD_LIBRARY_PATH$|^PYTHON'

variables() { compgen -e | grep -E "$settings" || true; } # names of those that are set

launch() { # launch ARGUMENTS...: Python on all ranks. "-m mpi4py", mpirun and -K1 see to it that a rank that fails ends all of them
    local name where=()
    if [ "$LAUNCHER" != mpirun ]; then
        # shellcheck disable=SC2086  # a list
        srun --mpi="$LAUNCHER" -n "$NRANKS" -K1 $SRUN_ARGS "$PYTHON" -m mpi4py "$@" </dev/null
        return
    fi
    if [ -n "$HOSTFILE" ]; then where=(--hostfile "$HOSTFILE"); fi
    if [[ -n $HOSTFILE && $("$MPIRUN" --version) == *'Open MPI'* ]]; then
        for name in $(variables); do [[ $name == *_MCA_* ]] || where+=(-x "$name"); done
    fi
    # shellcheck disable=SC2086  # a list
    "$MPIRUN" "${where[@]}" -n "$NRANKS" $MPIRUN_ARGS "$PYTHON" -m mpi4py "$@" </dev/null
}

begin() { # begin JOB KNOB...: opens the result file; ends here unless all ranks found each other
    local name knobs=()
    job=$1 file=$RESULTS/$1-$(date +%Y%m%d-%H%M%S)-${SLURM_JOB_ID:-$$}.jsonl
    for name in LAUNCHER MPIRUN_ARGS SRUN_ARGS HOSTFILE "${@:2}" $(variables); do knobs+=("$name=${!name}"); done
    mkdir -p "$RESULTS"
    trap 'finish $?' EXIT
    trap 'exit 143' TERM && trap 'exit 130' INT
    launch jobs/results.py begin "$file" "$job" "$NRANKS" "${knobs[@]}"
}

add() { "$PYTHON" jobs/results.py add "$file" "$job" "$1"; } # add DOCUMENT: what was measured goes to the result file

finish() { # finish STATUS: the last line
    [ ! -e "$file" ] || printf '{"kind": "end", "status": %d, "seconds": %d}\n' "$1" "$SECONDS" >>"$file"
    rm -f "$file".*.part
    echo "$job: $([ "$1" = 0 ] && echo "done, results in $file" || echo "FAILED with status $1")"
}
