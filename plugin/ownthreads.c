/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Do all threads of this process wait for something, at one instant?
 *
 * Then nbdkit has answered all requests that it had read, but for those that run in the
 * plugin: between a callback and the answer, a thread runs, or is about to.
 *
 * Linux tells of a thread whether it sleeps, and how often it went to sleep.  One look
 * takes a while, and the first thread may run when the last is looked at.  But if all
 * sleep in two looks, and none went to sleep again, none has run in between.
 *
 * Locks: none; there is no state.
 */

#include <config.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugin/ownthreads.h"

/* Those that are asleep, or no longer there; a disk is waited for in the plugin. */
#define SLEEPING "SDIXZ"

/* Adds up how often the thread TID went to sleep.  Does it sleep?  (One that has just
 * ended does.) */
static bool
sleeps (const char *tid, uint64_t *times)
{
  static const char state[] = "\nState:\t", slept[] = "\nvoluntary_ctxt_switches:\t";
  char path[64], text[4096];
  const char *at;
  ssize_t len;
  int fd;

  snprintf (path, sizeof path, "/proc/self/task/%.20s/status", tid);
  fd = open (path, O_RDONLY | O_CLOEXEC);
  if (fd == -1)
    return true;
  len = read (fd, text, sizeof text - 1);
  close (fd);
  if (len <= 0)
    return true;
  text[len] = '\0';
  at = strstr (text, slept);
  *times += strtoull (tid, NULL, 10) + (at ? strtoull (at + strlen (slept), NULL, 10) : 0);
  at = strstr (text, state);
  return at && strchr (SLEEPING, at[strlen (state)]);
}

static bool
others_sleep (uint64_t *times)
{
  DIR *const all = opendir ("/proc/self/task");
  const struct dirent *entry;
  const long self = gettid ();
  bool yes = true;

  *times = 0;
  while (yes && all && (entry = readdir (all)) != NULL)
    yes = entry->d_name[0] == '.' || atol (entry->d_name) == self ||
      sleeps (entry->d_name, times);
  if (all)
    closedir (all);
  return yes;
}

bool
ownthreads_sleep (bool (*is_busy) (void))
{
  uint64_t before, after;

  return others_sleep (&before) && !is_busy () && others_sleep (&after) && before == after;
}
