/* What an earlier run of a test program left, so that the next one does not go on from it. */
#ifndef AZ_TESTS_MPI_FILES_H
#define AZ_TESTS_MPI_FILES_H

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

static void remove_files(const char *dir)
{
    char path[400];
    DIR *d = opendir(dir);
    for (const struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "%s/%.200s", dir, e->d_name);
        unlink(path); /* directories stay */
    }
    if (d != NULL)
        closedir(d);
}

#endif
