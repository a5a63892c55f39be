/* data, inside: lines become samples; random orders. */
#ifndef AZ_DATA_PRIV_H
#define AZ_DATA_PRIV_H

#include "data/data.h"

/* Samples of the lines read so far. Start from {options, tokenizer}. */
typedef struct {
    const az_data_options *options;
    az_tokenizer *opt_tokenizer;
    az_ids ids, labels;      /* of all samples, one behind the other */
    az_ids lengths, targets; /* per sample */
    int64_t n_cut, n_dropped_long, n_dropped_empty;
} az_reader;

/* Add the sample of one line without its end; where: "FILE:LINE". Local. */
az_err az_reader_add(az_reader *reader, const char *line, size_t bytes, const char *where);
void az_reader_fini(az_reader *reader);

/* order[n] = a permutation of 0 .. n-1, a function of seed, purpose and number alone. Local. */
void az_data_permute(uint32_t *order, int64_t n, uint64_t seed, az_rng_purpose purpose,
                     uint32_t number);

#endif
