/* SPDX-License-Identifier: BSD-3-Clause
 *
 * QEMU-compatible locks on an open file: see hostlock.c.  Other folders use
 * storage_lock.
 */

#ifndef QCOW2_HOSTLOCK_H
#define QCOW2_HOSTLOCK_H

/* Open-file-description locks on bytes 100+i (permission i is used) and 200+i
 * (permission i is not shared).
 */
enum storage_lock {
  STORAGE_UNLOCKED,
  STORAGE_READER,      /* uses read; does not share write, resize */
  STORAGE_WRITER,      /* uses read, write, resize; does not share write, resize */
  /* The same for an external data file, of which only resize is not shared: the locks
   * of the image itself keep writers apart. */
  STORAGE_DATA_READER,
  STORAGE_DATA_WRITER,
};

/* Goes from the locks of role FROM, which FD holds, to those of role TO.
 * Returns 0, or -1 with errno set (EBUSY: somebody else is in the way) and the
 * error reported; FD then holds the locks of FROM as before.
 */
extern int hostlock_change (int fd, const char *path, enum storage_lock from,
                            enum storage_lock to);

#endif /* QCOW2_HOSTLOCK_H */
