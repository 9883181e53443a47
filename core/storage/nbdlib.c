/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where are the functions of libnbd?
 *
 * The plugin is not linked with libnbd, but loads it for the first connection: it brings
 * a dozen other libraries (for URIs and TLS), and most servers of images in files have no
 * use for them.  It then stays loaded.  There are no locks: dlopen has its own.
 */

#include <config.h>

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>

#include "storage/nbdlib.h"

int
nbdlib_load (struct nbdlib *lib, const char **why)
{
  void *so = dlopen ("libnbd.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

  if (so == NULL)
    goto fail;
#define LOAD(name) \
  if ((lib->name = (typeof (lib->name)) dlsym (so, "nbd_" #name)) == NULL) \
    goto fail;
  NBDLIB_FUNCTIONS (LOAD)
#undef LOAD
#define LOAD_NEWER(name) lib->name = (typeof (lib->name)) dlsym (so, "nbd_" #name)
  LOAD_NEWER (aio_block_status_64);
  LOAD_NEWER (get_extended_headers_negotiated);
#undef LOAD_NEWER
  dlclose (so);                 /* RTLD_NODELETE */
  return 0;

 fail:
  *why = dlerror ();
  if (so)
    dlclose (so);
  errno = ENOENT;
  return -1;
}
