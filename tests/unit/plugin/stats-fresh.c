/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The file of statistics shows whether its server lives: it is written each 30 seconds
 * although no counter changes, and not more often; and in the end it says that the server
 * has ended.
 */

#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugin/stats.h"
#include "lib/stillclock.h"
#include "lib/stubs.h"

static char path[] = "stats-fresh.XXXXXX";

static void
get (struct stats *s)
{
  *s = (struct stats) { .ever = 1 };
}

/* Each time that the file is written, another one takes its place. */
static bool
was_written (void)
{
  static ino_t before;
  struct stat st;
  bool same;

  CHECK (stat (path, &st) == 0);
  same = st.st_ino == before;
  before = st.st_ino;
  return !same;
}

static bool
says (const char *text)
{
  char all[65536];
  FILE *fp = fopen (path, "r");
  size_t n;

  CHECK (fp != NULL);
  n = fread (all, 1, sizeof all - 1, fp);
  all[n] = '\0';
  fclose (fp);
  return strstr (all, text) != NULL;
}

int
main (void)
{
  const int fd = mkstemp (path);
  struct stats_file *file;

  CHECK (fd != -1);
  close (fd);
  file = stats_open (path, false, get);
  CHECK (file && stats_write (file) == 0 && stats_start (file) == 0);
  was_written ();
  for (int minute = 0; minute < 2; minute++) {
    for (int i = 1; i < 30; i++) {
      stillclock_pass (1000);
      CHECK (!was_written ());
    }
    stillclock_pass (1000);
    CHECK (was_written () && says ("\"running\": true"));
  }
  stats_stop (file);
  CHECK (says ("\"running\": true"));
  stats_close (file);
  CHECK (says ("\"running\": false"));
  CHECK (error_count () == 0);
  unlink (path);
  return 0;
}
