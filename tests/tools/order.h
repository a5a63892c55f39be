/* What a process does to files, seen from between it and the C library: recorded in their order,
 * or made to fail. Linked into a test program, or preloaded (order.so) with the environment's
 * ORDER_LOG and ORDER_FILE, ORDER_FAULT. */
#ifndef AZ_TESTS_ORDER_H
#define AZ_TESTS_ORDER_H

/* Call number n (0: the first) of this name on a file whose path ends in suffix, and all that
 * follow, fail with this errno; call NULL: none does. Names: open, pread, write (with pwrite and
 * pwritev), ftruncate, fallocate, fsync (with fdatasync), close, rename, unlink. */
void order_set_fault(const char *call, const char *suffix, long n, int error);
/* Matching calls since then. */
long order_get_count(void);

#endif
