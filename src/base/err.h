/* Errors: a code and one message, made where the failure happens and handed up unchanged.
 *
 * The first message wins: a failure that follows from another one does not hide it.
 * The codes are the exit codes of the program. Everything here is Local. */
#ifndef AZ_BASE_ERR_H
#define AZ_BASE_ERR_H

typedef int az_err;

enum {
    AZ_OK = 0,
    AZ_ENOFIT = 1, /* no failure: `adze plan` has found that the run does not fit, and said it */
    AZ_EINPUT = 2, /* bad deck, bad file, bad arguments: the user can mend it */
    AZ_EENV = 3,   /* disk full, no memory, no permission */
    AZ_ELOST = 4,  /* a lost rank or a missed deadline */
    AZ_ESTOP = 75  /* asked to end early: what was done is kept, a new run goes on from there */
};

/* Longest message kept; a longer one is cut and ends in "...". */
#define AZ_ERR_MAX 16384

/* Record a failure and return code. A message recorded earlier in this process is kept. Control
 * characters but line ends are shown as '?'. */
az_err az_fail(az_err code, const char *fmt, ...) __attribute__((format(printf, 2, 3), cold));
/* The recorded message, "" if there is none. Borrowed until the next az_fail or az_err_clear. */
const char *az_err_message(void);
/* If err is AZ_EINPUT, put "where: " in front of the recorded message: for a caller that knows the
 * place of what a callee found wrong. Hands err back. */
az_err az_err_place(az_err err, const char *where);
/* Forget the recorded message, for a caller that has dealt with the failure. */
void az_err_clear(void);

/* Go to the function's exit if a call fails. The only macro that steers control. */
#define AZ_TRY(call)             \
    do {                         \
        if ((err = (call)) != 0) \
            goto out;            \
    } while (0)

/* A contract of the program itself is broken: says where and aborts. */
void az_bug(const char *file, int line, const char *what) __attribute__((noreturn, cold));
#define AZ_ASSERT(cond) ((cond) ? (void)0 : az_bug(__FILE__, __LINE__, #cond))

#endif
