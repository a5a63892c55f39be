#!/bin/bash
# spread.sh [RATE [ITEMS KIB MS WALKS [WAYS]]]: bench_spread on two hosts of this machine (tests/hosts/net.sh), one rank each, whose
# cables carry RATE: first the transfers alone, then with computation. As root, in the build directory.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
. "${srcdir:-.}/tests/hosts/lib.sh" || exit 99
rate=${1:-200mbit}
[ $# = 0 ] || shift
read -r -a sizes <<<"${*:-12 4096 100 3}"
hosts_begin 2
host_slow 1 "$rate"
host_slow 2 "$rate"
for ms in 0 "${sizes[2]}"; do
    OMP_NUM_THREADS=1 LD_PRELOAD=$yield timeout -k 5 300 ${MPIEXEC:-mpiexec} -launcher ssh \
        -launcher-exec "$tmp/agent" -iface "$hosts_bridge" -hosts node1:1,node2:1 -n 2 \
        tests/bench/bench_spread "${sizes[0]}" "${sizes[1]}" "$ms" "${sizes[@]:3}" || exit
done
