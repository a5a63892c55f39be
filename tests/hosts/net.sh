# Hosts on this machine, for tests of what goes over the network: each is a network namespace with a host name, IPC, mounts
# and /dev/shm of its own, so that MPI shares memory within it and speaks TCP to the others. A bridge joins them.
# Sourced by tests, which give the scratch directory in $tmp.
#
#   hosts_lack              prints why there can be none here; nothing if there can
#   hosts_create N          makes node1 ... nodeN, with the addresses $hosts_net.1 ...; the bridge $hosts_bridge has .254
#   hosts_destroy           ends what still runs there and removes them; for the EXIT trap
#   host_run I COMMAND...   runs a command in the place of host I, which the shell's process becomes; without hosts: here
#   host_cut I              silence: nothing comes from host I or goes there any more
#   host_kill I             host I is lost: silence, then its processes are killed
#   host_bytes I            prints the bytes that host I has received and sent so far, counted at its cable
#   host_slow I RATE        its cable carries so much in either direction (a rate of tc, 200mbit; none: as fast as it can)
#
# Packets are of 9000 bytes, as in most clusters, so that headers are one part in a hundred of what is counted.
#
# A test that is killed cannot tidy up: a process of its own session waits for its end and does.

hosts_tag=${hosts_tag:-$$} # in the names of all that is made
hosts_net=
hosts_bridge=
hosts_n=0
hosts_keeper=

hosts_lack() {
    local try=adze-try-$$ why p
    [ "$(id -u)" = 0 ] || {
        echo "not root: network namespaces cannot be made"
        return
    }
    PATH=$PATH:/usr/sbin:/sbin
    for p in ip tc nsenter unshare setpriv; do
        command -v "$p" >/dev/null || {
            echo "no $p here (on Debian: apt-get install iproute2 util-linux)"
            return
        }
    done
    why=$({ ip netns add "$try" && ip link add "azt$$" type veth peer name eth0 netns "$try" && ip link del "azt$$" &&
        nsenter --net="/run/netns/$try" unshare --uts --ipc --mount true; } 2>&1) || echo "no network namespaces here: $why"
    ip netns del "$try" 2>/dev/null
}

hosts_create() {
    local i
    PATH=$PATH:/usr/sbin:/sbin
    hosts_n=$1
    hosts_net=10.$((64 + $$ / 250 % 64)).$(($$ % 250))
    hosts_bridge=azb$hosts_tag
    # shellcheck disable=SC2016
    setsid bash -c 'tail --pid="$1" -f /dev/null; . "$0"; hosts_n=$2 hosts_tag=$3 hosts_bridge=$4; hosts_remove' \
        "${BASH_SOURCE[0]}" $$ "$hosts_n" "$hosts_tag" "$hosts_bridge" </dev/null >/dev/null 2>&1 &
    hosts_keeper=$!
    disown "$hosts_keeper"
    cp /etc/hosts "$tmp/hosts" && echo "$hosts_net.254 $(hostname -s)" >>"$tmp/hosts"
    ip link add "$hosts_bridge" type bridge && ip addr add "$hosts_net.254/24" dev "$hosts_bridge" &&
        ip link set "$hosts_bridge" mtu 9000 up || return 1
    for ((i = 1; i <= hosts_n; i++)); do
        echo "$hosts_net.$i node$i" >>"$tmp/hosts"
        ip netns add "adze-$hosts_tag-$i" && ip link add "azv$hosts_tag-$i" mtu 9000 type veth peer name eth0 mtu 9000 netns "adze-$hosts_tag-$i" &&
            ip link set "azv$hosts_tag-$i" master "$hosts_bridge" up && ip -n "adze-$hosts_tag-$i" addr add "$hosts_net.$i/24" dev eth0 &&
            ip -n "adze-$hosts_tag-$i" link set eth0 up && ip -n "adze-$hosts_tag-$i" link set lo up || return 1
    done
}

hosts_remove() {
    local i
    for ((i = 1; i <= hosts_n; i++)); do
        ip netns pids "adze-$hosts_tag-$i" | xargs -r kill -9
        ip link del "azv$hosts_tag-$i"
        ip netns del "adze-$hosts_tag-$i"
    done 2>/dev/null
    ip link del "$hosts_bridge" 2>/dev/null
}

hosts_destroy() {
    [ -n "$hosts_net" ] || return 0
    hosts_remove
    hosts_net=
    kill -- "-$hosts_keeper" 2>/dev/null
}

host_run() {
    local i=$1
    shift
    [ -n "$hosts_net" ] || exec "$@"
    # shellcheck disable=SC2016
    exec nsenter --net="/run/netns/adze-$hosts_tag-$i" unshare --uts --ipc --mount bash -c '
        hostname "$0" && mount -t tmpfs tmpfs /dev/shm && mount --bind "$1" /etc/hosts && shift && exec "$@"
        ' "node$i" "$tmp/hosts" "$@"
}

host_cut() {
    ip link set "azv$hosts_tag-$1" down
}

host_kill() {
    host_cut "$1"
    ip netns pids "adze-$hosts_tag-$1" | xargs -r kill -9 2>/dev/null
}

# What the end of the cable on the bridge's side has sent and received.
host_bytes() {
    local in out
    read -r in <"/sys/class/net/azv$hosts_tag-$1/statistics/tx_bytes"
    read -r out <"/sys/class/net/azv$hosts_tag-$1/statistics/rx_bytes"
    echo "$in $out"
}

host_slow() {
    tc qdisc del dev "azv$hosts_tag-$1" root 2>/dev/null
    ip netns exec "adze-$hosts_tag-$1" tc qdisc del dev eth0 root 2>/dev/null
    [ "$2" = none ] || {
        tc qdisc add dev "azv$hosts_tag-$1" root tbf rate "$2" burst 256kb latency 50ms &&
            ip netns exec "adze-$hosts_tag-$1" tc qdisc add dev eth0 root tbf rate "$2" burst 256kb latency 50ms
    }
}
