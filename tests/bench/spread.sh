#!/bin/bash
# spread.sh [RATE [ITEMS KIB MS WALKS [WAYS]]]: bench_spread on two hosts of this machine (tests/hosts/net.sh), one rank each, whose
# cables carry RATE: first the transfers alone, then with computation. As root, in the build directory.
set -u
src=$(cd "$(dirname "$0")/../.." && pwd)
rate=${1:-200mbit}
shift
read -r -a sizes <<<"${*:-12 4096 100 3}"
tmp=$(mktemp -d)
. "$src/tests/hosts/net.sh"
reason=$(hosts_lack)
[ -z "$reason" ] || {
    echo "$reason"
    exit 77
}
trap 'hosts_destroy; rm -rf "$tmp"' EXIT
hosts_create 2 || exit 99
cat >"$tmp/agent" <<AGENT
#!/bin/bash
tmp=$tmp hosts_tag=$hosts_tag
. "$src/tests/hosts/net.sh"
hosts_net=$hosts_net
while [ "\${1#-}" != "\$1" ]; do shift; done
i=\${1#node}
shift
host_run "\$i" bash -c "\$*"
AGENT
chmod 755 "$tmp/agent"
host_slow 1 "$rate"
host_slow 2 "$rate"
for ms in 0 "${sizes[2]}"; do
    OMP_NUM_THREADS=1 LD_PRELOAD=$PWD/tests/tools/yield.so timeout -k 5 300 ${MPIEXEC:-mpiexec} -launcher ssh \
        -launcher-exec "$tmp/agent" -iface "$hosts_bridge" -hosts node1:1,node2:1 -n 2 \
        tests/bench/bench_spread "${sizes[0]}" "${sizes[1]}" "$ms" "${sizes[@]:3}" || exit
done
