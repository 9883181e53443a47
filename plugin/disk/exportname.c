/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What may an export be called, and what does its name say?
 */

#include <config.h>

#include <string.h>

#include "util/utf8.h"
#include "disk/disk-impl.h"

bool
disk_may_list (const char *name)
{
  return name[0] != '\0' && strlen (name) <= DISK_MAX_EXPORT_NAME && utf8_is_text (name);
}

static bool
begins_with (const char *s, const char *prefix)
{
  return strncmp (s, prefix, strlen (prefix)) == 0;
}

bool
disk_is_part (const char *name)
{
  return begins_with (name, DISK_LAYER) || begins_with (name, DISK_BITMAP);
}
