# Facts about one cluster: every job here reads them. Edit them, or give them in the environment. Nothing is set by default that could
# break a site. For account and partition, read this file before submitting, too:    . jobs/site.sh && sbatch jobs/bench.sbatch
# shellcheck shell=bash

ACCOUNT=${ACCOUNT-}                      # that pays; empty: Slurm's default
PARTITION=${PARTITION-}                  # to run in; empty: Slurm's default
MODULES=${MODULES-}                      # to load, "gcc/13.2 openmpi/5.0.6": mpi4py takes the MPI library that the loader then finds
PYTHON=${PYTHON:-$(if [ -x .venv/bin/python ]; then echo "$PWD/.venv/bin/python"; else command -v python3; fi)}    # that has hpcoll

# What starts the ranks: mpirun, or, for srun, its --mpi=: pmix (Open MPI), pmi2 (MPICH, Intel MPI), cray_shasta (HPE Cray).
# mpirun finds Slurm's nodes itself and fits the library that it comes with: the safe one.
LAUNCHER=${LAUNCHER:-mpirun}
MPIRUN_ARGS=${MPIRUN_ARGS-}              # Open MPI: "--map-by node" deals ranks to nodes in turn, "--bind-to none". MPICH: "-ppn 1"
SRUN_ARGS=${SRUN_ARGS-}                  # "--distribution=cyclic" deals them in turn; "--cpu-bind=cores"

# Network of TCP connections: "ib0", or "10.1.0.0/16" (Open MPI only). For hosts that have several (docker0, a management network) of which
# some lead nowhere: the sign is a job that hangs at its first message.
INTERFACE=${INTERFACE-}

# The rest decides how messages travel. The libraries choose well on most sites; set one only against a symptom, for all ranks alike.
#
# Open MPI
#   export OMPI_MCA_pml=ucx                        refuse to run rather than fall back to TCP, where InfiniBand should be used
#   export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,sm,tcp    shared memory and TCP only: to see whether UCX is what fails
#   export OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi        libfabric: Omni-Path, Slingshot, EFA
#   export OMPI_MCA_pml_ucx_tls=any OMPI_MCA_pml_ucx_devices=any    UCX where there is no InfiniBand
# UCX: Open MPI's pml ucx, and MPICH built with ch4:ucx
#   export UCX_NET_DEVICES=mlx5_0:1                this port (list: ucx_info -d), where one of several is down or slow
#   export UCX_TLS=rc,sm,self                      these transports; ud or dc instead of rc beyond some thousand ranks, tcp to compare
#   export UCX_TLS=rc,sm,self,cuda_copy,cuda_ipc,gdr_copy           the same for messages from GPU memory (HPCOLL_CUDA_PATH=direct)
#   export UCX_MEMTYPE_CACHE=n                     when GPU arrays of a pool are taken for host memory
# MPICH and Intel MPI
#   export MPIR_CVAR_CH4_NETMOD=ofi                MPICH from PyPI has ucx and ofi; srun --mpi=pmi2 wants ofi (README.md)
#   export FI_PROVIDER=tcp                         libfabric's: verbs, psm3 (Omni-Path), cxi (Slingshot), efa; tcp to compare
#   export I_MPI_PMI_LIBRARY=/usr/lib/x86_64-linux-gnu/libpmi2.so   Intel MPI under srun --mpi=pmi2: Slurm's libpmi2
# Slurm's PMIx
#   export PMIX_MCA_psec=native                    Open MPI from PyPI under srun --mpi=pmix, where Slurm's PMIx asks for munge
# hpcoll (docs/reference/environment.md): HPCOLL_TUNING=FILE from jobs/tune.sbatch, HPCOLL_SHM, HPCOLL_CUDA_PATH; hpcoll doctor lists what is set
