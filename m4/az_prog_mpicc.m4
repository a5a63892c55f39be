# AZ_PROG_MPICC
# The C compiler is the MPI wrapper unless the user names another. The default is set right after AC_INIT
# (": ${CC=mpicc}"); where other MPIs took over the plain name, Debian's MPICH is still mpicc.mpich.
AC_DEFUN([AZ_PROG_MPICC], [
  AS_IF([test "x$CC" = xmpicc], [
    AS_IF([command -v mpicc.mpich >/dev/null 2>&1], [CC=mpicc.mpich])
    AS_IF([command -v "$CC" >/dev/null 2>&1], [],
      [AC_MSG_ERROR([no MPI compiler wrapper (mpicc) found; on Debian: apt-get install mpich libmpich-dev; elsewhere: load the MPI module or set CC])])
  ])
  AC_PROG_CC
  AM_PROG_CC_C_O
])
