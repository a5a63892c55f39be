#!/bin/bash
# summary.sh LOG...: one line "N passed, N failed, N skipped" from the result files (.trs) beside test logs.
passed=0 failed=0 skipped=0
for log in "$@"; do
    trs=${log%.log}.trs
    case $(sed -n 's/^:test-result: *\([A-Z]*\).*/\1/p' "$trs" 2>/dev/null | tail -n 1) in
    PASS) passed=$((passed + 1)) ;;
    SKIP) skipped=$((skipped + 1)) && echo "skipped: ${log%.log}: $(tail -n 2 "$log" | head -n 1)" ;;
    *) failed=$((failed + 1)) && echo "failed: ${log%.log}" ;;
    esac
done
echo "$passed passed, $failed failed, $skipped skipped"
