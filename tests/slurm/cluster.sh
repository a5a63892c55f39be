# A Slurm of our own for the tests: munged, slurmctld and one slurmd for each of a few nodes, all of them on this
# machine. Sourced by the tests, which give the scratch directory in $tmp.
#
#   cluster_lacks [hosts]          prints why there can be none here; nothing if there can
#   cluster_start NODES CPUS [hosts]
#                                  starts it and waits until all nodes are idle; sets SLURM_CONF. Nodes share the
#                                  loopback interface; as hosts each has a network namespace, a host name, IPC and
#                                  /dev/shm of its own, so that MPI shares memory within a node and speaks TCP to others
#   cluster_begin NODES CPUS [hosts]
#                                  cluster_lacks, cluster_start and the EXIT trap; skips or ends the test
#   cluster_stop                   ends jobs and daemons; for the EXIT trap
#   host_kill I                    node I is lost: no network, then all its processes are killed (hosts only)
#   job_wait JOB SECONDS           waits for the end of a job; its state, or TIMEOUT, is in $job_end
#
# cluster_gpus=N gives each node N stand-ins for GPUs. Everything is in $tmp. The daemons stay in the foreground, so that
# their process ids are known from the start and are the only ones that are ever killed, besides what carries our
# SLURM_CONF in its environment.

cluster_pids=()
cluster_munged=
cluster_gpus=0
. "${BASH_SOURCE[0]%/*}/../hosts/net.sh"

cluster_lacks() {
    local p
    [ "$(id -u)" = 0 ] || {
        echo "not root: slurmd starts jobs for other users"
        return
    }
    grep -q ' /sys/fs/cgroup' /proc/mounts || {
        echo "no control groups at /sys/fs/cgroup: slurmd needs them"
        return
    }
    PATH=$PATH:/usr/sbin:/sbin
    for p in munged slurmctld slurmd sbatch srun; do
        command -v "$p" >/dev/null || {
            echo "no $p here (on Debian: apt-get install slurmctld slurmd slurm-client munge)"
            return
        }
    done
    [ "${1:-}" != hosts ] || hosts_lack
}

# N ports in a row that nobody listens on; prints the first.
free_ports() {
    local n=$1 base i try
    for ((try = 0; try < 50; try++)); do
        base=$((20000 + ($$ * 16 + try * 977) % 10000))
        for ((i = 0; i < n; i++)); do
            (exec 3<>"/dev/tcp/127.0.0.1/$((base + i))") 2>/dev/null && continue 2
        done
        echo $base
        return 0
    done
    return 1
}

cluster_write_conf() {
    local nodes=$1 cpus=$2 base=$3 host gres='' i where control=127.0.0.1
    host=$(hostname -s)
    [ -z "$hosts_net" ] || control=$hosts_net.254
    cat <<CONF
ClusterName=adze-test
SlurmctldHost=$host($control)
SlurmctldPort=$base
SlurmdPort=$((base + 1))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$tmp/run/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation=$tmp/state
SlurmdSpoolDir=$tmp/spool/%n
SlurmctldPidFile=$tmp/run/slurmctld.pid
SlurmdPidFile=$tmp/run/slurmd.%n.pid
SlurmctldLogFile=$tmp/logs/slurmctld.log
SlurmdLogFile=$tmp/logs/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=6
KillWait=8
MailProg=/bin/true
CONF
    if [ "$cluster_gpus" -gt 0 ]; then
        echo "GresTypes=gpu"
        gres="Gres=gpu:$cluster_gpus"
        for ((i = 0; i < cluster_gpus; i++)); do ln -sf /dev/null "$tmp/run/gpu$i"; done
        echo "Name=gpu File=$tmp/run/gpu[0-$((cluster_gpus - 1))]" >"$tmp/gres.conf"
    fi
    for ((i = 1; i <= nodes; i++)); do
        where="NodeHostname=$host NodeAddr=127.0.0.1 Port=$((base + 1 + i))"
        [ -z "$hosts_net" ] || where="NodeAddr=$hosts_net.$i"
        echo "NodeName=node$i $where CPUs=$cpus CoresPerSocket=$cpus RealMemory=1000 State=UNKNOWN $gres"
    done
    echo "PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
}

# wait_for SECONDS COMMAND...: until the command succeeds.
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.1
    done
}

nodes_are_idle() {
    [ "$(sinfo -h -N -o %T 2>/dev/null | grep -cx idle)" = "$1" ]
}

cluster_start() {
    local nodes=$1 cpus=$2 base i
    base=$(free_ports $((nodes + 2))) || return 1
    chmod 755 "$tmp"
    mkdir -p "$tmp/state" "$tmp/logs"
    mkdir -p -m 755 "$tmp/run"
    [ "${3:-}" != hosts ] || hosts_create "$nodes" || return 1
    export SLURM_CONF=$tmp/slurm.conf
    cluster_write_conf "$nodes" "$cpus" "$base" >"$SLURM_CONF"
    (umask 077 && head -c 128 /dev/urandom >"$tmp/run/munge.key")
    # --force: the scratch directory may lie below one that others can write, such as /tmp.
    munged --foreground --force --num-threads=2 --key-file="$tmp/run/munge.key" --socket="$tmp/run/munge.sock" \
        --pid-file="$tmp/run/munged.pid" --log-file="$tmp/logs/munged.log" --seed-file="$tmp/run/munged.seed" \
        >"$tmp/logs/munged.out" 2>&1 &
    cluster_munged=$!
    wait_for 10 test -S "$tmp/run/munge.sock" || return 1
    slurmctld -D -f "$SLURM_CONF" >"$tmp/logs/slurmctld.out" 2>&1 &
    cluster_pids+=($!)
    for ((i = 1; i <= nodes; i++)); do
        mkdir -p "$tmp/spool/node$i"
        host_run "$i" slurmd -D -f "$SLURM_CONF" -N "node$i" >"$tmp/logs/slurmd.node$i.out" 2>&1 &
        cluster_pids+=($!)
    done
    wait_for 30 nodes_are_idle "$nodes"
}

cluster_begin() {
    local reason
    reason=$(cluster_lacks "${3:-}")
    [ -z "$reason" ] || {
        echo "$reason"
        exit 77
    }
    PATH=$PATH:/usr/sbin:/sbin
    trap 'cluster_stop; rm -rf "$tmp"' EXIT
    trap 'exit 99' INT TERM HUP
    cluster_start "$@" || {
        tail -n 5 "$tmp"/logs/*
        echo "the private Slurm did not start"
        exit 99
    }
}

no_jobs_left() {
    [ -z "$(squeue -h -o %i 2>/dev/null)" ]
}

none_alive() {
    ! kill -0 "$@" 2>/dev/null
}

# end_processes PID...: asks them to end, kills what does not.
end_processes() {
    local pid
    [ $# -gt 0 ] || return 0
    kill "$@" 2>/dev/null
    wait_for 10 none_alive "$@"
    for pid in "$@"; do
        kill -9 "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
    done
    return 0
}

# Processes of jobs that outlived them. The shell's own environment has no SLURM_CONF from before it started.
job_leftovers() {
    local dir
    for dir in /proc/[0-9]*; do
        grep -qzFx "SLURM_CONF=$tmp/slurm.conf" "$dir/environ" 2>/dev/null && echo "${dir#/proc/}"
    done
}

cluster_stop() {
    local pid
    [ -n "$cluster_munged" ] || return 0
    if [ ${#cluster_pids[@]} -gt 0 ] && ! none_alive "${cluster_pids[0]}"; then
        squeue -h -o %i 2>/dev/null | xargs -r scancel 2>/dev/null
        wait_for 10 no_jobs_left
    fi
    end_processes "${cluster_pids[@]}"
    for pid in $(job_leftovers); do
        [ "$pid" = "$cluster_munged" ] || kill -9 "$pid" 2>/dev/null
    done
    end_processes "$cluster_munged" # the last one: the others talk through it
    hosts_destroy
    cluster_pids=() cluster_munged=
}

job_state() {
    scontrol -o show job "$1" 2>/dev/null | sed -n 's/.* JobState=\([A-Z_]*\).*/\1/p'
}

job_ended() {
    case $(job_state "$1") in
    PENDING | CONFIGURING | RUNNING | COMPLETING | REQUEUED | '') return 1 ;;
    esac
}

# Not printed: a signal would wait for the end of a substitution.
job_wait() {
    if wait_for "$2" job_ended "$1"; then job_end=$(job_state "$1"); else job_end=TIMEOUT; fi
}
