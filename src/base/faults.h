/* Faults: what is wrong with one input, collected so that the user hears of all of it at once.
 * Local. */
#ifndef AZ_BASE_FAULTS_H
#define AZ_BASE_FAULTS_H

#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/* Faults kept as text; further ones are counted. */
#define AZ_FAULTS_MAX 40

/* Start from {0}. */
typedef struct {
    az_str text;
    int64_t n;
} az_faults;

/* Note one fault; control characters of foreign names are shown as '?'. Fails for want of memory
 * only. */
az_err az_faults_add(az_faults *faults, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* If err is AZ_EINPUT: note the recorded message, less "where: " at its start, forget it and
 * return AZ_OK. Other codes are handed back. */
az_err az_faults_take(az_faults *faults, az_err err, const char *where);
/* AZ_OK without faults; else fail with "where: fault", or "where: N faults:" and a line each. */
az_err az_faults_report(const az_faults *faults, const char *where);
void az_faults_fini(az_faults *faults);

#endif
