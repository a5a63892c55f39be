/* find_bytes FILE PID...: where bytes of a file are in the memory of processes. A piece of 32 bytes
 * of every 1024 of the file is looked for at all even addresses of everything that a process has
 * mapped; a line for each mapping that holds any: rights, pieces found, its name. So it is seen who
 * could write into a copy of a model, whatever made that copy. */
#include <config.h>

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"

enum { PIECE = 32, EVERY = 1024, CHUNK = 1 << 20, BITS = 20 };

typedef struct {
    char (*pieces)[PIECE];
    size_t n;
    uint8_t *known; /* [2^BITS / 8] bits: whether a piece begins with bytes that fall here */
    char *buffer;   /* [CHUNK + PIECE] */
} finder;

static uint32_t bit_of(const char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return (uint32_t)((v * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - BITS));
}

static int compare(const void *a, const void *b)
{
    return memcmp(a, b, PIECE);
}

/* Zeros and the like are everywhere: a piece has eight different bytes at least. */
static bool is_telling(const char *piece)
{
    bool seen[256] = {false};
    int n = 0;
    for (int i = 0; i < PIECE; i++) {
        n += !seen[(unsigned char)piece[i]];
        seen[(unsigned char)piece[i]] = true;
    }
    return n >= 8;
}

static az_err read_pieces(finder *f, const char *path)
{
    az_err err;
    char *text = NULL;
    size_t bytes = 0;
    uint64_t head = 0;
    AZ_TRY(az_file_read(&text, &bytes, path));
    if (bytes < sizeof head)
        err = az_fail(AZ_EINPUT, "%s: not a safetensors file", path);
    AZ_TRY(err);
    memcpy(&head, text, sizeof head); /* of a safetensors file: what comes before its data */
    AZ_TRY(AZ_NEW(f->pieces, bytes / EVERY + 1, "pieces"));
    AZ_TRY(AZ_NEW(f->known, (1 << BITS) / 8, "known"));
    AZ_TRY(AZ_NEW(f->buffer, CHUNK + PIECE, "buffer"));
    for (size_t at = 8 + (size_t)head; at + PIECE <= bytes; at += EVERY)
        if (is_telling(text + at)) {
            memcpy(f->pieces[f->n++], text + at, PIECE);
            f->known[bit_of(text + at) / 8] |= (uint8_t)(1 << bit_of(text + at) % 8);
        }
    qsort(f->pieces, f->n, PIECE, compare);
out:
    az_free(text);
    return err;
}

static size_t count_in(const finder *f, size_t bytes)
{
    size_t found = 0;
    for (size_t i = 0; i + PIECE <= bytes; i += 2) {
        const char *p = f->buffer + i;
        const uint32_t bit = bit_of(p);
        if ((f->known[bit / 8] >> bit % 8 & 1) != 0 &&
            bsearch(p, f->pieces, f->n, PIECE, compare) != NULL)
            found++;
    }
    return found;
}

/* What cannot be read (a device, a hole) is passed over. */
static size_t look_at(const finder *f, int mem, uint64_t begin, uint64_t end)
{
    size_t found = 0;
    for (uint64_t at = begin; at < end; at += CHUNK) {
        const uint64_t left = end - at;
        const size_t want = left < CHUNK + PIECE - 2 ? (size_t)left : CHUNK + PIECE - 2;
        const ssize_t got = pread(mem, f->buffer, want, (off_t)at);
        if (got > 0)
            found += count_in(f, (size_t)got);
    }
    return found;
}

static int look_through(const finder *f, const char *pid)
{
    char path[64], line[4400], rights[5], name[4097];
    uint64_t begin, end;
    snprintf(path, sizeof path, "/proc/%s/maps", pid);
    FILE *maps = fopen(path, "r");
    snprintf(path, sizeof path, "/proc/%s/mem", pid);
    const int mem = open(path, O_RDONLY);
    if (maps == NULL || mem < 0) {
        fprintf(stderr, "process %s cannot be read\n", pid);
        return 1;
    }
    while (fgets(line, sizeof line, maps) != NULL) {
        name[0] = '\0';
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*s %*s %*s %4096s", &begin, &end, rights,
                   name) < 3 ||
            rights[0] != 'r')
            continue;
        const size_t found = look_at(f, mem, begin, end);
        if (found > 0)
            printf("%s %zu %s\n", rights, found, name[0] != '\0' ? name : "anonymous");
    }
    fclose(maps);
    close(mem);
    return 0;
}

int main(int argc, char **argv)
{
    finder f = {0};
    int code = argc < 3 ? 2 : 0;
    if (code != 0)
        fprintf(stderr, "usage: %s FILE PID...\n", argv[0]);
    if (code == 0 && read_pieces(&f, argv[1]) != AZ_OK) {
        fprintf(stderr, "%s\n", az_err_message());
        code = 1;
    }
    if (code == 0)
        printf("pieces %zu\n", f.n);
    for (int i = 2; code == 0 && i < argc; i++)
        code = look_through(&f, argv[i]);
    az_free(f.pieces);
    az_free(f.known);
    az_free(f.buffer);
    return code;
}
