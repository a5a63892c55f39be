#!/bin/bash
# Checkpoints and disks that are full, too small, read-only or gone: one message that names the file and the reason, code 3,
# no temporary file, and what was there before as it was [47].
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
# make_file RANKS CODE MESSAGE ARGUMENTS...: h5_small fails with this code and says this.
make_file() {
    local n=$1 want=$2 message=$3 code
    shift 3
    LD_PRELOAD="$yield${preload:+ $preload}" timeout -k 5 60 ${MPIEXEC:-mpiexec} -n "$n" tests/tools/h5_small "$@" >"$tmp/log" 2>&1
    code=$?
    [ $code = "$want" ] || fail "$*: code $code, expected $want"
    [ "$want" = 0 ] && return
    grep -q -- "^adze: error: $message" "$tmp/log" || fail "$*: expected '$message'"
    [ "$(grep -c '^adze: ' "$tmp/log")" = 1 ] || fail "$*: more than one message"
    [ -z "$(find "$tmp" -name '*.tmp')" ] || fail "$*: left over: $(find "$tmp" -name '*.tmp')"
}
mkdir "$tmp/out"
make_file 3 0 "" "$tmp/out/a.h5" f32
cp "$tmp/out/a.h5" "$tmp/old.h5"

# A limit on the size of files; it would also stop the files through which UCX shares memory, so one rank.
(
    export UCX_TLS=self
    ulimit -S -f 64
    make_file 1 3 "$tmp/out/a.h5.tmp: cannot write: File too large" "$tmp/out/a.h5" f32 1000 0
    make_file 1 3 "$tmp/out/a.h5.tmp: cannot reserve space: File too large" "$tmp/out/a.h5" f32 10 1000000
    # Where blocks cannot be reserved the data's own writes fail.
    export ORDER_FAULT="fallocate .tmp 0 0 95"
    preload=$PWD/tests/tools/order.so make_file 1 3 "$tmp/out/a.h5.tmp: cannot write: File too large" "$tmp/out/a.h5" f32 1000 0
    preload=$PWD/tests/tools/order.so make_file 1 3 "$tmp/out/a.h5.tmp: cannot write: File too large" "$tmp/out/a.h5" bf16 1000 0
) || exit 1
cmp -s "$tmp/out/a.h5" "$tmp/old.h5" || fail "the earlier file changed"

# A write that fails on one rank, in the middle of its range.
export ADZE_H5_LIMIT=1000 ORDER_FAULT="write .tmp 2 5 28"
preload=$PWD/tests/tools/order.so make_file 3 3 "$tmp/out/a.h5.tmp: cannot write dataset 'large': .*No space left on device" \
    "$tmp/out/a.h5" f32 1000 0
unset ADZE_H5_LIMIT ORDER_FAULT
cmp -s "$tmp/out/a.h5" "$tmp/old.h5" || fail "the earlier file changed"

# Directories that are gone, or none.
make_file 2 3 "$tmp/gone: cannot write in directory: No such file" "$tmp/gone/a.h5" f32
make_file 2 3 "$tmp/out/a.h5: cannot write in directory: " "$tmp/out/a.h5/b.h5" f32
# The rest of an earlier run is overwritten.
echo old >"$tmp/out/c.h5.tmp"
make_file 2 0 "" "$tmp/out/c.h5" f32
cmp -s "$tmp/out/c.h5" "$tmp/old.h5" && [ ! -e "$tmp/out/c.h5.tmp" ] || fail "over the rest of an earlier run"

# File systems that are too small or read-only, where one can be mounted.
mkdir "$tmp/small"
if mount -t tmpfs -o size=64k adze "$tmp/small" 2>/dev/null; then
    trap 'umount "$tmp/small"; rm -rf "$tmp"' EXIT
    make_file 2 3 "$tmp/small: 64.00 KiB are free on this file system, 100.00 KiB are needed" "$tmp/small/a.h5" f32 10 102400
    make_file 2 3 "$tmp/small/a.h5.tmp: cannot reserve space: No space left on device" "$tmp/small/a.h5" f32 1000 0
    export ORDER_FAULT="fallocate .tmp 0 0 95"
    preload=$PWD/tests/tools/order.so make_file 3 3 "$tmp/small/a.h5.tmp: cannot write dataset 'large': .*No space left on device" \
        "$tmp/small/a.h5" f32 1000 0
    unset ORDER_FAULT
    [ -z "$(ls "$tmp/small")" ] || fail "something was left on a file system that is too small"
    [ "$(df --output=used "$tmp/small" | tail -n 1)" -lt 8 ] || fail "a file that was removed keeps its blocks"
    make_file 2 0 "" "$tmp/small/a.h5" f32
    mount -o remount,ro "$tmp/small"
    make_file 2 3 "$tmp/small: cannot write in directory: Read-only file system" "$tmp/small/a.h5" f32
    cmp -s "$tmp/small/a.h5" "$tmp/old.h5" || fail "the earlier file changed on a read-only file system"
else
    echo "no file system was mounted here: full and read-only ones were not tested"
fi
