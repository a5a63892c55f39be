# AZ_CHECK_CUDA: nvcc, with cuBLAS and NCCL, for the backend that computes on GPUs (adze-cuda.so); a C++ compiler for the
# same sources on the CPU, which the tests use.
AC_DEFUN([AZ_CHECK_CUDA], [
  AC_ARG_VAR([NVCC], [CUDA compiler])
  AC_ARG_VAR([NVCCFLAGS], [flags for NVCC; by default code for sm_80, sm_89 and sm_90, and for newer GPUs what the driver makes of it])
  AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@], [build the backend for GPUs, with the CUDA toolkit in DIR (yes, no; default: if there is one)])], [], [with_cuda=check])
  AC_ARG_WITH([nccl], [AS_HELP_STRING([--with-nccl@<:@=DIR@:>@], [with NCCL, for more than one GPU, in DIR (yes, no; default: if there is one)])], [], [with_nccl=check])
  AS_CASE([$with_cuda], [yes|no|check], [az_cuda_path=/usr/local/cuda/bin], [az_cuda_path=$with_cuda/bin])
  AS_IF([test "x$with_cuda" != xno && test "x$NVCC" = x],
    [AS_CASE([$with_cuda], [yes|check], [AC_PATH_PROG([NVCC], [nvcc], [], [$PATH$PATH_SEPARATOR$az_cuda_path])],
      [AC_PATH_PROG([NVCC], [nvcc], [], [$az_cuda_path])])])
  : ${NVCCFLAGS="-O3 -gencode arch=compute_80,code=sm_80 -gencode arch=compute_89,code=sm_89 -gencode arch=compute_90,code=sm_90 -gencode arch=compute_90,code=compute_90"}
  az_have_cuda=no
  AS_IF([test "x$with_cuda" != xno && test "x$NVCC" != x], [
    AC_MSG_CHECKING([whether $NVCC compiles and links with cuBLAS])
    cat >conftest.cu <<'_AZ'
#include <cublas_v2.h>
extern "C" int f(void) { cublasHandle_t h; return (int)cublasCreate(&h) + CUDART_VERSION; }
_AZ
    AS_IF([$NVCC -std=c++17 -Xcompiler -fPIC -shared conftest.cu -lcublas -o conftest.so >&AS_MESSAGE_LOG_FD 2>&1],
      [az_have_cuda=yes])
    AC_MSG_RESULT([$az_have_cuda])
    rm -f conftest.cu conftest.so])
  AS_IF([test "$az_have_cuda" = no], [AS_CASE([$with_cuda], [no|check], [],
    [yes], [AC_MSG_ERROR([--with-cuda: no nvcc that compiles and links with cuBLAS: give --with-cuda=DIR, or --without-cuda])],
    [AC_MSG_ERROR([--with-cuda=$with_cuda: no nvcc in $az_cuda_path that compiles and links with cuBLAS: give the folder of the toolkit, or --without-cuda])])])
  AS_CASE([$with_nccl], [yes|no|check], [], [AS_IF([test ! -f "$with_nccl/include/nccl.h"],
    [AC_MSG_ERROR([--with-nccl=$with_nccl: there is no $with_nccl/include/nccl.h: give the folder of NCCL, or --without-nccl])])])
  az_have_nccl=no
  NCCL_CFLAGS= NCCL_LIBS=
  AS_IF([test "$az_have_cuda" = yes && test "x$with_nccl" != xno], [
    AS_CASE([$with_nccl], [yes|check], [NCCL_LIBS=-lnccl],
      [NCCL_CFLAGS="-I$with_nccl/include" NCCL_LIBS="-L$with_nccl/lib -Xlinker -rpath=$with_nccl/lib -lnccl"])
    AC_MSG_CHECKING([whether $NVCC links with NCCL])
    cat >conftest.cu <<'_AZ'
#include <nccl.h>
extern "C" int f(void) { ncclUniqueId id; return (int)ncclGetUniqueId(&id); }
_AZ
    AS_IF([$NVCC -std=c++17 -Xcompiler -fPIC -shared $NCCL_CFLAGS conftest.cu $NCCL_LIBS -o conftest.so >&AS_MESSAGE_LOG_FD 2>&1],
      [az_have_nccl=yes])
    AC_MSG_RESULT([$az_have_nccl])
    rm -f conftest.cu conftest.so])
  AS_IF([test "$az_have_nccl" = no], [NCCL_LIBS=
    AS_CASE([$with_nccl], [no|check], [], [AC_MSG_ERROR([--with-nccl: no NCCL that links: give --with-nccl=DIR, or --without-nccl])])])
  AS_IF([test "x$enable_werror" = xyes], [AZ_NVCCFLAGS="-Werror all-warnings"], [AZ_NVCCFLAGS=])
  AC_SUBST([AZ_NVCCFLAGS])
  AC_SUBST([NCCL_CFLAGS])
  AC_SUBST([NCCL_LIBS])
  AM_CONDITIONAL([CUDA], [test "$az_have_cuda" = yes])
  AM_CONDITIONAL([NCCL], [test "$az_have_nccl" = yes])

  AC_LANG_PUSH([C++])
  az_have_cuemu=no
  AC_MSG_CHECKING([whether $CXX compiles the tests' stand-in for CUDA])
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <functional>
#if __cplusplus < 201703L
#error C++17 is needed
#endif]], [])], [az_have_cuemu=yes])
  AC_MSG_RESULT([$az_have_cuemu])
  AC_LANG_POP([C++])
  AM_CONDITIONAL([CUEMU], [test "$az_have_cuemu" = yes])
])
