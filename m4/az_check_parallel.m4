# AZ_CHECK_MPI, AZ_CHECK_OPENMP, AZ_CHECK_BLAS, AZ_CHECK_HDF5: what the program computes and writes with.
AC_DEFUN([AZ_CHECK_MPI], [
  AC_MSG_CHECKING([whether $CC compiles and links MPI-3 programs])
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <mpi.h>
#if MPI_VERSION < 3
#error MPI 3 is needed
#endif]], [[MPI_Comm c; MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &c);]])],
    [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     az_missing="$az_missing
  MPI 3: on Debian, apt-get install mpich libmpich-dev; elsewhere load the MPI module or set CC to its compiler wrapper"])
  # Whether an MPI takes pointers to the memory of GPUs is asked at run time, where it can be asked.
  AC_CHECK_FUNCS([MPIX_Query_cuda_support MPIX_GPU_query_support])
])
AC_DEFUN([AZ_CHECK_OPENMP], [
  AC_OPENMP
  AS_IF([test -z "$OPENMP_CFLAGS" && test "x$ac_cv_prog_c_openmp" = xunsupported],
    [az_missing="$az_missing
  OpenMP: the compiler $CC has none"])
])
AC_DEFUN([AZ_CHECK_BLAS], [
  AC_ARG_WITH([blas], [AS_HELP_STRING([--with-blas=LIBS], [link with this CBLAS, e.g. "-L/opt/openblas/lib -lopenblas"])], [], [with_blas=])
  AS_CASE([$with_blas],
    [''|yes], [PKG_CHECK_MODULES([BLAS], [openblas], [], [BLAS_LIBS=-lopenblas])],
    [no], [AC_MSG_ERROR([adze computes with a BLAS: --without-blas is not possible])],
    [BLAS_LIBS=$with_blas])
  AC_SUBST([BLAS_CFLAGS])
  AC_SUBST([BLAS_LIBS])
  AZ_TRY_LINK([BLAS], [OpenBLAS], [libopenblas0-openmp libopenblas-openmp-dev], [cblas.h], [cblas_sgemm])
  az_save_LIBS=$LIBS
  LIBS="$BLAS_LIBS $LIBS"
  AC_CHECK_FUNCS([openblas_get_config openblas_get_corename openblas_get_parallel openblas_set_num_threads])
  LIBS=$az_save_LIBS
])
AC_DEFUN([AZ_CHECK_HDF5], [
  AC_ARG_WITH([hdf5], [AS_HELP_STRING([--with-hdf5=DIR], [parallel HDF5 in DIR (with DIR/bin/h5pcc), default: pkg-config])], [], [with_hdf5=])
  AS_CASE([$with_hdf5],
    [''|yes], [PKG_CHECK_MODULES([HDF5], [hdf5-mpich], [], [PKG_CHECK_MODULES([HDF5], [hdf5], [], [HDF5_LIBS=-lhdf5])])],
    [no], [AC_MSG_ERROR([adze writes parallel HDF5: --without-hdf5 is not possible])],
    [AS_IF([test -x "$with_hdf5/bin/h5pcc"],
       [HDF5_CFLAGS=`$with_hdf5/bin/h5pcc -show | tr ' ' '\n' | grep '^-[[ID]]' | tr '\n' ' '`
        HDF5_CFLAGS="$HDF5_CFLAGS -I$with_hdf5/include"
        HDF5_LIBS="-L$with_hdf5/lib -Wl,-rpath,$with_hdf5/lib -lhdf5"],
       [AC_MSG_ERROR([--with-hdf5=$with_hdf5: no $with_hdf5/bin/h5pcc there; a parallel HDF5 is needed])])])
  AC_SUBST([HDF5_CFLAGS])
  AC_SUBST([HDF5_LIBS])
  AZ_TRY_LINK([HDF5], [parallel HDF5], [libhdf5-mpich-dev], [hdf5.h], [H5Pset_fapl_mpio])
  az_save_CPPFLAGS=$CPPFLAGS
  CPPFLAGS="$CPPFLAGS $HDF5_CFLAGS"
  AC_MSG_CHECKING([whether HDF5 is parallel and at least 1.10.2])
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <hdf5.h>
#if !defined(H5_HAVE_PARALLEL) || !H5_VERSION_GE(1, 10, 2)
#error not parallel or too old
#endif]], [])], [AC_MSG_RESULT([yes])], [AC_MSG_RESULT([no])
    az_missing="$az_missing
  parallel HDF5 >= 1.10.2: on Debian, apt-get install libhdf5-mpich-dev; elsewhere --with-hdf5=DIR"])
  CPPFLAGS=$az_save_CPPFLAGS
])
