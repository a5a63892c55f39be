# Rules of single source lines: order of modules, private headers, fences, allocation, ends of the
# program, config.h first, length; in CUDA sources also what keeps them the same for the tests. Called by lint.sh with the files as arguments; root is cut off
# their names. Prints FILE:LINE: RULE: what.

BEGIN {
    n = split("base deck dev comm kern store text data lora model shard optim pass plan train cmd", names, " ")
    for (i = 1; i <= n; i++)
        rank[names[i]] = i
    top = n + 1
    # foreign header -> the modules that may include it
    fence["mpi.h"] = "comm"
    # CUDA's, in .cu files and the headers that these include
    cuda["cuda_runtime.h"] = fence["cuda_runtime.h"] = "dev comm kern"
    cuda["cuda_bf16.h"] = fence["cuda_bf16.h"] = "kern"
    cuda["cublas_v2.h"] = fence["cublas_v2.h"] = "kern"
    cuda["nccl.h"] = fence["nccl.h"] = "comm"
    fence["cuda.h"] = "nobody: the driver's library would be needed to start"
    fence["hdf5.h"] = "store"
    fence["jansson.h"] = "store"
    fence["cblas.h"] = "kern"
    fence["openblas_config.h"] = "kern"
    fence["dnnl.h"] = "kern"
    fence["yaml.h"] = "deck"
    fence["pcre2.h"] = "text"
    fence["utf8proc.h"] = "text"
    fence["xxhash.h"] = "base"
    fence["zlib.h"] = "base"
    # prefix of a foreign function -> likewise
    prefix["MPI_"] = "comm"
    prefix["cblas_"] = "kern"
    prefix["cuda[A-Z]"] = "dev comm kern"
    prefix["cublas[A-Z]"] = "kern"
    prefix["nccl[A-Z]"] = "comm"
    prefix["openblas_"] = "kern"
    prefix["yaml_"] = "deck"
    prefix["pcre2_"] = "text"
    prefix["utf8proc_"] = "text"
    prefix["XXH"] = "base"
}

function fault(line, rule, what) { print name ":" line ": " rule ": " what }

function allowed(modules) { return (" " modules " ") ~ (" " module " ") }

# The code of a line: without comments, strings and character constants.
function code_of(s,    out, c, two) {
    out = ""
    while (s != "") {
        c = substr(s, 1, 1)
        two = substr(s, 1, 2)
        if (in_comment) {
            if (two == "*/") { in_comment = 0; s = substr(s, 3) } else s = substr(s, 2)
        } else if (two == "/*") {
            in_comment = 1
            s = substr(s, 3)
        } else if (two == "//") {
            s = ""
        } else if (c == "\"" || c == "'") {
            s = substr(s, 2)
            while (s != "" && substr(s, 1, 1) != c)
                s = substr(s, substr(s, 1, 1) == "\\" ? 3 : 2)
            s = substr(s, 2)
            out = out c c
        } else {
            out = out c
            s = substr(s, 2)
        }
    }
    return out
}

function calls(code, f) { return code ~ ("(^|[^A-Za-z0-9_.>])" f "[ ]*\\(") }

function end_of_file() {
    if (name == "")
        return
    if (name ~ /\.c$/ && !seen_include)
        fault(1, "config", "a source begins with #include <config.h>")
    if (lines > 1000)
        fault(lines, "length", lines " lines; 1000 is the limit")
    else if (lines > 600 && !reason)
        fault(lines, "length", lines " lines; above 600 the head comment says why (\"Length: ...\")")
}

FNR == 1 {
    end_of_file()
    name = substr(FILENAME, length(root) + 2)
    split(name, part, "/")
    module = part[3] == "" ? "" : part[2] # "" is src/main.c
    mine = module == "" ? top : rank[module]
    in_comment = seen_include = reason = past_head = 0
    if (module != "" && mine == "")
        fault(1, "order", "module " module " has no place in the order of modules")
}

{
    lines = FNR
    commented = in_comment
    code = code_of($0)
    if (!past_head && $0 ~ /Length:/ && (commented || in_comment || $0 ~ /^\/\*/))
        reason = 1
    if (code ~ /[^ \t]/)
        past_head = 1
}

# What the tests run on the stand-in for CUDA is what nvcc compiles.
name ~ /^src\// && /CUEMU|cuemu|__CUDA_ARCH__|__NVCC__|__CUDACC__|^[ \t]*#[ \t]*line/ {
    fault(FNR, "stand-in", "sources know nothing of what compiles them")
}

# clang-format does not understand launches of kernels.
name ~ /\.cu$/ {
    if (length($0) > 100)
        fault(FNR, "format", length($0) " columns; 100 are the limit")
    if ($0 ~ /\t|[ \t]$/)
        fault(FNR, "format", "a tab, or blanks at the end")
}

!commented && /^[ \t]*#[ \t]*include/ {
    header = $0
    sub(/^[ \t]*#[ \t]*include[ \t]*/, "", header)
    own = substr(header, 1, 1) == "\""
    header = substr(header, 2)
    sub(/[">].*/, "", header)
    if (!seen_include && name ~ /\.c$/ && (own || header != "config.h"))
        fault(FNR, "config", "#include <config.h> comes first")
    seen_include = 1
    if (own) {
        split(header, dir, "/")
        if (header !~ /\//)
            fault(FNR, "include", "\"" header "\" is not written from the root of src")
        else if (rank[dir[1]] == "")
            fault(FNR, "order", "\"" header "\": no module " dir[1])
        else if (rank[dir[1]] > mine)
            fault(FNR, "order", module " lies below " dir[1] " and may not use it")
        else if (dir[1] != module && header ~ /_priv\.h$/)
            fault(FNR, "private", "\"" header "\" stays inside " dir[1])
        if (header !~ /\.h$/)
            fault(FNR, "include", "\"" header "\" is no header")
    } else if (header in fence && !allowed(fence[header])) {
        fault(FNR, "fence", "<" header "> belongs to " fence[header])
    } else if (header in cuda && name ~ /\.c$/) {
        fault(FNR, "fence", "<" header "> belongs to .cu files")
    }
    next
}

{
    for (p in prefix)
        if (!allowed(prefix[p]) && code ~ ("(^|[^A-Za-z0-9_])" p "[A-Za-z0-9_]*[ ]*\\("))
            fault(FNR, "fence", substr(p, 1, match(p, /\[|$/) - 1) "... belongs to " prefix[p])
    if (module != "base") {
        if (calls(code, "(malloc|calloc|realloc|aligned_alloc|posix_memalign|reallocarray|strdup|strndup|asprintf|vasprintf|getline)"))
            fault(FNR, "alloc", "memory comes from base (az_alloc, az_strdup, az_str)")
        if (module != "store" && calls(code, "free"))
            fault(FNR, "alloc", "free() is base's; store may free what a library has made")
    }
    if (module != "" && module != "base" && module != "comm" && calls(code, "(exit|_exit|_Exit|quick_exit|abort)"))
        fault(FNR, "exit", "only main.c ends the program")
}

END { end_of_file() }
