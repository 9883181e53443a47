/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which file does a name in a directory mean?  See dirfile.c.
 */

#ifndef QCOW2_DIRFILE_H
#define QCOW2_DIRFILE_H

#include <stdbool.h>
#include <sys/stat.h>

struct dirfile {
  const char *name;             /* without slashes; NULL: no file */
  int dir;                      /* descriptor of the directory; or, if it is `opened', of
                                   the file itself, which need not have its name yet */
  bool opened;
  bool follow;                  /* the name may be a symbolic link, if all that it leads
                                   to is below the directory */
};

/* Can symbolic links in this directory be followed?  Returns 0, or -1 with errno set (not
 * reported). */
extern int dirfile_can_follow (int dir);

/* As fstatat, without following a link unless `follow' says so.  Returns 0, or -1 with
 * errno set (not reported): EXDEV if a link leads out of the directory. */
extern int dirfile_stat (const struct dirfile *, struct stat *);
/* As openat.  The same errors; ELOOP if the name is a link that is not to be followed. */
extern int dirfile_open (const struct dirfile *, int flags);

#endif /* QCOW2_DIRFILE_H */
