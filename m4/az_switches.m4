# AZ_ARG_WERROR, AZ_ARG_DEBUG, AZ_ARG_SANITIZE: the three switches of the build.
# They fill AZ_CFLAGS and AZ_LDFLAGS; CFLAGS stays the user's.
AC_DEFUN([AZ_ARG_WERROR], [
  AZ_CFLAGS="-std=gnu11 -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wpointer-arith -Wformat=2"
  # Nobody reads errno after a root or traps on a comparison with NaN; promising that lets loops with a
  # root or a choice in them become vector code. No value changes.
  AS_IF([test "x$GCC" = xyes], [AZ_CFLAGS="$AZ_CFLAGS -fno-math-errno -fno-trapping-math"])
  AZ_LDFLAGS=
  AC_ARG_ENABLE([werror], [AS_HELP_STRING([--enable-werror], [make warnings errors])], [], [enable_werror=no])
  AS_IF([test "x$enable_werror" = xyes], [AZ_CFLAGS="$AZ_CFLAGS -Werror"])
  AC_SUBST([AZ_CFLAGS])
  AC_SUBST([AZ_LDFLAGS])
])
AC_DEFUN([AZ_ARG_DEBUG], [
  AC_ARG_ENABLE([debug], [AS_HELP_STRING([--enable-debug], [check internal contracts, poison memory, count leaks])], [], [enable_debug=no])
  AS_IF([test "x$enable_debug" = xyes], [AC_DEFINE([AZ_DEBUG], [1], [Internal contracts are checked])])
])
AC_DEFUN([AZ_ARG_SANITIZE], [
  AC_ARG_ENABLE([sanitize], [AS_HELP_STRING([--enable-sanitize=LIST], [build with these sanitizers, e.g. address,undefined])], [], [enable_sanitize=no])
  AS_CASE([$enable_sanitize], [no], [], [yes], [enable_sanitize=address,undefined])
  # The tests' stand-in for CUDA tells the thread sanitizer itself what is ordered, and must not be looked at by it.
  CUEMU_SANITIZE= CUEMU_SHIM_SANITIZE=
  AS_CASE([$enable_sanitize], [no], [],
    [*thread*], [CUEMU_SANITIZE="-O1 -fsanitize=$enable_sanitize" CUEMU_SHIM_SANITIZE=-DCUEMU_TSAN],
    [CUEMU_SANITIZE="-O1 -fsanitize=$enable_sanitize -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
     CUEMU_SHIM_SANITIZE=$CUEMU_SANITIZE])
  AC_SUBST([enable_sanitize])
  AC_SUBST([CUEMU_SANITIZE])
  AC_SUBST([CUEMU_SHIM_SANITIZE])
  AS_IF([test "x$enable_sanitize" != xno], [
    AZ_CFLAGS="$AZ_CFLAGS -fsanitize=$enable_sanitize -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
    AZ_LDFLAGS="$AZ_LDFLAGS -fsanitize=$enable_sanitize"
    AC_DEFINE([AZ_SANITIZE], [1], [Built with sanitizers])
  ])
  AM_CONDITIONAL([SANITIZE], [test "x$enable_sanitize" != xno])
])
