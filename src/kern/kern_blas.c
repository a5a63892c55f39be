/* The library below: which kernels it took, whether they suit the CPU, how many threads it has.
 *
 * OpenBLAS looks at the CPU when it is loaded. A version older than the CPU may not know it and
 * falls back to kernels of twenty years ago, five times slower, without a word. What it takes can
 * be ordered by OPENBLAS_CORETYPE, which must be set before the library is loaded, and it believes
 * the order without a check: so the check is here, and the program executes itself again. */
#include <config.h>

#include <cblas.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "kern/kern_priv.h"

/* Set by the remedy: what the library had taken. Keeps the program from executing itself twice. */
#define ENV_REMEDY "ADZE_BLAS_REMEDY"
#define ENV_CORETYPE "OPENBLAS_CORETYPE"

#if defined(HAVE_OPENBLAS_GET_CORENAME) && defined(__x86_64__) && defined(__GNUC__)
#define CAN_REMEDY 1
#endif

/* ---- kernels against CPU ---- */

#ifdef CAN_REMEDY

/* What a kernel's vectors are. */
enum { SSE, AVX2, AVX512, UNKNOWN };

/* A name that this table does not have is newer than the table, and is left alone. */
static int level_of_core(const char *name)
{
    static const struct {
        const char *name;
        int level;
    } table[] = {
        {"Katmai", SSE},        {"Coppermine", SSE},
        {"Northwood", SSE},     {"Prescott", SSE},
        {"Banias", SSE},        {"Core2", SSE},
        {"Penryn", SSE},        {"Dunnington", SSE},
        {"Nehalem", SSE},       {"Atom", SSE},
        {"Athlon", SSE},        {"Opteron", SSE},
        {"Opteron_SSE3", SSE},  {"Barcelona", SSE},
        {"Bobcat", SSE},        {"Nano", SSE},
        {"Sandybridge", SSE},   {"Bulldozer", SSE},
        {"Piledriver", SSE},    {"Steamroller", SSE},
        {"Excavator", SSE},     {"Haswell", AVX2},
        {"Zen", AVX2},          {"SkylakeX", AVX512},
        {"Cooperlake", AVX512}, {"SapphireRapids", AVX512},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(name, table[i].name) == 0)
            return table[i].level;
    return UNKNOWN;
}

/* The instructions that each core type's kernels use, all of them. */
static int level_of_cpu(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return SSE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return AVX512;
    return AVX2;
}

#endif

#ifdef HAVE_OPENBLAS_GET_CONFIG
/* Whether the library holds kernels for several CPUs; a build for one has no choice. */
static bool is_dynamic(void)
{
    return strstr(openblas_get_config(), "DYNAMIC_ARCH") != NULL;
}
#elif defined(CAN_REMEDY)
static bool is_dynamic(void)
{
    return true;
}
#endif

void az_kern_blas_remedy(char **argv)
{
#ifdef CAN_REMEDY
    const char *core = openblas_get_corename();
    char path[PATH_MAX];
    int have = level_of_core(core), want = level_of_cpu();
    if (have >= want || getenv(ENV_CORETYPE) != NULL || getenv(ENV_REMEDY) != NULL || !is_dynamic())
        return;
    /* The name, not the link itself, or the process would be called "exe". */
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0 || (size_t)n >= sizeof path - 1)
        return;
    path[n] = '\0';
    if (setenv(ENV_REMEDY, core, 1) != 0 ||
        setenv(ENV_CORETYPE, want == AVX512 ? "SkylakeX" : "Haswell", 1) != 0)
        return;
    execv(path, argv);
    /* Slow kernels are better than none; the banner says it. */
    unsetenv(ENV_CORETYPE);
    unsetenv(ENV_REMEDY);
#else
    (void)argv;
#endif
}

/* ---- description ---- */

#ifdef HAVE_OPENBLAS_GET_CONFIG
/* "0.3.21" out of "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ...". */
static void read_version(char *version, size_t size)
{
    const char *s = openblas_get_config();
    s = strncmp(s, "OpenBLAS ", 9) == 0 ? s + 9 : "";
    size_t n = strspn(s, "0123456789.");
    snprintf(version, size, "%.*s", n < size ? (int)n : 0, s);
}
#endif

const char *az_kern_blas_describe(bool *out_slow)
{
    static char text[256];
    const char *name = "BLAS", *kernels = "unknown kernels", *core = "", *remedy = NULL,
               *threads = "";
    char version[32] = "";
    bool slow = false;
#ifdef HAVE_OPENBLAS_GET_CONFIG
    name = "OpenBLAS ";
    read_version(version, sizeof version);
#endif
#ifdef HAVE_OPENBLAS_GET_CORENAME
    core = openblas_get_corename();
    kernels = " kernels";
    remedy = getenv(ENV_REMEDY);
#endif
#ifdef CAN_REMEDY
    slow = level_of_core(core) < level_of_cpu();
#endif
#ifdef HAVE_OPENBLAS_GET_PARALLEL
    static const char *const kinds[] = {", one thread", ", pthreads", ", OpenMP"};
    int kind = openblas_get_parallel();
    threads = kind >= 0 && kind < 3 ? kinds[kind] : "";
#endif
    snprintf(text, sizeof text, "%s%s, %s%s%s%s%s%s%s", name, version, core, kernels,
             remedy != NULL ? " (ordered by adze: left alone it takes " : "",
             remedy != NULL ? remedy : "", remedy != NULL ? ")" : "", threads,
             slow ? ", older than this CPU" : "");
    if (out_slow != NULL)
        *out_slow = slow;
    return text;
}

/* ---- threads ---- */

int az_kern_set_threads(int n)
{
    int used = 1;
#ifdef _OPENMP
    if (n > 0)
        omp_set_num_threads(n);
    used = omp_get_max_threads();
#endif
#ifdef HAVE_OPENBLAS_SET_NUM_THREADS
    if (n > 0)
        openblas_set_num_threads(used);
#endif
#ifdef HAVE_OPENBLAS_GET_PARALLEL
    static bool warned;
    if (openblas_get_parallel() == 1 && used > 1 && !warned) {
        warned = true;
        az_warn("this OpenBLAS has threads of its own kind (pthreads) beside OpenMP's, which slows "
                "both down: install its OpenMP build (Debian: libopenblas0-openmp), or use one "
                "thread per rank");
    }
#endif
    return used;
}

/* OpenBLAS takes a buffer of this size for the caller and one for each thread, and tries for ever
 * if it gets none. */
#define BLAS_BUFFER (((size_t)128 << 20) + ((size_t)1 << 20))

az_err az_kern_start(int threads)
{
    enum { N = 128 };
    static float a[N * N], c[N * N];
    const int n = threads > 0 ? threads : az_kern_set_threads(0);
#ifdef HAVE_OPENBLAS_GET_CONFIG
    const size_t bytes = ((size_t)n + 1) * BLAS_BUFFER;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        return az_fail(
            AZ_EENV,
            "out of memory: %s of address space for the buffers of OpenBLAS (%d thread%s)"
            "; see ulimit -v",
            az_format_bytes((double)bytes), n, n > 1 ? "s" : "");
    munmap(p, bytes);
#endif
    az_kern_set_threads(threads);
    /* The first product takes the buffers, before anything else can. (A small one takes none.) */
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, N, N, 1, a, N, a, N, 0, c, N);
    return AZ_OK;
}
