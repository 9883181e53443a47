/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which images of a directory are open?
 *
 *   absent -> OPENING   the first client comes; other clients of the image wait
 *   OPENING -> OPEN     the image is available to all
 *   OPENING -> FAILED   the image cannot be opened, also not for clients that wait.  (If
 *                       each of them tried anew, a backing chain that leads back to this
 *                       server would keep it busy for ever: it is a client of its own.)
 *   OPENING -> GONE     the client that opened the image has left; one that waits tries
 *   OPEN -> CLOSING     the last client has left; new clients of the image wait.  (If
 *                       there was no space for what they had written, it would be lost.
 *                       Then the image stays OPEN, until another client leaves.)
 *   CLOSING -> GONE     and then one of them opens it anew
 *
 * Images that FAILED or are GONE are no longer in the list.  One that has got another
 * image on top, or has moved, stays OPEN (dir_keep): its name means that one.
 *
 * Images are opened and closed without the lock, so an image that is slow or damaged does
 * not affect the others.  Each image has its own locks on the host file, its own
 * refcounts and its own health.  All images share the memory for mappings, and its limit.
 *
 * Names are those of files in the directory.  The directory is opened once, so it cannot
 * be replaced by another one later.  A name has no slash and does not begin with a dot.
 * Where it leads is checked while it is opened (storage/dirfile.c), so it does not matter
 * if it becomes a symbolic link at the last moment.  A client may ask for any name, so a
 * name is made printable before it is used in a message.
 *
 * Locks: `lock' guards the list of images, and their states and users.
 */

#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/memory.h"
#include "util/printable.h"
#include "util/report.h"
#include "util/text.h"
#include "util/utf8.h"
#include "format/format.h"
#include "format/header.h"
#include "storage/dirfile.h"
#include "disk/dir.h"

struct dir_image {
  struct dir_image *next;       /* under lock, as is all until the next line */
  unsigned users;
  unsigned waiting;             /* for another state; the last one frees what FAILED or is
                                   GONE */
  enum { OPENING, OPEN, CLOSING, FAILED, GONE } state;
  int why;                      /* it FAILED: errno */
  bool stays;                   /* it was reported that it stays OPEN without users */

  char *name;                   /* constant */
  char *path;                   /* constant; printable, for messages */
  struct disk *disk;            /* constant while OPEN */
};

/* An image that was bad when it was closed, or was not opened, until it is opened
 * again. */
struct bad {
  struct bad *next;
  struct disk_state state;
  char name[];
};
#define MOST_BAD 128

struct dir {
  struct disk_options options;  /* for any image; in_dir has no name */
  struct map *map;
  struct readahead_load load;

  pthread_mutex_t lock;
  pthread_cond_t changed;       /* the state of an image has changed, or it has gone */
  struct dir_image *images;
  struct disk_stats closed;     /* sums over the images that were closed */
  struct bad *bad;              /* the last one first */
  bool failed;                  /* an image could not be closed properly */
};

int
dir_open (const struct disk_options *options, struct dir **ret)
{
  struct dir *dir = memory_new (1, sizeof *dir);

  if (dir == NULL)
    return -1;
  dir->options = *options;
  readahead_load_init (&dir->load);
  dir->options.load = &dir->load;
  dir->map = map_new (options->l2_cache);
  dir->options.in_dir.dir = open (options->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  pthread_mutex_init (&dir->lock, NULL);
  pthread_cond_init (&dir->changed, NULL);
  if (dir->map == NULL || dir->options.in_dir.dir == -1) {
    report_error ("%s: cannot open the directory: %m", options->path);
    dir_close (dir);
    return -1;
  }
  if (options->in_dir.follow && dirfile_can_follow (dir->options.in_dir.dir) == -1) {
    report_error ("%s: cannot follow symbolic links in this directory (openat2, Linux 5.6 "
                  "or newer): %m", options->path);
    dir_close (dir);
    return -1;
  }
  *ret = dir;
  return 0;
}

static void
free_image (struct dir_image *image)
{
  free (image->name);
  free (image->path);
  free (image);
}

int
dir_close (struct dir *dir)
{
  struct dir_image *image;
  struct bad *bad;
  int r;

  if (dir == NULL)
    return 0;
  r = dir->failed ? -1 : 0;
  while ((image = dir->images) != NULL) {
    dir->images = image->next;
    if (disk_close (image->disk) == -1)
      r = -1;
    free_image (image);
  }
  while ((bad = dir->bad) != NULL) {
    dir->bad = bad->next;
    free (bad);
  }
  if (dir->map)
    map_free (dir->map);
  if (dir->options.in_dir.dir >= 0)
    close (dir->options.in_dir.dir);
  pthread_cond_destroy (&dir->changed);
  pthread_mutex_destroy (&dir->lock);
  free (dir);
  return r;
}

/* --- the images in the directory --- */

static bool
is_name (const char *name)
{
  return name[0] != '\0' && name[0] != '.' && strchr (name, '/') == NULL;
}

static struct dirfile
file_of (const struct dir *dir, const char *name)
{
  struct dirfile file = dir->options.in_dir;

  file.name = name;
  return file;
}

/* Does the file look like an image?  Never waits, and reports nothing. */
static bool
is_image (const struct dir *dir, const char *name)
{
  const struct dirfile file = file_of (dir, name);
  char start[sizeof (struct qcow2_header)];
  struct stat st;
  ssize_t n;
  int fd;

  if (!is_name (name) || dirfile_stat (&file, &st) == -1 ||
      !(S_ISREG (st.st_mode) || S_ISBLK (st.st_mode)))
    return false;
  fd = dirfile_open (&file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd == -1)
    return false;
  n = pread (fd, start, sizeof start, 0);
  close (fd);
  return n > 0 && header_is_qcow2 (start, n);
}

int
dir_list (struct dir *dir, export_fn emit, void *opaque, unsigned *unlisted)
{
  /* A file descriptor of its own, because the position in the directory belongs to it. */
  const int fd = openat (dir->options.in_dir.dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *stream = fd == -1 ? NULL : fdopendir (fd);
  struct dirent *e;
  int r = 0;

  *unlisted = 0;
  if (stream == NULL) {
    report_error ("%s: cannot read the directory: %m", dir->options.path);
    if (fd != -1)
      close (fd);
    return -1;
  }
  while (r == 0 && (errno = 0, e = readdir (stream)) != NULL)
    if (!is_image (dir, e->d_name))
      ;
    else if (exports_may_list (e->d_name))
      r = emit (opaque, e->d_name, NULL);
    else
      ++*unlisted;
  if (r == 0 && errno != 0) {
    report_error ("%s: cannot read the directory: %m", dir->options.path);
    r = -1;
  }
  closedir (stream);
  return r;
}

/* --- clients come and leave --- */

/* Called with the lock held. */
static struct dir_image *
find (const struct dir *dir, const char *name)
{
  struct dir_image *image;

  for (image = dir->images; image; image = image->next)
    if (strcmp (image->name, name) == 0)
      return image;
  return NULL;
}

/* Is the name of a file the same in messages?  (If not, it has a backslash there.  The
 * header of the image to which a disk has moved can have that, but no control character:
 * see overlayref.c.) */
static bool
is_shown (const char *name)
{
  unsigned n;

  if (strlen (name) > NAME_MAX)         /* there is no such file */
    return false;
  for (; *name; name += n)
    if (*name == '\\' || (n = utf8_shown (name)) == 0)
      return false;
  return true;
}

static struct dir_image *
new_image (const struct dir *dir, const char *name)
{
  struct dir_image *image = memory_new (1, sizeof *image);
  char text[PRINTABLE_SIZE (NAME_MAX)];

  if (image == NULL)
    return NULL;
  image->name = strdup (name);
  image->path = text_new ("%s/%s", dir->options.path, is_shown (name) ? name
                          : printable (name, NAME_MAX, text, sizeof text));
  if (image->name == NULL || image->path == NULL) {
    report_error ("%s: no memory for the name of an image: %m", dir->options.path);
    free_image (image);
    return NULL;
  }
  image->state = OPENING;
  return image;
}

/* WHY: errno if it FAILED, 0 if it is GONE.  Called with the lock held. */
static void
take_out (struct dir *dir, struct dir_image *image, int why)
{
  struct dir_image **link;

  for (link = &dir->images; *link != image; link = &(*link)->next)
    ;
  *link = image->next;
  image->state = why ? FAILED : GONE;
  image->why = why;
  if (image->waiting == 0)
    free_image (image);
  else
    pthread_cond_broadcast (&dir->changed);
}

/* Waits for another state of IMAGE, which then may have been freed.  Returns -1
 * (reported) if the image FAILED or no client waits for it any more.  Called with the
 * lock held. */
static int
await_change (struct dir *dir, struct dir_image *image)
{
  const int state = image->state;
  int why = 0;

  image->waiting++;
  while ((int) image->state == state)
    pthread_cond_wait (&dir->changed, &dir->lock);
  if (image->state == FAILED) {
    errno = why = image->why;
    report_error ("%s: opening it for another client failed: %m", image->path);
  }
  if (--image->waiting == 0 && (image->state == FAILED || image->state == GONE))
    free_image (image);
  if (why == 0 && !storage_link_is_wanted (&dir->options.link))
    why = ESHUTDOWN;
  errno = why;
  return why ? -1 : 0;
}

/* Returns -1.  The client knows the name; that of the directory is none of its
 * business. */
static int
no_image (const char *name)
{
  char text[PRINTABLE_SIZE (64)];

  report_public ("there is no image \"%s\" in the directory",
                 printable (name, 64, text, sizeof text));
  errno = ENOENT;
  return -1;
}

static int
open_image (const struct dir *dir, struct dir_image *image)
{
  struct disk_options options = dir->options;
  struct stat st;

  options.path = image->path;
  options.in_dir = file_of (dir, image->name);
  options.map = dir->map;
  if (dirfile_stat (&options.in_dir, &st) == -1 && errno == ENOENT)
    return no_image (image->name);
  if (disk_open (&options, &image->disk) == -1)
    return -1;
  report_debug ("%s: opened: %s%s%s", image->path,
                disk_description (image->disk),
                disk_why_readonly (image->disk) ? ": " : "",
                disk_why_readonly (image->disk)
                ? disk_why_readonly (image->disk) : "");
  return 0;
}

/* Called with the lock held, as the next one. */
static void
forget_bad (struct dir *dir, const char *name)
{
  struct bad **link = &dir->bad, *b;
  size_t n = 0;

  while ((b = *link) != NULL)
    if (strcmp (b->name, name) == 0 || ++n == MOST_BAD) {
      *link = b->next;
      free (b);
    }
    else
      link = &b->next;
}

/* Keeps in mind how the image was when it was closed, unless it was well. */
static void
keep_bad (struct dir *dir, const char *name, const struct disk_state *state)
{
  struct bad *b;

  if (!disk_is_bad (state))
    return;
  forget_bad (dir, name);
  b = malloc (sizeof *b + strlen (name) + 1);
  if (b == NULL)
    return;
  b->state = *state;
  strcpy (b->name, name);
  b->next = dir->bad;
  dir->bad = b;
}

/* Finds the image with that name, and opens it unless it is open. */
static struct dir_image *
enter (struct dir *dir, const char *name)
{
  struct dir_image *image;
  int r, why;

  if (!is_name (name)) {
    no_image (name);
    return NULL;
  }
  {
    LOCK_FOR_BLOCK (&dir->lock);

    while ((image = find (dir, name)) != NULL) {
      if (image->state == OPEN) {
        image->users++;
        return image;
      }
      if (await_change (dir, image) == -1)
        return NULL;
    }
    image = new_image (dir, name);
    if (image == NULL)
      return NULL;
    image->next = dir->images;
    dir->images = image;
  }
  r = open_image (dir, image);
  why = errno;
  {
    LOCK_FOR_BLOCK (&dir->lock);

    if (r == 0) {
      image->users = 1;
      image->state = OPEN;
      forget_bad (dir, name);
      pthread_cond_broadcast (&dir->changed);
      return image;
    }
    take_out (dir, image, storage_link_is_wanted (&dir->options.link) ? why : 0);
  }
  errno = why;
  return NULL;
}

void
dir_refused (struct dir *dir, const char *export, const char *why)
{
  CLEANUP_FREE char *name = strndup (export, strcspn (export, "/"));
  struct disk_state state = { .health = DISK_REFUSED };

  snprintf (state.why, sizeof state.why, "%s", why);
  LOCK_FOR_BLOCK (&dir->lock);
  /* (Unless another client has been luckier.) */
  if (name && find (dir, name) == NULL)
    keep_bad (dir, name, &state);
}

struct dir_image *
dir_enter (struct dir *dir, const char *name, const char **export)
{
  const size_t len = strcspn (name, "/");
  CLEANUP_FREE char *image = NULL;

  if (len == 0 || (name[len] != '\0' && name[len + 1] == '\0')) {
    report_error ("the client must choose an image by its export name (nbdinfo --list "
                  "shows them)");
    errno = ENOENT;
    return NULL;
  }
  image = strndup (name, len);
  if (image == NULL) {
    report_error ("strndup: %m");
    return NULL;
  }
  *export = name + len + (name[len] != '\0');
  return enter (dir, image);
}

/* Must it stay open without a client?  Called with the lock held. */
static bool
must_stay (struct dir_image *image)
{
  const bool must = disk_lacks_space (image->disk);

  if (must && !image->stays)
    report_error ("%s: stays open, because there was no space for what clients have "
                  "written", image->path);
  image->stays = must;
  return must;
}

/* Returns true if the caller must close the image.  Called with the lock held. */
static bool
leaves_last (struct dir *dir, struct dir_image *image)
{
  struct disk_stats stats;

  if (--image->users > 0 || must_stay (image))
    return false;
  image->state = CLOSING;
  /* Both in one step, so that its statistics are counted exactly once at any time.
   * Nothing else uses the disk, so this does not wait, and nor did must_stay. */
  disk_get_stats (image->disk, &stats);
  disk_stats_end (&stats);
  disk_add_stats (&dir->closed, &stats);
  return true;
}

void
dir_leave (struct dir *dir, struct dir_image *image)
{
  struct disk_state state;
  bool settles = false;
  int r;

  do {
    /* It stayed open, and perhaps need not any more.  (It still has a user then.) */
    if (settles)
      disk_settle (image->disk);
    LOCK_FOR_BLOCK (&dir->lock);
    settles = !settles && image->users == 1 && disk_may_settle (image->disk);
    if (!settles && !leaves_last (dir, image))
      return;
  } while (settles);
  disk_get_state (image->disk, &state);
  r = disk_close (image->disk);
  report_debug ("%s: closed", image->path);
  {
    LOCK_FOR_BLOCK (&dir->lock);

    dir->failed |= r == -1;
    if (r == -1 && state.why[0] == '\0') {
      state.health = DISK_FAILED;
      strcpy (state.why, "it could not be closed properly");
    }
    keep_bad (dir, image->name, &state);
    take_out (dir, image, 0);
  }
}

void
dir_keep (struct dir *dir, struct dir_image *image)
{
  LOCK_FOR_BLOCK (&dir->lock);

  image->users++;
}

struct disk *
dir_disk (struct dir_image *image)
{
  return image->disk;
}

const char *
dir_name (const struct dir_image *image)
{
  return image->name;
}

/* The images that are open now: an array of *N, to be given to leave_all.  They get a
 * user, so that the caller can do what takes long without the lock.  (Without memory,
 * some are left out.)  Called with the lock held. */
static struct dir_image **
enter_all (struct dir *dir, size_t *n)
{
  struct dir_image *image, **all = NULL, **p;

  *n = 0;
  for (image = dir->images; image; image = image->next)
    if (image->state == OPEN && (p = realloc (all, (*n + 1) * sizeof *p)) != NULL) {
      all = p;
      all[(*n)++] = image;
      image->users++;
    }
  return all;
}

static void
leave_all (struct dir *dir, struct dir_image **all, size_t n)
{
  for (size_t i = 0; i < n; i++)
    dir_leave (dir, all[i]);
  free (all);
}

/* A copy of number I of the list.  NULL: there are no more, or there is no memory. */
static struct bad *
copy_bad (struct dir *dir, size_t i)
{
  LOCK_FOR_BLOCK (&dir->lock);
  const struct bad *b = dir->bad;
  struct bad *copy;

  while (b && i-- > 0)
    b = b->next;
  copy = b ? malloc (sizeof *b + strlen (b->name) + 1) : NULL;
  return copy ? memcpy (copy, b, sizeof *b + strlen (b->name) + 1) : NULL;
}

void
dir_each_bad (struct dir *dir, dir_bad_fn fn, void *opaque)
{
  struct bad *b;

  for (size_t i = 0; (b = copy_bad (dir, i)) != NULL; i++) {
    fn (opaque, b->name, &b->state);
    free (b);
  }
}

void
dir_get_stats (struct dir *dir, struct disk_stats *stats)
{
  struct dir_image **all;
  struct disk_stats one;
  size_t n;

  {
    LOCK_FOR_BLOCK (&dir->lock);

    *stats = dir->closed;
    all = enter_all (dir, &n);
  }
  /* This may wait while the last writer leaves a disk. */
  for (size_t i = 0; i < n; i++) {
    disk_get_stats (all[i]->disk, &one);
    disk_add_stats (stats, &one);
  }
  leave_all (dir, all, n);
  map_get_stats (dir->map, &stats->map);
}

int
dir_each (struct dir *dir, dir_fn fn, void *opaque)
{
  struct dir_image **all;
  size_t n;
  int r = 0;

  {
    LOCK_FOR_BLOCK (&dir->lock);

    all = enter_all (dir, &n);
  }
  for (size_t i = 0; i < n && r == 0; i++)
    r = fn (opaque, all[i]->name, all[i]->disk);
  leave_all (dir, all, n);
  return r;
}

static int
hang_up (void *opaque, const char *name, struct disk *disk)
{
  (void) opaque, (void) name;
  disk_hang_up (disk);
  return 0;
}

void
dir_hang_up (struct dir *dir)
{
  dir_each (dir, hang_up, NULL);
}
