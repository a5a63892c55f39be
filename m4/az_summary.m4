# AZ_SUMMARY: what configure decided, on one page, and in config.h for the banner of a run.
AC_DEFUN([AZ_SUMMARY], [
  AS_IF([test "x$have_cmocka" = xyes], [az_tests="yes, started with $MPIEXEC"],
    [az_tests="no unit tests: cmocka not found (libcmocka-dev)"])
  AS_IF([test "x$with_cuda" = xno], [az_gpus="no: not asked for (--without-cuda)"],
    [test "$az_have_cuda" = no], [az_gpus="no: no CUDA toolkit (--with-cuda=DIR)"],
    [test "x$with_nccl" = xno], [az_gpus="one a job, as NCCL is not asked for (--without-nccl): $NVCC $NVCCFLAGS"],
    [test "$az_have_nccl" = no], [az_gpus="one a job, as there is no NCCL (--with-nccl=DIR): $NVCC $NVCCFLAGS"],
    [az_gpus="with NCCL: $NVCC $NVCCFLAGS"])
  AC_MSG_NOTICE([
  adze $PACKAGE_VERSION
    compiler    $CC $CFLAGS
    ours        $AZ_CFLAGS $OPENMP_CFLAGS
    BLAS        $BLAS_LIBS
    HDF5        $HDF5_LIBS
    GPUs        $az_gpus
    debug       $enable_debug
    sanitizers  $enable_sanitize
    tests       $az_tests
    prefix      $prefix

  now: make && make check])
])
