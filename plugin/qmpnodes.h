/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which nodes were added by commands?  See qmpnodes.c.
 */

#ifndef QCOW2_QMPNODES_H
#define QCOW2_QMPNODES_H

#include <stdbool.h>

#include "disk/disk.h"

/* Only the thread that runs commands uses the fields. */
struct qmp_node {
  struct qmp_node *next;
  char *name;                   /* NULL: it can only be reached from the node above it */
  const char *driver;           /* QEMU's name */
  char *path;                   /* absolute, or an NBD URI */
  bool readonly;
  struct qmp_node *file;        /* below a format; NULL: this is a protocol */
  bool inner;                   /* it goes together with the node above it */
  struct storage *storage;      /* raw: that of `file', not locked; NULL: qcow2 */
  struct image *image;          /* qcow2, locked as QEMU does */
  struct layers *layers;        /* the image, and what it was opened over */
  enum backing_policy backing;
  unsigned users;               /* nodes above it, jobs, a disk */
  bool served;                  /* it is a node of a disk, which has its image ... */
  bool left;                    /* ... and was one: it is not open */
  uint64_t size;                /* of such a disk, in bytes */
};

/* All of them. */
struct qmp_added {
  struct qmp_node *first;       /* the newest one */
  unsigned n;                   /* those that are open here */
};

/* NULL: there is none. */
extern struct qmp_node *qmpnodes_find (const struct qmp_added *, const char *name);

/* What is to be opened. */
struct qmp_node_options {
  const char *name;             /* or NULL */
  const char *driver;           /* a string that stays */
  const char *path;             /* of a protocol */
  struct qmp_node *file;        /* of a format */
  bool inner;
  bool readonly, auto_readonly; /* the latter: or if it cannot be written */
  enum backing_policy backing;  /* BACKING_FOLLOW or BACKING_IGNORE */
};

/* Opens it as the images of the server are.  NULL: reported. */
extern struct qmp_node *qmpnodes_add (struct qmp_added *, const struct disk_options *,
                                      const struct qmp_node_options *);
/* Closes a node that has no users, with its inner ones. */
extern void qmpnodes_remove (struct qmp_added *, struct qmp_node *);
/* Closes all. */
extern void qmpnodes_end (struct qmp_added *);

/* The disk has an image at PATH as its node NAME from the beginning: that is as if it had
 * been added, and had become one of the disk.  -1: reported. */
extern int qmpnodes_begin (struct qmp_added *, const char *name, const char *path,
                           uint64_t size);
/* The image of the node has become one of a disk.  The node stays, in use, until it is
 * removed after that. */
extern void qmpnodes_hand_over (struct qmp_added *, struct qmp_node *);
/* The disk does without its node of that name, which was perhaps added, and was its
 * TOP. */
extern void qmpnodes_leave (struct qmp_added *, const char *name, bool top);

/* The image of a node that has left, read-only, if it is still there; closed by the
 * caller.  NULL: it is not. */
extern struct image *qmpnodes_look (const struct qmp_node *, const struct disk_options *);

/* A job has written to the image of the node: reads what it says now.  If that fails
 * (reported), nothing writes to the node any more. */
extern void qmpnodes_read_again (struct qmp_node *, const struct disk_options *);

#endif /* QCOW2_QMPNODES_H */
