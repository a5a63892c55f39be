# AZ_SUMMARY: what configure decided, on one page, and in config.h for the banner of a run.
AC_DEFUN([AZ_SUMMARY], [
  AS_IF([test "x$have_cmocka" = xyes], [az_tests="yes, started with $MPIEXEC"],
    [az_tests="no unit tests: cmocka not found (libcmocka-dev)"])
  AC_MSG_NOTICE([
  adze $PACKAGE_VERSION
    compiler    $CC $CFLAGS
    ours        $AZ_CFLAGS $OPENMP_CFLAGS
    BLAS        $BLAS_LIBS
    HDF5        $HDF5_LIBS
    debug       $enable_debug
    sanitizers  $enable_sanitize
    tests       $az_tests
    prefix      $prefix

  now: make && make check])
])
