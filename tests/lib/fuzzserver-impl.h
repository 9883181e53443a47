/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the parts of the server share: fuzzserver.c, fuzzclients.c, fuzzchange.c, and
 * fuzzjudge.c, on which the others rest.
 */

#ifndef TEST_FUZZSERVER_IMPL_H
#define TEST_FUZZSERVER_IMPL_H

#include "lib/fuzzserver.h"

#define COUNT(array) (sizeof (array) / sizeof ((array)[0]))

#define PASSPHRASE "open sesame"

/* What the model knows of a disk. */
#define WINDOW (256u << 10)

struct model {
  bool known;
  uint64_t size;
  uint8_t bytes[WINDOW];
};

/* Snapshots that the script takes; those of an image have other names. */
#define NR_SNAPSHOTS 2
#define OURS "our snapshot "

extern struct fuzz_state {
  struct nbdkit_plugin *plugin;
  char image[4096];
  bool sound;
  bool told;                    /* this server has reported an error */
  const char *passphrase;       /* that a server got last */
  struct model active, snapshots[NR_SNAPSHOTS]; /* valid if the image is sound */
  /* How many snapshots have that name: the first one is meant by it.  -1: unknown. */
  int namesakes[NR_SNAPSHOTS];
} fuzz;

/* A parameter of a start. */
struct given {
  const char *key, *value;
};

/* --- fuzzjudge.c --- */

/* With QCOW2_TEST_DEBUG in the environment, prints what the script asks for. */
extern void fuzz_show (const char *what, const char *name, uint64_t offset,
                       uint64_t count);
/* After a call that returned R.  Each error is reported, or was before (R9). */
extern int fuzz_heard (int r);
extern bool fuzz_is_sound (void);
/* What a request that failed has left.  NULL: no model. */
extern void fuzz_forget (struct model *);
extern void fuzz_forget_all (void);
/* NULL: it is not ours. */
extern struct model *fuzz_our_snapshot (const char *name);
/* What the changes before serving have done to the models. */
extern void fuzz_follow_all (const struct given *, unsigned n);

/* --- fuzzclients.c --- */

/* Clients come, ask and go, until the script ends the server.  OTHER: the export "" is
 * not the active disk. */
extern void fuzz_serve (struct fuzz_script *, bool other);

/* --- fuzzchange.c --- */

/* Changes the image once, but never what the disk shows. */
extern void fuzz_change (struct fuzz_script *);
/* The disk, or also the first snapshot. */
extern void fuzz_describe_and_map (bool of_snapshot);

#endif /* TEST_FUZZSERVER_IMPL_H */
