/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What must be put in order before an image can be changed that was not closed properly?
 *
 * The marks that health.c makes, and QEMU, say whether that is so:
 *
 *   the dirty bit        refcounts cannot be trusted: they are written anew (repair.c)
 *   our autoclear bit    refcounts may be too high: they are lowered (leaks.c)
 *   neither, but lazy    the refcounts may still be wrong: qemu-img check -r leaks
 *   refcounts            removes the dirty bit although it leaves counts that are too
 *                        low.  Such an image is not changed (leaks.c), because clusters
 *                        in use would be allocated a second time
 *
 * Both changes survive a power cut, after which they start again.
 *
 * Locks: none; runs before any other thread can write.
 */

#include <config.h>

#include "util/report.h"
#include "format/format.h"
#include "check/leaks.h"
#include "check/recover.h"
#include "check/repair.h"

int
recover_image (struct image *image)
{
  const struct header *h = &image->header;

  if (h->incompatible & QCOW2_INCOMPAT_DIRTY) {
    if (repair_refcounts (image, false, NULL, NULL) == -1)
      return -1;
    report_event (EVENT_RECOVERED, storage_path (image->file),
                  "the image was not closed properly: its refcounts were counted anew");
  }
  else if ((h->autoclear & QCOW2_AUTOCLEAR_IN_USE) ||
           (h->compatible & QCOW2_COMPAT_LAZY_REFCOUNTS)) {
    if (leaks_free (image) == -1)
      return -1;
  }
  else
    return 0;
  return health_end_changes (image->health);
}
