# The waits of a source: calls that order work on a GPU, or threads of a block. Without at: lists them, LINE:COLUMN CALL.
# With at=LINE:COLUMN: prints the source with that call removed, in place: (0 ? CALL : nothing), so that nothing else changes.

BEGIN {
    names = "az_dev_wait az_dev_sync az_dev_sync_event cudaStreamWaitEvent cudaStreamSynchronize cudaEventSynchronize" \
        " cudaDeviceSynchronize __syncthreads __syncwarp"
    n_names = split(names, name, " ")
    n_members = split("->wait ->sync ->sync_event", member, " ") # of a backend's table
}

# The line with blanks where it is comment or text.
function mask(s,    out, two, c, i, n) {
    out = ""
    n = length(s)
    for (i = 1; i <= n; i++) {
        c = substr(s, i, 1)
        two = substr(s, i, 2)
        if (comment) {
            if (two == "*/") { comment = 0; i++; out = out " " }
            out = out " "
        } else if (two == "/*") {
            comment = 1
            i++
            out = out "  "
        } else if (two == "//") {
            while (i <= n) { out = out " "; i++ }
        } else if (c == "\"" || c == "'") {
            out = out " "
            for (i++; i <= n && substr(s, i, 1) != c; i++) {
                if (substr(s, i, 1) == "\\") { i++; out = out " " }
                out = out " "
            }
            out = out " "
        } else
            out = out c
    }
    return out
}

{
    line[NR] = $0
    code[NR] = mask($0)
}

# Where the call ends whose name begins at column c of line l: end_l, end_c at its last parenthesis.
function find_end(l, c,    depth, ch) {
    depth = 0
    for (end_l = l; end_l <= NR; end_l++) {
        for (end_c = end_l == l ? c : 1; end_c <= length(code[end_l]); end_c++) {
            ch = substr(code[end_l], end_c, 1)
            if (ch == "(")
                depth++
            else if (ch == ")" && --depth == 0)
                return
        }
    }
}

function call_of(l, c,    text, i, t) {
    find_end(l, c)
    text = ""
    for (i = l; i <= end_l; i++) {
        t = substr(line[i], 1, i == end_l ? end_c : length(line[i]))
        t = i == l ? substr(t, c) : t
        sub(/^[ \t]+/, i == l ? "" : " ", t)
        text = text t
    }
    return text
}

# A call stands in a line that is indented; declarations and definitions are not.
function look(l, what, is_member,    at, from, before) {
    if (code[l] !~ /^[ \t]/)
        return
    from = 1
    while ((at = index(substr(code[l], from), what "(")) > 0) {
        at += from - 1
        from = at + 1
        before = substr(code[l], at - 1, 1)
        if (is_member)
            while (substr(code[l], at - 1, 1) ~ /[A-Za-z0-9_.>-]/)
                at--
        else if (before ~ /[A-Za-z0-9_>.]/)
            continue
        found[++n_found] = l ":" at
        nothing[l ":" at] = what ~ /^cuda/ ? "cudaSuccess" : "(void)0"
    }
}

END {
    for (l = 1; l <= NR; l++) {
        for (i = 1; i <= n_names; i++)
            look(l, name[i], 0)
        for (i = 1; i <= n_members; i++)
            look(l, member[i], 1)
    }
    if (at == "") {
        for (i = 1; i <= n_found; i++) {
            split(found[i], place, ":")
            print found[i], call_of(place[1], place[2])
        }
        exit
    }
    split(at, place, ":")
    find_end(place[1] + 0, place[2] + 0)
    line[end_l] = substr(line[end_l], 1, end_c) " : " nothing[at] ")" substr(line[end_l], end_c + 1)
    l = place[1] + 0
    line[l] = substr(line[l], 1, place[2] - 1) "(0 ? " substr(line[l], place[2])
    for (l = 1; l <= NR; l++)
        print line[l]
}
