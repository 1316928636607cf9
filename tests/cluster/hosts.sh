#!/usr/bin/env bash
# An emulated cluster on one machine: runs COMMAND as an MPI job on several hosts that are joined by nothing but a network.
#
#   tests/cluster/hosts.sh -n 4 --ranks-per-host 2 --rate 1gbit -- python job.py
#   tests/cluster/hosts.sh --slots 3,1,2 --map cyclic -- hpcoll bench bcast -b 8M -e 64M
#
#   -n HOSTS             so many hosts: host0, host1, ... (2)
#   --ranks-per-host R   ranks on every host (1)
#   --slots R,R,...      instead of both: ranks on host0, on host1, ...
#   --map ORDER          block (ranks 0 and 1 on host0) or cyclic (rank 0 on host0, rank 1 on host1) (block)
#   --rate RATE          what a host's link carries in each direction: 200mbit, 1gbit (as fast as the machine is)
#   --burst BYTES        what a silent link saves up and then carries at once (1 ms of the rate, at least 70000)
#   --library NAME       openmpi, mpich, or none (that of the mpiexec beside COMMAND, or else in PATH)
#
# The exit status is the command's. Environment and working directory are the caller's, standard input is empty.
# With --library none COMMAND runs once, beside the switch, and starts what it likes: "$HOSTS_SSH" HOST WORDS... runs words
# on a host as ssh would, and $HOSTS_NAMES lists the hosts. All that runs anywhere ends when COMMAND does.
# Needs Linux, root (or user namespaces that anybody may make), iproute2 and util-linux. What is emulated: README.md here.
# shellcheck disable=SC2317,SC2329  # run_openmpi and run_mpich are called by name
set -u -o pipefail
export PATH=$PATH:/usr/sbin:/sbin # tc, where the caller does not look for programs

refuse() { # refuse WORDS...: a mistake of the caller, or something missing
    printf 'hosts.sh: %s\n' "$*" >&2
    exit 2
}

parse() { # parse ARGUMENTS...: sets slots, map, rate, burst, library and command
    local hosts=2 each=1 list='' slot
    map=block rate='' burst='' library='' command=()
    while [ $# -gt 0 ]; do
        case $1 in
        -h | --help) sed -n '2,/^# shellcheck/{/^# shellcheck/d;s/^# \{0,1\}//p}' "$0" && exit ;;
        --) shift && command=("$@") && break ;;
        -*) [[ $# -ge 2 && $2 != -* ]] || refuse "$1 needs a value" ;;&
        -n) hosts=$2 ;;
        --ranks-per-host) each=$2 ;;
        --slots) list=$2 ;;
        --map) map=$2 ;;
        --rate) rate=$2 ;;
        --burst) burst=$2 ;;
        --library) library=$2 ;;
        *) refuse "expected an option or --, got $1; see --help" ;;
        esac
        shift 2
    done
    [[ $hosts =~ ^[1-9][0-9]?$ ]] || refuse "-n must be 1 to 99, got $hosts"
    [ -n "$list" ] || list=$(printf "$each,%.0s" $(seq "$hosts"))
    IFS=, read -r -a slots <<<"$list"
    for slot in "${slots[@]}"; do [[ $slot =~ ^[1-9][0-9]*$ ]] || refuse "ranks of a host must be 1 or more, got $slot"; done
    [[ $map =~ ^(block|cyclic)$ ]] || refuse "--map must be block or cyclic, got $map"
    [[ $rate =~ ^([1-9][0-9]*[kmg]bit)?$ ]] || refuse "--rate must look like 200mbit or 1gbit, got $rate"
    [[ $burst =~ ^([1-9][0-9]{4,7})?$ ]] || refuse "--burst must be 10000 bytes or more, got $burst"
    [[ $library =~ ^(openmpi|mpich|none)?$ ]] || refuse "--library must be openmpi, mpich or none, got $library"
    [ ${#command[@]} -gt 0 ] || refuse "no command; see --help"
}

# ---- the hosts

become_host() { # in the namespaces of the host named $1: memory and files of its own; then waits as its process 1
    hostname "$1" && ip link set lo up && mount -n -t tmpfs tmpfs /dev/shm/own && mkdir /dev/shm/own/{tmp,hosts} &&
        mount -n --bind /dev/shm/hosts /dev/shm/own/hosts && mount -n --move /dev/shm/own /dev/shm && echo ready || exit
    while :; do sleep 1000; done
}

make_host() { # make_host INDEX: starts the host and plugs its cable into the switch
    local name=host$1 port=port$1 holder init ready
    exec {ready}< <(exec unshare "${namespaces[@]}" "$self" --host "$name")
    holder=$!
    read -r -u "$ready" || return
    init=$(tr -d ' ' <"/proc/$holder/task/$holder/children")
    echo "$init" >"/dev/shm/hosts/$name"
    ip link add "$port" type veth peer name eth0 netns "$init" && ip link set "$port" master switch up &&
        in_network "$init" ip address add "10.77.0.$(($1 + 1))/24" dev eth0 &&
        in_network "$init" ip link set eth0 up && limit "$init" "$port"
}

in_network() { # in_network PROCESS COMMAND...
    nsenter --net="/proc/$1/ns/net" "${@:2}"
}

limit() { # limit PROCESS PORT: the rate, in both directions
    # What 1 ms of silence saved up goes at once, so that no rate is lost when the kernel wakes up late on a busy core; it is
    # no less than the largest packet that TCP hands to the link, which would be cut up otherwise. 64 times as much may
    # queue: several hosts that send to one find room, as in the memory of a switch.
    local bits_per_ms=0 saved packet
    case $rate in
    '') return ;;
    *kbit) bits_per_ms=1 ;;
    *mbit) bits_per_ms=1000 ;;
    *gbit) bits_per_ms=1000000 ;;
    esac
    saved=$((${rate%?bit} * bits_per_ms / 8))
    [ "$saved" -ge 70000 ] || saved=70000
    local bucket=(root tbf rate "$rate" burst "${burst:-$saved}" limit $((64 * saved)))
    tc qdisc add dev "$2" "${bucket[@]}" && in_network "$1" tc qdisc add dev eth0 "${bucket[@]}" || return
    [ "${burst:-70000}" -lt 70000 ] || return 0
    packet=(gso_max_size $((burst * 9 / 10)) gro_max_size $((burst * 9 / 10)))
    ip link set dev "$2" "${packet[@]}" && in_network "$1" ip link set dev eth0 "${packet[@]}"
}

make_cluster() { # the switch, the names of the hosts, the hosts, and the way onto them
    local names=("${!slots[@]}") index
    names=("${names[@]/#/host}")
    export TMPDIR=/dev/shm/tmp HOSTS_SSH=/dev/shm/hosts/on HOSTS_NAMES="${names[*]}"
    hostname login && ip link set lo up && mount -n -t tmpfs tmpfs /dev/shm && mkdir /dev/shm/{tmp,hosts,own} &&
        ip link add switch type bridge && ip address add 10.77.0.254/24 dev switch && ip link set switch up || return
    { cat /etc/hosts && echo 10.77.0.254 login && for index in "${!slots[@]}"; do echo "10.77.0.$((index + 1)) host$index"; done; } \
        >/dev/shm/hosts/names && mount -n --bind /dev/shm/hosts/names /etc/hosts || return
    cat >"$HOSTS_SSH" <<'END' && chmod +x "$HOSTS_SSH"
#!/bin/sh
# HOST WORDS...: what ssh does, except that the environment and the working directory come along
while [ "${1#-}" != "$1" ]; do shift; done
read -r init <"/dev/shm/hosts/$1" || exit 255
shift
exec nsenter --target "$init" --net --uts --ipc --mount --pid --wd="$PWD" -- sh -c "$*"
END
    for index in "${!slots[@]}"; do make_host "$index" || return; done
}

# ---- the job

find_mpiexec() { # the one beside the command, or else the one in PATH
    local beside
    beside=$(dirname "$(command -v "${command[0]}" || echo "${command[0]}")")/mpiexec
    if [ -x "$beside" ]; then echo "$beside"; else command -v mpiexec; fi
}

run_openmpi() { # run_openmpi MPIEXEC: idle ranks give their core away, and nothing but TCP goes between hosts
    local index by=slot
    [ "$map" = block ] || by=node
    for index in "${!slots[@]}"; do echo "host$index slots=${slots[index]}"; done >/dev/shm/hosts/openmpi
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
    export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,sm,tcp OMPI_MCA_btl_tcp_if_include=eth0
    "$1" --prtemca plm_ssh_agent "$HOSTS_SSH" --prtemca plm_ssh_no_tree_spawn 1 --hostfile /dev/shm/hosts/openmpi \
        --map-by "$by" --bind-to none "${command[@]}"
}

run_mpich() { # run_mpich MPIEXEC: as above
    local index total=0 order=()
    for index in "${!slots[@]}"; do
        echo "host$index:${slots[index]}"
        total=$((total + slots[index]))
    done >/dev/shm/hosts/mpich
    if [ "$map" = cyclic ]; then
        [ "$(printf '%s\n' "${slots[@]}" | sort -u | wc -l)" -eq 1 ] || refuse "MPICH cannot place ranks cyclically on uneven hosts"
        order=(-ppn 1)
    fi
    export UCX_NET_DEVICES=eth0 UCX_TLS=self,tcp
    "$1" -launcher ssh -launcher-exec "$HOSTS_SSH" -f /dev/shm/hosts/mpich -n "$total" "${order[@]}" "${command[@]}"
}

inside() { # beside the switch, in namespaces of its own
    local mpiexec
    make_cluster || refuse "could not make the hosts"
    [ "$library" != none ] || { "${command[@]}"; exit; }
    mpiexec=$(find_mpiexec) || refuse "no mpiexec beside ${command[0]} or in PATH"
    if [ -z "$library" ]; then
        library=openmpi
        "$mpiexec" --version | grep HYDRA >/dev/null && library=mpich
    fi
    "run_$library" "$mpiexec"
}

self=$(realpath "$0")
namespaces=(--net --uts --ipc --mount --pid --fork --kill-child --mount-proc)
case ${1-} in
--host) become_host "$2" ;;
--inside) shift && parse "$@" && inside ;;
*)
    parse "$@"
    for tool in ip tc unshare nsenter setpriv; do command -v "$tool" >/dev/null || refuse "$tool is missing (iproute2, util-linux)"; done
    [ "$EUID" -eq 0 ] || namespaces+=(--map-root-user)
    # The cluster dies with its process 1, that with unshare, and that with this script, whatever ends it.
    setpriv --pdeathsig KILL env --default-signal=INT,QUIT unshare "${namespaces[@]}" "$self" --inside "$@" </dev/null &
    cluster=$!
    for signal in HUP INT TERM; do
        # shellcheck disable=SC2064  # expanded now
        trap "kill -KILL $cluster; trap - $signal; kill -$signal \$\$" "$signal"
    done
    wait "$cluster"
    ;;
esac
