/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The plugin with an nbdkit whose user, and whose clients, do what a fuzzer says.  See
 * fuzzserver.c.
 */

#ifndef TEST_FUZZSERVER_H
#define TEST_FUZZSERVER_H

#include "lib/fuzzscript.h"

/* The files of the server, in its directory: the image, and those that it may name. */
#define FUZZSERVER_IMAGE "image"
#define FUZZSERVER_BELOW "below"
#define FUZZSERVER_DATA "data"
/* None of them becomes larger. */
#define FUZZSERVER_MAX_FILE (48u << 20)

/* The directory, an absolute path, which must stay valid.  No file outside of it is
 * opened, whatever an image says. */
extern void fuzzserver_begin (const char *dir);
/* Without arguments, for engines: in a new directory below $TMPDIR, /dev/shm or /tmp. */
extern void fuzzserver_begin_somewhere (void);
extern void fuzzserver_path (const char *name, char path[4096]);

/* Starts the server, serves, and stops, again and again, as long as SCRIPT lasts.
 * CREATE: the first start creates the image; otherwise it is there. */
extern void fuzzserver_run (struct fuzz_script *, bool create);

#endif /* TEST_FUZZSERVER_H */
