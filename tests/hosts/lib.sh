# Shared by the tests of tests/hosts: the program on hosts of this machine, and what its links carry meanwhile. After
# tests/runs/lib.sh.
#
#   hosts_begin N           N hosts and the EXIT trap; skips the test, with the reason, where there can be none
#   on_hosts K ARGUMENTS    the program with K ranks on each host; output in $tmp/log. A line of $tmp/steps for each step:
#                           its number, the time, and what each host has received and sent so far
#   between FROM TO         "received sent" of all hosts together between the ends of two steps of that run
#   step_seconds FROM       the median of the steps' times, from step FROM on
# shellcheck disable=SC2154 # src, tmp, yield: tests/runs/lib.sh
. "$src/tests/hosts/net.sh"

hosts_begin() {
    local reason
    reason=$(hosts_lack)
    ${MPIEXEC:-mpiexec} --version 2>&1 | grep -qi hydra || reason="${reason:-mpiexec is not hydra: ranks cannot be put on hosts}"
    [ -z "$reason" ] || {
        echo "$reason"
        exit 77
    }
    trap 'hosts_destroy; rm -rf "$tmp"' EXIT
    trap 'exit 99' INT TERM HUP
    hosts_create "$1" || {
        echo "the hosts could not be made"
        exit 99
    }
    # What mpiexec calls to start its part on a host: OPTIONS HOST COMMAND...
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
}

on_hosts() {
    local each=$1 list="" i line step
    shift
    for ((i = 1; i <= hosts_n; i++)); do list+=,node$i:$each; done
    : >"$tmp/log"
    : >"$tmp/steps"
    # The end of a test that is killed is that of mpiexec too.
    LD_PRELOAD=$yield setpriv --pdeathsig TERM timeout -k 5 "${RUN_LIMIT:-120}" ${MPIEXEC:-mpiexec} -launcher ssh -launcher-exec "$tmp/agent" \
        -iface "$hosts_bridge" -hosts "${list#,}" -n $((each * hosts_n)) ./adze "$@" 2>&1 | while IFS= read -r line; do
        case $line in
        step\ *)
            step=${line#step}
            echo "${step%%/*} $EPOCHREALTIME $(for ((i = 1; i <= hosts_n; i++)); do host_bytes "$i"; done | paste -sd ' ')" >>"$tmp/steps"
            ;;
        esac
        printf '%s\n' "$line" >>"$tmp/log"
    done
    return "${PIPESTATUS[0]}"
}

between() {
    awk -v from="$1" -v to="$2" '$1 == from || $1 == to {
        sign = $1 == to ? 1 : -1
        for (i = 3; i <= NF; i += 2) { received += sign * $i; sent += sign * $(i + 1) }
    } END { printf "%.0f %.0f\n", received, sent }' "$tmp/steps"
}

step_seconds() {
    awk -v from="$1" '$1 >= from { print $2 - last } { last = $2 }' "$tmp/steps" | sort -g |
        awk '{ v[NR] = $1 } END { if (NR == 0) exit 1; print (v[int((NR + 1) / 2)] + v[int((NR + 2) / 2)]) / 2 }'
}
