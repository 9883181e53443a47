/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which kind of storage does a name mean?
 */

#include <config.h>

#include "storage/hostfile.h"
#include "storage/nbdfile.h"
#include "storage/nbduri.h"
#include "storage/storage-impl.h"

int
storage_open (const char *name, const struct storage_options *options,
              struct storage **result)
{
  const int r = nbduri_is (name) ? nbdfile_open (name, options, result)
    : hostfile_open (name, options, result);

  if (r == 0)
    (*result)->size = storage_seen_size (*result, (*result)->size);
  return r;
}
