/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which compressed clusters are decompressed before a client asks for them?
 * See readahead.c.
 */

#ifndef QCOW2_READAHEAD_H
#define QCOW2_READAHEAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/epoch.h"
#include "request/view.h"

/* How busy the processors are with compressed clusters; shared by the disks of a
 * server. */
struct readahead_load {
  unsigned processors;          /* constant; 1: nothing is ever read ahead */
  atomic_uint readers;          /* requests that read compressed clusters */
  atomic_uint working;          /* threads that work ahead of them */
};
extern void readahead_load_init (struct readahead_load *);

struct readahead;

/* CURRENT is the view that new requests to the active disk use.  All must outlive the
 * result.  NULL on ENOMEM (reported). */
extern struct readahead *readahead_new (struct epoch *,
                                        _Atomic (const struct view *) *current,
                                        struct readahead_load *);
/* No request may be running.  Accepts NULL. */
extern void readahead_free (struct readahead *);

/* There are clients.  Nothing is read ahead before, because what changes a whole image
 * has threads of its own. */
extern void readahead_allow (struct readahead *);

/* Ends all threads, and waits for them, but for no remote server.  The next request may
 * start threads again.  For one caller at a time; requests may be running. */
extern void readahead_end (struct readahead *);

/* A request that reads compressed clusters.  All zeros before the first one. */
struct readahead_request {
  struct readahead *readahead;
  unsigned stream;
  uint64_t id;                  /* of the stream */
  bool ordered;                 /* something may be read ahead for it */
};
/* The request reads from guest offset AT on, where there is a compressed cluster of
 * CLUSTER_SIZE bytes; END is the end of the request.  V need only last as long as the
 * request, but what it points to as long as the disk. */
extern void readahead_touch (struct readahead_request *, const struct view *v,
                             uint64_t at, uint64_t end, uint64_t cluster_size);
/* The request, on V, has to wait for a cluster of LAYER: meanwhile, does the work of a
 * thread. */
extern void readahead_help (struct readahead_request *, const struct view *v,
                            unsigned layer);
/* The request ends. */
extern void readahead_done (struct readahead_request *);

#endif /* QCOW2_READAHEAD_H */
