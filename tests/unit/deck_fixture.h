/* What the tests of decks share: a deck written to a temporary directory and opened. */
#ifndef AZ_TESTS_DECK_FIXTURE_H
#define AZ_TESTS_DECK_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "deck/deck.h"

static char deck_dir[64];

/* The tests run in the temporary directory, so that messages are the same everywhere. */
static int deck_setup(void **state)
{
    (void)state;
    strcpy(deck_dir, "/tmp/adze-deck-XXXXXX");
    if (mkdtemp(deck_dir) == NULL || chdir(deck_dir) != 0)
        return 1;
    return 0;
}

static int deck_teardown(void **state)
{
    (void)state;
    unlink("d.yaml");
    unlink("sub/d.yaml");
    rmdir("sub");
    if (chdir("/") != 0)
        return 1;
    return rmdir(deck_dir);
}

/* Open text as the deck at path with up to four arguments, ended by NULL. */
static inline az_err deck_open_at(az_deck **deck, const char *path, const char *text,
                                  const char *const *args)
{
    char *list[4];
    int n = 0;
    for (; args != NULL && args[n] != NULL; n++)
        list[n] = (char *)(uintptr_t)args[n];
    assert_int_equal(az_file_write_atomic(path, text, strlen(text)), AZ_OK);
    return az_deck_open(deck, path, list, n);
}

#endif
