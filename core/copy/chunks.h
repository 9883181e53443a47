/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Works through a whole disk with several threads.  See chunks.c.
 */

#ifndef QCOW2_CHUNKS_H
#define QCOW2_CHUNKS_H

#include <stdbool.h>
#include <stdint.h>

/* Who wants to know how far a long job is. */
struct chunks_watch {
  /* The thread that runs the job calls this before the first change and then from time to
   * time: DONE of TOTAL bytes of the disk have been examined, and COPIED bytes have been
   * written.  Returns whether to continue. */
  bool (*step) (void *opaque, uint64_t done, uint64_t total, uint64_t copied);
  void *opaque;
  /* The caller removes the image after a failure: messages must not say how to resume. */
  bool image_goes;
};

/* What is said if a job ends early: "PATH: WHAT failed after 1 of 2 bytesTHEN;
 * REMEDY". */
struct chunks_words {
  const char *path, *what;      /* WHAT NULL: nothing, because nothing is left of it */
  const char *then, *remedy;    /* or NULL, or empty */
};

#define CHUNKS_MOST_THREADS 1024

struct chunks_job {
  struct chunks_words words;
  uint64_t size;                /* of the disk, in bytes */
  uint64_t begin;               /* what is before that was done by an earlier job */
  uint64_t chunk;               /* how much a thread takes at a time, a power of two; 0:
                                   chosen, at least 4 MiB */
  unsigned threads;             /* there must be that many, up to CHUNKS_MOST_THREADS; 0:
                                   chosen */
  uint64_t scratch;             /* memory for each thread, in bytes */
  bool remote;                  /* files are behind links: threads wait for answers more
                                   than for a processor */
  void *opaque;                 /* for the functions */
  /* Does the range [START, END) of the disk.  Any thread; ranges are taken in order.
   * START is a multiple of the chunk, and so of any cluster size (if it was chosen); so
   * is END, or it is the end of the disk.  Adds the number of bytes written to *COPIED,
   * also on failure.  -1: reported, unless unwanted (), which is true once the job is to
   * end. */
  int (*work) (void *opaque, void *scratch, uint64_t start, uint64_t end,
               uint64_t *copied);
  /* NULL, or makes durable what has been done, while work goes on: at least all before
   * BEFORE was, and COPIED bytes were written.  The thread that runs the job calls it
   * every few seconds.  -1: reported; the job fails, since a later sync may succeed
   * although data was lost. */
  int (*make_durable) (void *opaque, uint64_t before, uint64_t copied);
  /* NULL, or wakes threads in work () that wait for one another: unwanted () has become
   * true.  Any thread calls it, with the lock of this module. */
  void (*wake) (void *opaque);
};

/* Calls the watch (or NULL).  Returns whether to continue. */
extern bool chunks_tell (const struct chunks_watch *, uint64_t done, uint64_t total,
                         uint64_t copied);
/* Asks the watch before the first change.  0, or -1 with EINTR (reported). */
extern int chunks_may_begin (const struct chunks_words *, uint64_t size,
                             const struct chunks_watch *);
/* Does the whole disk.  *COPIED: bytes, as the watch is told.  -1 (reported, with how
 * far it came): the error of the first chunk or sync that failed, or EINTR: the watch
 * stopped it. */
extern int chunks_run (const struct chunks_job *, const struct chunks_watch *,
                       uint64_t *copied);
/* Reports that it ended early.  ERR: errno.  Returns -1. */
extern int chunks_cut_short (const struct chunks_words *, int err, uint64_t done,
                             uint64_t size);

#endif /* QCOW2_CHUNKS_H */
