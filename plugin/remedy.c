/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How does a user of the plugin say what the core proposes?
 *
 * With parameters, or with nbdkit-qcow2-img, while the image is not served.
 *
 * Locks: none; the table is constant.
 */

#include <config.h>

#include "util/remedy.h"

/* Does not need the backing file. */
#define REBASE "\"nbdkit-qcow2-img rebase -u -b FILE -F FORMAT IMAGE\""

static const char *const words[NR_REMEDIES] = {
  [REMEDY_AGAIN] = "the next start with flatten=true resumes it",
  [REMEDY_ALLOW_URI] = "allow-uri=URI (or a shorter prefix) allows it",
  [REMEDY_BACKING_FILE] = "backing=PATH names another one",
  [REMEDY_BACKING_FILE_BELOW] = REBASE " names another one",
  [REMEDY_BACKING_FORMAT] = "use backing-format=qcow2 or backing-format=raw",
  [REMEDY_BACKING_FORMAT_BELOW] = REBASE " states it",
  [REMEDY_DATA_FILE] = "use data-file=PATH",
  [REMEDY_ERASE_LAST_KEY] = "the argument \"force\" permits that",
  [REMEDY_MARKED_CORRUPT] = "the image is marked corrupt: check=repair may help",
  [REMEDY_NAME_BACKING] = "it names another backing file; name this one first, with "
    REBASE,
  [REMEDY_NO_LOCK] = "if the filesystem does not support locks, use lock=false",
  [REMEDY_OVERWRITE] = "overwrite=true would destroy it",
  [REMEDY_PASSPHRASE] = "passphrase= is required",
  [REMEDY_PASSPHRASE_BELOW] = "if it is not that of the image above, give passphrase= "
    "again, after that one",
  [REMEDY_REPAIR] = "check=repair may help",
  [REMEDY_SHRINK] = "a smaller disk requires shrink=true, which discards the data beyond "
    "the new size",
  [REMEDY_VERSION_3] = "\"nbdkit-qcow2-img amend -o compat=1.1 IMAGE\" changes that",
  [REMEDY_WRITE_NBD] = "NBD has no locks: lock=false permits writing if the server admits "
    "no other client (for example with nbdkit's limit filter)",
};

const char *
remedy (enum remedy r)
{
  return words[r];
}
