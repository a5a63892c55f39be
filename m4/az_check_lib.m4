# AZ_CHECK_LIB(VAR, PKG-CONFIG NAME, DEBIAN PACKAGE, HEADER, FUNCTION)
# A required library: found through pkg-config, or through VAR_CFLAGS and VAR_LIBS; tested by linking.
# What is missing is collected in az_missing and reported together by AZ_REPORT_MISSING.
AC_DEFUN([AZ_CHECK_LIB], [
  PKG_CHECK_MODULES([$1], [$2], [],
    [AS_IF([test -z "$$1_LIBS"], [AC_SEARCH_LIBS([$5], [m4_bpatsubst([$2], [^lib])], [], [:])])])
  AZ_TRY_LINK([$1], [$2], [$3], [$4], [$5])
])
# AZ_TRY_LINK(VAR, NAME, DEBIAN PACKAGE, HEADER, FUNCTION): link FUNCTION with the flags in VAR_CFLAGS and VAR_LIBS.
AC_DEFUN([AZ_TRY_LINK], [
  AC_MSG_CHECKING([whether $2 links])
  az_save_CPPFLAGS=$CPPFLAGS az_save_LIBS=$LIBS
  CPPFLAGS="$CPPFLAGS $$1_CFLAGS" LIBS="$$1_LIBS $LIBS"
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#define PCRE2_CODE_UNIT_WIDTH 8
#include <$4>]], [[void (*volatile f)(void) = (void (*)(void))$5; return !f;]])],
    [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     az_missing="$az_missing
  $2: on Debian, apt-get install $3; elsewhere set $1_CFLAGS and $1_LIBS"])
  CPPFLAGS=$az_save_CPPFLAGS LIBS=$az_save_LIBS
])
# AZ_REPORT_MISSING: end with one message that names everything that was not found.
AC_DEFUN([AZ_REPORT_MISSING], [
  AS_IF([test -n "$az_missing"], [AC_MSG_ERROR([required libraries were not found:$az_missing])])
])
# AZ_CHECK_CMOCKA: only the tests need it.
AC_DEFUN([AZ_CHECK_CMOCKA], [
  PKG_CHECK_MODULES([CMOCKA], [cmocka], [have_cmocka=yes], [have_cmocka=no])
  AM_CONDITIONAL([HAVE_CMOCKA], [test "x$have_cmocka" = xyes])
])
