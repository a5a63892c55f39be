/* train/holder: who holds an output directory, as DIR/lock tells it. Local. */
#ifndef AZ_TRAIN_HOLDER_H
#define AZ_TRAIN_HOLDER_H

#include "base/base.h"

/* Most bytes of the text. */
#define AZ_HOLDER_BYTES 1024

/* Rank 0 of a job. */
typedef struct {
    char host[256];
    long pid;
    char job[64];   /* of Slurm, "" without */
    long restarts;  /* how often Slurm has started this job anew */
    char boot[64];  /* of the host's kernel: the same file locks are seen by whoever shares it */
    char space[64]; /* in which pid counts: of the same kernel others may have other numbers */
    char time[32];
} az_holder;

/* This process. */
void az_holder_set_self(az_holder *self);
/* The text of DIR/lock, zero-terminated; its length. out has AZ_HOLDER_BYTES. */
size_t az_holder_write(char *out, const az_holder *holder);
/* Back from the text. False if it does not name a host and a process. */
bool az_holder_parse(az_holder *holder, const char *text, size_t bytes);
/* "job 123 on node1 (pid 77) since 2026-11-30T12:00:00Z"; "another process" for NULL. */
az_err az_holder_add_name(az_str *out, const az_holder *opt_holder);
/* Whether the process that pid names is known to be no more. False where this cannot be told from
 * here. */
bool az_holder_is_dead(const az_holder *holder, const az_holder *self);
/* Whether a process of this number lives here and may be of this program. */
bool az_holder_is_program(long pid);

/* The lock of the file: had, had by another, or the file system has none. */
typedef enum { AZ_LOCK_OURS, AZ_LOCK_TAKEN, AZ_LOCK_NONE } az_lock;
/* What follows from it and from the text. */
typedef enum {
    AZ_HOLDER_GONE,
    AZ_HOLDER_UNSURE, /* it has to be seen whether it gives a sign of life */
    AZ_HOLDER_THERE
} az_verdict;
/* opt_holder: NULL if the text names nobody. dead: az_holder_is_dead. */
az_verdict az_holder_judge(const az_holder *opt_holder, const az_holder *self, az_lock lock,
                           bool dead);

#endif
