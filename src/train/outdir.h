/* train/outdir: an output directory is one job's own as long as the job lives.
 *
 * The claim is a lock on the file DIR/lock, by fcntl, which works across nodes on most file
 * systems. Where there is none, or one that other nodes do not see, the file's time of change is:
 * the holder sets it every few seconds, and who finds a file of a job that may live watches it
 * before it takes over. */
#ifndef AZ_TRAIN_OUTDIR_H
#define AZ_TRAIN_OUTDIR_H

#include "base/base.h"
#include "comm/comm.h"

typedef struct az_outdir az_outdir;

/* Make the directory, claim it, and remove what killed runs left half written in it. Refused if
 * another job holds it, naming that job. May wait some seconds, which it says. Collective. */
az_err az_outdir_open(az_outdir **out_outdir, const char *dir, az_comm *comm);
/* Look whether it is still this job's, before something is written: it may have been removed and
 * made anew, or another job may have taken it over while this one stood still. A lock that has gone
 * is made again. Fails if another job has the directory: nothing may be written there any more. On
 * rank 0, Local. */
az_err az_outdir_keep(az_outdir *outdir);
/* Give it up; directories that open made go again if nothing is in them. Local, on all ranks. */
void az_outdir_close(az_outdir *opt_outdir);

/* Remove what is half written under the names that adze gives such files: DIR/NAME.h5.tmp,
 * DIR/NAME.tmp-NUMBER, DIR/adapter/tmp-NUMBER. The directory must be this job's. Local. */
void az_outdir_sweep(const char *dir);
/* Fails if directories or pipes are in the way of the files that a run writes. Local. */
az_err az_outdir_check(const char *dir);

#endif
