#!/usr/bin/env bash
# A Slurm of two nodes on one machine, for as long as a command runs:
#
#   tests/cluster/slurm.sh bash                     a shell on the head node: sinfo, srun -N 2 hostname, sbatch ...
#   tests/cluster/slurm.sh srun -N 2 hostname
#
# Real daemons (munged, slurmctld, two slurmd) from Debian's packages, which INSTALL=yes lets root's call install. Each node has a host name, a
# network, processes, /dev/shm and /run/local (TMPDIR) of its own; a bridge connects the nodes. What they keep is in memory, on the /run
# of their own mount namespace. All are children of one "unshare --kill-child": when the command ends, or this process is killed in any
# way, nothing is left. Each node promises two GPUs that are not there, so that Slurm takes jobs which ask for some.
#
# Status: the command's; 77 when this machine cannot do it, with the reason; 1 when Slurm does not start, with its logs.
set -u -o pipefail
export PATH=$PATH:/usr/sbin:/sbin    # the daemons, where the caller does not look for programs

NODES=2
CPUS=4            # that a node claims to have
START_LIMIT_S=60
PACKAGES="munge slurmctld slurmd slurm-client libpmix-dev iproute2"    # libpmix-dev holds the libpmix.so that srun --mpi=pmix opens
namespaces=(--net --uts --ipc --mount --pid --fork --kill-child --mount-proc)

skip() {
    echo "slurm.sh: skipped: $*" >&2
    exit 77
}

broken() {
    tail -n 30 /run/*.out /run/*.log >&2
    echo "slurm.sh: Slurm did not start: $*" >&2
    exit 1
}

need() { # the programs; their packages are installed where the caller says so
    local program missing=()
    for program in munged slurmctld slurmd srun ip; do command -v "$program" >/dev/null || missing+=("$program"); done
    [ -e /usr/include/pmix.h ] || [ -n "$(find /usr/lib -path '*pmix*' -name pmix.h -print -quit)" ] || missing+=(libpmix-dev)
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "${INSTALL-}" = yes ] || skip "no ${missing[*]}: apt-get install $PACKAGES, or let this script do it with INSTALL=yes"
    # shellcheck disable=SC2086  # a list
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $PACKAGES; } >&2 </dev/null ||
        skip "no ${missing[*]}, and apt-get could not install $PACKAGES"
}

config() {
    cat <<END
ClusterName=hpcoll
SlurmctldHost=head(10.77.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/run/local/munge.socket
StateSaveLocation=/run/slurmctld
SlurmdSpoolDir=/run/%n
TmpFS=/run/local
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/%n.pid
SlurmctldLogFile=/run/slurmctld.log
SlurmdLogFile=/run/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=1,sched_interval=1,bf_interval=1
KillWait=2
MpiDefault=none
GresTypes=gpu
NodeName=DEFAULT CPUs=$CPUS Gres=gpu:2
END
    for ((i = 1; i <= NODES; i++)); do echo "NodeName=node$i NodeAddr=10.77.0.1$i Port=$((7000 + i))"; done
    echo "PartitionName=all Nodes=ALL Default=YES MaxTime=60"
}

authenticate() { # a munged of its own for each node: it refuses a credential that it has seen
    local own=/run/local/munge
    mount -t tmpfs tmpfs /run/local
    munged --socket $own.socket --key-file /run/munge.key --log-file $own.log --pid-file $own.pid --seed-file $own.seed
}

node() { # node NUMBER: becomes a node, when its network is there
    hostname "node$1"
    mount -t tmpfs tmpfs /dev/shm
    authenticate
    ip link set lo up
    until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
    ip addr add "10.77.0.1$1/24" dev eth0
    ip link set eth0 up
    exec slurmd -D -N "node$1"
}

head() { # becomes the head node, starts the others, runs the command
    local i outer
    { mount -t tmpfs tmpfs /run && hostname head; } || skip "no mounts or no host name in a namespace"
    { ip link set lo up && ip link add cluster type bridge && ip addr add 10.77.0.1/24 dev cluster && ip link set cluster up; } ||
        skip "no bridge in a network namespace"
    mkdir -m 755 /run/local /run/slurmctld
    for i in 0 1; do mknod "/run/gpu$i" c 1 3; done
    echo "127.0.0.1 localhost" >/run/hosts
    echo "10.77.0.1 head" >>/run/hosts
    for ((i = 1; i <= NODES; i++)); do echo "10.77.0.1$i node$i"; done >>/run/hosts
    mount --bind /run/hosts /etc/hosts
    config >/run/slurm.conf
    echo "Name=gpu File=/run/gpu[0-1]" >/run/gres.conf
    export SLURM_CONF=/run/slurm.conf TMPDIR=/run/local
    (umask 077 && dd if=/dev/urandom of=/run/munge.key bs=128 count=1 2>/dev/null)
    authenticate
    for ((i = 1; i <= NODES; i++)); do
        mkdir -m 755 "/run/node$i"
        unshare "${namespaces[@]}" "$0" --node "$i" >"/run/node$i.out" 2>&1 </dev/null &
        until outer=$(cat "/proc/$!/task/$!/children") && [ -n "$outer" ]; do
            kill -0 $! || broken "node$i ended"
            sleep 0.05
        done
        ip link add "node$i" type veth peer name eth0 netns "${outer% }" && ip link set "node$i" master cluster up
    done
    slurmctld -D >/run/slurmctld.out 2>&1 </dev/null &
    until [ "$(sinfo -h -o %D -t idle 2>/dev/null)" = "$NODES" ]; do
        [ "$SECONDS" -lt "$START_LIMIT_S" ] || broken "not all nodes are idle after $START_LIMIT_S s"
        sleep 0.1
    done
    "$@"
}

case ${1-} in
--node) node "$2" ;;
--head) shift && head "$@" ;;
'') sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit 2 ;;
*)
    [ "$(id -u)" -eq 0 ] || skip "Slurm's nodes need root"
    unshare "${namespaces[@]}" true 2>/dev/null || skip "no namespaces: unshare ${namespaces[*]} is refused"
    need
    exec unshare "${namespaces[@]}" "$0" --head "$@"
    ;;
esac
