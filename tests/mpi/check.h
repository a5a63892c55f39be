/* Checks for test programs that run under MPI: a failed check on one rank fails the program on all.
 */
#ifndef AZ_TESTS_MPI_CHECK_H
#define AZ_TESTS_MPI_CHECK_H

#include <stdio.h>

static int n_failed;

#define CHECK(cond)                                                                  \
    do {                                                                             \
        if (!(cond)) {                                                               \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #cond); \
            n_failed++;                                                              \
        }                                                                            \
    } while (0)

#endif
