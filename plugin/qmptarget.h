/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which disk, and which file of it, does a name mean in a command?  See qmptarget.c.
 */

#ifndef QCOW2_QMPTARGET_H
#define QCOW2_QMPTARGET_H

#include "disk/dir.h"
#include "disk/disk.h"
#include "plugin/iostats.h"
#include "plugin/qmpargs.h"

/* The names of the nodes of the disk, from the lowest layer up. */
struct qmp_nodes {
  char **names;
  unsigned n;
};

struct jobs;
struct qmp_added;
struct qmp_secrets;

/* What is served: a disk, or a directory. */
struct qmp_host {
  struct disk *disk;
  struct dir *dir;
  struct iostats *iostats;
  const char *why_fixed;        /* why no command may change it; or NULL */
  struct jobs *jobs;
  struct qmp_nodes *nodes;      /* of the disk; only the thread that runs commands uses
                                   them */
  struct qmp_added *added;      /* the same: other nodes */
  struct qmp_secrets *secrets;  /* the same */
  const struct disk_options *options;   /* how images are opened */
  int socket;                   /* on which clients of QMP come */
  json_t *(*statistics) (void); /* what stats= writes; NULL on ENOMEM */
};

struct qmp_target {
  struct disk *disk;
  unsigned layer;               /* 0: the image itself */
  struct dir *dir;              /* NULL: there is none */
  struct dir_image *image;
};

/* The disk stays open until qmptarget_leave.  Returns 0, or -1: there is none of that
 * name, or with the error why it cannot be opened. */
extern int qmptarget_find (const struct qmp_host *, const char *name,
                           struct qmp_target *, struct qmp_error *);
/* The same; if there is none, QEMU's words say so. */
extern int qmptarget_need (const struct qmp_host *, const char *name, struct qmp_target *,
                           struct qmp_error *);
extern void qmptarget_leave (struct qmp_target *);      /* zeros are accepted */

/* How many layers has it? */
extern unsigned qmptarget_count (struct disk *);
/* The layer, from FROM on, that a path means: as QEMU finds it, from the directory of the
 * image above.  The number of layers: none. */
extern unsigned qmptarget_find_file (struct disk *, const char *path, unsigned from);
/* The layer of the node NAME: 1, if it is one of that disk, or else 0.  -1: there is no
 * such node (refused). */
extern int qmptarget_find_layer (const struct qmp_host *, const struct qmp_target *disk,
                                 const char *name, unsigned *layer, struct qmp_error *);

/* Calls FN for each disk that is open, with the name of its device, until FN returns a
 * value other than 0, which is returned. */
extern int qmptarget_each (const struct qmp_host *, dir_fn, void *opaque);

/* The name of the device that an export of one image belongs to. */
#define QMPTARGET_DEVICE "disk"

/* The node of a layer of that device.  NULL on ENOMEM; the caller frees it. */
extern char *qmptarget_node (const struct qmp_host *, const char *device, unsigned layer);

/* Gives the layers of the disk their names, and adds its image as a node.  Call it first.
 * -1: reported. */
extern int qmptarget_name_nodes (const struct qmp_host *);
extern void qmptarget_free_nodes (struct qmp_nodes *);

/* Would QEMU accept that name for a new node?  -1: refused. */
extern int qmptarget_check_name (const char *name, struct qmp_error *);
/* Does that name already mean something? */
extern bool qmptarget_is_used (const struct qmp_host *, const char *name);
/* Before an image is put on top of the disk: returns its NAME, or if it has none the next
 * number, for qmptarget_add_top, and makes space for it.  NULL on ENOMEM. */
extern char *qmptarget_new_top (const struct qmp_host *, const char *name);
/* It is on top.  The host owns the name. */
extern void qmptarget_add_top (const struct qmp_host *, char *name);
/* Before another image takes the place of the disk's, with its own chain of N layers, of
 * which the lowest KEEP are the disk's, too: makes their names.  NAME: of the top.  -1:
 * ENOMEM. */
extern int qmptarget_name_chain (const struct qmp_host *, unsigned n, unsigned keep,
                                 const char *name, struct qmp_nodes *);
/* It has: these are the names of the disk's nodes from now on. */
extern void qmptarget_switch_chain (const struct qmp_host *, struct qmp_nodes *);
/* N layers of the disk, from layer FIRST on, have gone.  (With a directory, the layers
 * below them have other names then.) */
extern void qmptarget_remove (const struct qmp_host *, unsigned first, unsigned n);

#endif /* QCOW2_QMPTARGET_H */
