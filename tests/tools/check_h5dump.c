/* check_h5dump PEFT_DIR [bf16] <TEXT: what `h5dump -y -m %.9g -g /adapter FILE` printed holds the
 * tensors of PEFT_DIR: the same names, shapes, and every number to all printed digits (nine
 * determine an f32). bf16: rounded. Says how many numbers agreed; exit 1 at the first difference.
 */
#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/peft.h"

static az_tensor_set set;
static bool rounded;
static int64_t n_numbers, n_tensors;

static void stop(const char *what, const char *name)
{
    fprintf(stderr, "%s: %s\n", name, what);
    exit(1);
}

/* The values of a tensor as they should be printed. */
static float *read_values(const az_tensor *t)
{
    int fd = -1, file = -1;
    const int64_t n = t->bytes / (int64_t)az_dtype_bytes((az_dtype)t->dtype);
    char *bytes = az_alloc((size_t)t->bytes, 1, "tensor");
    float *values = az_alloc((size_t)n, sizeof *values, "tensor");
    if (bytes == NULL || values == NULL ||
        az_store_read(bytes, &set, t, 0, t->bytes, &fd, &file) != AZ_OK)
        stop(az_err_message(), t->name);
    az_widen(values, bytes, (az_dtype)t->dtype, (size_t)n);
    for (int64_t i = 0; i < n && rounded; i++)
        values[i] = az_bf16_to_f32(az_f32_to_bf16(values[i]));
    az_free(bytes);
    if (fd >= 0)
        close(fd);
    return values;
}

/* "1, -2.5, ... }" of one dataset. Returns where it ends. */
static char *compare(char *s, const az_tensor *t)
{
    const int64_t n = t->bytes / (int64_t)az_dtype_bytes((az_dtype)t->dtype);
    float *want = read_values(t);
    for (int64_t i = 0; i < n; i++) {
        char *end;
        const float got = strtof(s, &end);
        if (end == s)
            stop("fewer numbers than the tensor has", t->name);
        if (memcmp(&got, &want[i], sizeof got) != 0) {
            fprintf(stderr, "%s: element %lld is printed as %.*s, expected %.9g\n", t->name,
                    (long long)i, (int)(end - s), s, (double)want[i]);
            exit(1);
        }
        s = end + strspn(end, " ,\n\t");
    }
    if (*s != '}')
        stop("more numbers than the tensor has", t->name);
    az_free(want);
    n_numbers += n;
    n_tensors++;
    return s;
}

/* The text between quotes at *io_s; *io_s comes to lie behind it. */
static char *take_name(char **io_s)
{
    char *name = strchr(*io_s, '"'), *end = name != NULL ? strchr(name + 1, '"') : NULL;
    if (end == NULL)
        stop("a dataset without a name", "h5dump");
    *end = '\0';
    *io_s = end + 1;
    return name + 1;
}

static void check_text(char *s)
{
    while ((s = strstr(s, "DATASET \"")) != NULL) {
        long long rows, cols;
        const char *name = take_name(&s);
        const az_tensor *t = az_store_find(&set, name);
        char *space = strstr(s, "SIMPLE { ("), *data = strstr(s, "DATA {");
        if (t == NULL)
            stop("is not in the adapter", name);
        if (space == NULL || data == NULL || space > data ||
            sscanf(space, "SIMPLE { ( %lld, %lld )", &rows, &cols) != 2 || rows != t->shape[0] ||
            cols != t->shape[1])
            stop("has another shape", name);
        data += strlen("DATA {");
        s = compare(data + strspn(data, " \n\t"), t);
    }
}

int main(int argc, char **argv)
{
    size_t n = 0, got;
    char *text = NULL;
    rounded = argc > 2 && strcmp(argv[2], "bf16") == 0;
    if (argc < 2 || az_peft_open_tensors(&set, argv[1]) != AZ_OK) {
        fprintf(stderr, "%s\n",
                argc < 2 ? "usage: check_h5dump PEFT_DIR [bf16]" : az_err_message());
        return 2;
    }
    do {
        if (AZ_GROW(text, n + (1 << 20) + 1, "text") != AZ_OK)
            return 3;
        got = fread(text + n, 1, 1 << 20, stdin);
        n += got;
    } while (got > 0);
    text[n] = '\0';
    check_text(text);
    if (n_tensors != set.n_tensors)
        stop("not all tensors were printed", argv[1]);
    printf("%lld numbers of %lld tensors agree\n", (long long)n_numbers, (long long)n_tensors);
    az_free(text);
    az_store_close(&set);
    return 0;
}
