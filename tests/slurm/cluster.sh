#!/usr/bin/env bash
# A real SLURM on one machine, for the tests: a controller, and nodes that each have a network namespace and a host name of
# their own, so that they can crash, or lose their network. No accounting, no systemd, nothing outside of its folder but the
# names of the nodes in /etc/hosts. Its programs need SLURM_CONF=FOLDER/slurm.conf.
#
#   cluster.sh start|stop|status FOLDER           NODES=3, each with CPUS=4 and GPUS=2, which are devices that do nothing;
#                                                 its jobs are numbered from FIRST_JOB=1
#   cluster.sh stop-controller|start-controller FOLDER
#   cluster.sh crash|start-node|cut|heal FOLDER NODE
#   cluster.sh hide|show FOLDER NODE PATH         an empty folder that nobody can write to, instead of what the node has there
#   cluster.sh node-timeout FOLDER SECONDS        until a node that does not answer is down
#
# On a busy machine, SLOWNESS=3 makes all time limits three times as long.
# It needs root and the Debian or Ubuntu packages slurmctld slurmd slurm-client munge iproute2.
set -euo pipefail
NODES=${NODES:-3} CPUS=${CPUS:-4} GPUS=${GPUS:-2} FIRST_JOB=${FIRST_JOB:-1} NET=${NET:-10.91.7} SLOWNESS=${SLOWNESS:-1} BRIDGE=br-snaketrain
ACTION=${1:?start, stop, status, stop-controller, start-controller, crash, start-node, cut, heal, hide, show or node-timeout} FOLDER=$(realpath -m "${2:?the folder of the cluster}") NODE=${3:-} HIDDEN=${4:-}
CONF=$FOLDER/slurm.conf MUNGE=$FOLDER/munge/socket
export SLURM_CONF=$CONF

alive() { [ -s "$1" ] && kill -0 "$(cat "$1")" 2> /dev/null; }

until_true() { # seconds command...
    local end=$((SECONDS + $1 * SLOWNESS))
    shift
    until "$@" > /dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { echo "it did not come to: $*" >&2; return 1; }
        sleep 0.2
    done
}

configure() {
    mkdir -p "$FOLDER"/{munge,state,spool,log,gpus}
    for i in $(seq "$GPUS"); do [ -c "$FOLDER/gpus/$i" ] || mknod "$FOLDER/gpus/$i" c 1 3; done # as /dev/null
    [ -s "$FOLDER/munge/key" ] || (umask 077 && head -c 128 /dev/urandom > "$FOLDER/munge/key")
    chmod 755 "$FOLDER" "$FOLDER/munge"
    cat > "$CONF" << END
ClusterName=snaketrain
FirstJobId=$FIRST_JOB
SlurmctldHost=localhost($NET.1)
SlurmctldPort=26817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# cred_expire: so long a job waits before it starts again; 120 seconds by default
AuthInfo=socket=$MUNGE,cred_expire=$((5 * SLOWNESS))
StateSaveLocation=$FOLDER/state
SlurmdSpoolDir=$FOLDER/spool/%n
SlurmctldPidFile=$FOLDER/slurmctld.pid
SlurmdPidFile=$FOLDER/slurmd-%n.pid
SlurmctldLogFile=$FOLDER/log/slurmctld.log
SlurmdLogFile=$FOLDER/log/slurmd-%n.log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
SlurmdTimeout=$((10 * SLOWNESS))
SlurmctldTimeout=$((30 * SLOWNESS))
KillWait=$((15 * SLOWNESS))
InactiveLimit=0
Waittime=0
CompleteWait=0
MinJobAge=300
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
AccountingStorageType=accounting_storage/none
NodeName=DEFAULT CPUs=$CPUS Boards=1 SocketsPerBoard=1 CoresPerSocket=$CPUS ThreadsPerCore=1 RealMemory=8000 Gres=gpu:$GPUS State=UNKNOWN
$(for i in $(seq "$NODES"); do echo "NodeName=train$i NodeHostname=train$i NodeAddr=$NET.$((10 + i)) Port=$((27000 + i))"; done)
PartitionName=DEFAULT Nodes=train[1-$NODES] State=UP DefaultTime=30 MaxTime=120 DefMemPerCPU=100
PartitionName=normal Default=YES PriorityTier=1 PreemptMode=REQUEUE
PartitionName=urgent PriorityTier=10 PreemptMode=OFF
END
    echo "CgroupPlugin=cgroup/v1" > "$FOLDER/cgroup.conf"
    echo "Name=gpu File=$FOLDER/gpus/[1-$GPUS]" > "$FOLDER/gres.conf"
}

name_nodes() { # in /etc/hosts, which torchrun's processes ask for each other
    local others
    others=$(grep -v " # snaketrain cluster$" /etc/hosts || true)
    { echo "$others"; [ "$1" = away ] || for i in $(seq "$NODES"); do echo "$NET.$((10 + i)) train$i # snaketrain cluster"; done; } > "$FOLDER/hosts"
    cat "$FOLDER/hosts" > /etc/hosts
}

connect() {
    ip link show $BRIDGE > /dev/null 2>&1 || { ip link add $BRIDGE type bridge && ip addr add "$NET.1/24" dev $BRIDGE && ip link set $BRIDGE up; }
    for i in $(seq "$NODES"); do
        [ -e "/run/netns/train$i" ] && continue
        ip netns add "train$i"
        ip link add "vtrain$i" type veth peer name eth0 netns "train$i"
        ip link set "vtrain$i" master $BRIDGE up
        ip -n "train$i" addr add "$NET.$((10 + i))/24" dev eth0
        ip -n "train$i" link set eth0 up
        ip -n "train$i" link set lo up
    done
}

disconnect() {
    for i in $(seq 64); do
        [ -e "/run/netns/train$i" ] || continue
        ip link del "vtrain$i" || true # a namespace that is deleted keeps it for a while, and its name is taken
        ip netns del "train$i"
    done
    ip link del $BRIDGE 2> /dev/null || true
}

start_node() {
    alive "$FOLDER/slurmd-$1.pid" && return 0
    rm -f "$FOLDER/slurmd-$1.pid"
    mkdir -p "$FOLDER/spool/$1"
    ip netns exec "$1" unshare --uts sh -c "hostname $1 && exec slurmd -N $1"
}

ready() { sinfo --noheader --nodes "$1" --format %t 2> /dev/null | grep -qE '^(idle|mix|alloc)$'; }

end_process() { # pidfile
    alive "$1" || return 0
    local pid
    pid=$(cat "$1")
    kill "$pid" || true
    until_true 15 sh -c "! kill -0 $pid" || kill -9 "$pid" || true
}

crash_node() { # the daemon, and every process of every job on it, at once, as when the machine loses its power
    kill -9 "$(cat "$FOLDER/slurmd-$1.pid")" 2> /dev/null || true
    local pid parent
    for pid in $(grep -lzsx "SLURMD_NODENAME=$1" /proc/[0-9]*/environ | cut -d/ -f3); do
        parent=$(awk '/^PPid/ {print $2}' "/proc/$pid/status" 2> /dev/null || true)
        if [ -n "$parent" ] && grep -qs "^slurmstepd" "/proc/$parent/cmdline"; then kill -9 "$parent" 2> /dev/null || true; fi
        kill -9 "$pid" 2> /dev/null || true
    done
}

case $ACTION in
    start)
        configure
        connect
        name_nodes here
        if ! alive "$FOLDER/munge/pid"; then
            rm -f "$MUNGE"*
            munged --force --key-file="$FOLDER/munge/key" --socket="$MUNGE" --pid-file="$FOLDER/munge/pid" \
                --log-file="$FOLDER/munge/log" --seed-file="$FOLDER/munge/seed" --num-threads=4 2>> "$FOLDER/log/munged"
        fi
        alive "$FOLDER/slurmctld.pid" || slurmctld -c
        for i in $(seq "$NODES"); do start_node "train$i"; done
        until_true 30 scontrol ping
        for i in $(seq "$NODES"); do until_true 60 ready "train$i"; done
        sinfo
        ;;
    stop)
        if alive "$FOLDER/slurmctld.pid"; then scancel --user "$(id -un)" || true; until_true 20 sh -c '[ -z "$(squeue --noheader)" ]' || true; fi
        for file in "$FOLDER"/slurmd-*.pid "$FOLDER/slurmctld.pid" "$FOLDER/munge/pid"; do end_process "$file"; done
        disconnect
        name_nodes away
        ;;
    status) sinfo --Node --long && squeue ;;
    stop-controller) end_process "$FOLDER/slurmctld.pid" ;;
    start-controller)
        slurmctld # with the state that it left: without -c
        until_true 30 scontrol ping
        ;;
    crash) crash_node "$NODE" ;;
    start-node) start_node "$NODE" ;;
    cut) ip link set "v$NODE" down ;;
    node-timeout) # here the third argument is a number of seconds
        sed -i "s/^SlurmdTimeout=.*/SlurmdTimeout=$((NODE * SLOWNESS))/" "$CONF"
        scontrol reconfigure
        ;;
    hide) nsenter --mount --target "$(cat "$FOLDER/slurmd-$NODE.pid")" mount -t tmpfs -o ro none "$HIDDEN" ;;
    show) nsenter --mount --target "$(cat "$FOLDER/slurmd-$NODE.pid")" umount --lazy "$HIDDEN" ;;
    heal) ip link set "v$NODE" up ;;
    *) sed -n 2,12p "$0" && exit 2 ;;
esac
