/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Errors that a thread keeps are reported later, line by line and in order, or forgotten;
 * meanwhile the errors of other threads are reported at once.  They can be taken out of
 * the thread, and reported by whoever has them.  What is to be the last
 * message follows others, and only others.  What is not to be shown is escaped.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "util/report.h"
#include "lib/stubs.h"

static void *
report_now (void *opaque)
{
  const unsigned long before = error_count ();

  (void) opaque;
  report_error ("another thread");
  CHECK (error_count () == before + 1 && strcmp (last_error (), "another thread") == 0);
  return NULL;
}

int
main (void)
{
  char thread, *taken;

  report_keep ();
  errno = ENOSPC;
  report_error ("one\n%m");
  report_error ("%s", "two");
  report_error ("two");
  CHECK (errno == ENOSPC && error_count () == 0);
  run_threads (report_now, &thread, 1, 1);
  clear_last_error ();
  report_end_keeping (true);
  CHECK (error_count () == 3 && strcmp (last_error (), "two") == 0);

  /* What controls a terminal, cannot be seen, rearranges the text, or is none. */
  report_error ("%s", "a\x1b\xc2\x9b \xe2\x80\xae" "b\xe2\x80\x8b"
                "\xef\xbb\xbf\xff\xe4\xb8\xad");
  CHECK (strcmp (last_error (), "a\\x1b\\xc2\\x9b \\xe2\\x80\\xaeb\\xe2\\x80\\x8b"
                 "\\xef\\xbb\\xbf\\xff\xe4\xb8\xad") == 0);

  /* Only a line that is the last one is repeated, not one that ends like it. */
  report_keep ();
  report_error ("not a second line");
  report_error ("a second line");
  report_error ("a second line");
  report_end_keeping (true);
  CHECK (error_count () == 6);

  report_keep ();
  report_error ("three");
  report_event (EVENT_MOVED, "image", "news\n");
  CHECK (error_count () == 7 && strcmp (last_error (), "image: news\\x0a") == 0);
  report_end_keeping (false);
  report_keep ();
  report_end_keeping (true);
  CHECK (error_count () == 7 && errno == ENOSPC);

  report_keep ();
  CHECK (report_take_kept () == NULL);
  report_error ("mine");
  taken = report_take_kept ();
  report_end_keeping (true);
  CHECK (error_count () == 7);
  clear_last_error ();
  report_taken (taken, true);
  CHECK (error_count () == 8 && strcmp (last_error (), "mine") == 0);
  report_keep ();
  report_error ("nobody's");
  report_taken (report_take_kept (), false);
  report_taken (NULL, true);
  report_end_keeping (true);
  CHECK (error_count () == 8 && errno == ENOSPC);

  report_error ("four");
  CHECK (error_count () == 9 && strcmp (last_error (), "four") == 0);

  errno = ENOENT;
  report_last ("last: %d", 1);
  CHECK (error_count () == 10 && strcmp (last_error (), "last: 1") == 0);
  report_last ("last: %d", 2);
  CHECK (error_count () == 10 && errno == ENOENT);
  report_error ("secret");
  report_public ("public %d", 2);
  CHECK (error_count () == 12 && strcmp (last_error (), "public 2") == 0);
  report_last ("last: %d", 3);
  CHECK (error_count () == 12 && errno == ENOENT);
  report_keep ();
  report_error ("five");
  report_last ("last: %d", 3);
  CHECK (error_count () == 12);
  report_end_keeping (true);
  report_last ("last: %d", 4);
  CHECK (error_count () == 14 && strcmp (last_error (), "last: 4") == 0);
  return 0;
}
