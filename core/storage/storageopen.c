/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which kind of storage does a name mean?
 */

#include <config.h>

#include "storage/hostfile.h"
#include "storage/nbdfile.h"
#include "storage/nbduri.h"
#include "storage/storage.h"

int
storage_open (const char *name, const struct storage_options *options,
              struct storage **result)
{
  return nbduri_is (name) ? nbdfile_open (name, options, result)
    : hostfile_open (name, options, result);
}
