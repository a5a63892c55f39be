/* timetable: which slot of a spread holds what when. */
#ifndef AZ_COMM_TIMETABLE_H
#define AZ_COMM_TIMETABLE_H

#include "comm/spread.h"

/* An item is brought for a position of the program into a slot, which is free as soon as the
 * position after is released (-1: from the beginning). */
typedef struct {
    int position, item, slot, after;
} az_fetch;

/* One walk through a program. */
typedef struct {
    int n_items, n_slots, longest;
    bool *cut;    /* [n_items] whether an item needs a slot */
    int *content; /* [n_slots] the item in each slot before the walk, -1: none */
    /* Made by az_timetable_make. */
    int n, n_fetches;
    int *slot;         /* [longest] of each position, -1: the item needs none */
    int *brought;      /* [longest] the fetch that it waits for, -1: there since before */
    az_fetch *fetches; /* [longest] in the order of their positions */
    /* Scratch. */
    int *first;                  /* [n_items] its first position */
    int *again;                  /* [longest] the item's next position */
    int *now, *next, *used, *by; /* [n_slots] content, its next use, last use, fetch */
} az_timetable;

/* Slots are empty; all items are whole until cut says otherwise. Local. */
az_err az_timetable_init(az_timetable *timetable, int n_items, int n_slots, int longest);
void az_timetable_fini(az_timetable *timetable);
/* Bytes that az_timetable_init allocates. Pure. */
size_t az_timetable_measure(int n_items, int n_slots, int longest);
/* Choose the slots for a program of n items, from what the slots hold. Local, allocates nothing. */
void az_timetable_make(az_timetable *timetable, const int *program, int n);
/* The walk has ended after n_released positions: what the slots hold then. Returns how many fetches
 * belong to it: all that could begin. Local. */
int az_timetable_end(az_timetable *timetable, int n_released);
/* The slots hold nothing. Local. */
void az_timetable_forget(az_timetable *timetable);

#endif
