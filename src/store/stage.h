/* Staging: a model's files copied to a disk near the node, DIR/NAME-HASH, where HASH is of the
 * model's path and of its files' sizes and times. The copy is a model directory like the other.
 *
 * It is made under a temporary name and becomes valid by a rename, so that what is there under its
 * name is whole; processes of other jobs that want the same copy wait for a lock on
 * DIR/NAME-HASH.lock and find it there. Where the file system has no locks, each makes one, and the
 * first to be ready is kept. Several processes of a node write into one copy, each a part of the
 * bytes. Local. */
#ifndef AZ_STORE_STAGE_H
#define AZ_STORE_STAGE_H

#include "store/safetensors.h"

typedef struct {
    char *name;
    int64_t bytes, s, ns; /* its size and the time of its last change */
} az_stage_file;

/* Start from {.lock = -1}. */
typedef struct {
    const char *from, *dir; /* the model's directory and where copies are; borrowed */
    char *target;           /* DIR/NAME-HASH */
    char *work, *lock_path; /* its temporary name; the lock's */
    az_stage_file *files;
    int n_files;
    int64_t bytes; /* of all files */
    int lock;      /* the lock's file while it is held, or -1 */
    bool making;   /* work is there, and ours */
} az_stage;

/* The files of a model that are used, as text for az_stage_init: its path, then a line each. */
az_err az_stage_list(az_str *out, const char *model_dir, const az_tensor_set *set);
/* maker: a number of the node's first process, which makes the temporary name a new one. */
az_err az_stage_init(az_stage *stage, const char *dir, const char *model_dir, const char *list,
                     size_t list_bytes, int64_t maker);
/* Leaves no temporary directory that is ours. */
void az_stage_fini(az_stage *stage);

/* What the node's first process finds. */
typedef enum { AZ_STAGE_WAIT = 1, AZ_STAGE_WHOLE, AZ_STAGE_COPY } az_stage_state;
/* WHOLE: the copy is there. WAIT: another job makes it; ask again. COPY: it is for us to make; the
 * files are there under the temporary name, with room for all bytes. Refuses a disk that is full.
 */
az_err az_stage_begin(az_stage *stage, az_stage_state *out_state);
/* Copy bytes [lo, hi) of all files, one after the other. Any process of the node. */
az_err az_stage_copy(const az_stage *stage, int64_t lo, int64_t hi);
/* All is copied: sync, give the files their times, make the copy valid. The first process. */
az_err az_stage_seal(az_stage *stage);
/* Let the set's files be those of the copy. */
az_err az_stage_redirect(az_tensor_set *set, const az_stage *stage);

#endif
