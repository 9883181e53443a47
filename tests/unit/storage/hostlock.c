/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Image locks: which bytes each role locks, which roles exclude each other, what the
 * message says, and that our locks and those of QEMU's tools respect each other.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "storage/storage.h"
#include "lib/stubs.h"

static char dir[] = "hostlock-XXXXXX";
static char path[PATH_MAX];

static struct storage *
open_image (bool writable)
{
  const struct storage_options opts = { .try_writable = writable };
  struct storage *f;

  CHECK (storage_open (path, &opts, &f) == 0);
  return f;
}

/* Is some byte of the file locked by anyone? */
static bool
locked (int fd, int byte)
{
  struct flock fl = {
    .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1,
  };

  CHECK (fcntl (fd, F_OFD_GETLK, &fl) == 0);
  return fl.l_type != F_UNLCK;
}

/* Exactly BYTES (ended by 0) are locked. */
static void
check_bytes (const int *bytes)
{
  int fd = open (path, O_RDWR | O_CLOEXEC);

  CHECK (fd >= 0);
  for (int i = 0; i < 300; i++) {
    bool expected = false;

    for (int j = 0; bytes[j] != 0; j++)
      expected = expected || bytes[j] == i;
    CHECK (locked (fd, i) == expected);
  }
  close (fd);
}

/* ROLE can't be had, and the message says so with TEXT in it. */
static void
check_refused (struct storage *f, enum storage_lock role, const char *text)
{
  unsigned long errors = error_count ();

  quiet_errors = true;
  CHECK (storage_lock (f, role) == -1);
  /* This process itself can be in the way. */
  CHECK (errno == (strstr (last_error (), "at the same time") ? EDEADLK : EBUSY));
  quiet_errors = false;
  CHECK (error_count () == errors + 1);
  CHECK (strstr (last_error (), path) != NULL);
  if (strstr (last_error (), text) == NULL) {
    fprintf (stderr, "not in \"%s\": %s\n", last_error (), text);
    abort ();
  }
}

static const int none[] = { 0 };
static const int reader[] = { 100, 201, 203, 0 };
static const int writer[] = { 100, 101, 103, 201, 203, 0 };
static const int data_reader[] = { 100, 203, 0 };
static const int data_writer[] = { 100, 101, 103, 203, 0 };

static void
test_bytes (void)
{
  struct storage *f = open_image (true);

  check_bytes (none);
  CHECK (storage_lock (f, STORAGE_READER) == 0);
  check_bytes (reader);
  CHECK (storage_lock (f, STORAGE_WRITER) == 0);
  check_bytes (writer);
  CHECK (storage_lock (f, STORAGE_WRITER) == 0);
  check_bytes (writer);
  CHECK (storage_lock (f, STORAGE_READER) == 0);
  check_bytes (reader);
  CHECK (storage_lock (f, STORAGE_UNLOCKED) == 0);
  check_bytes (none);
  CHECK (storage_lock (f, STORAGE_WRITER) == 0);
  storage_close (f);
  check_bytes (none);

  /* A reader's locks need no more than a file that can be read. */
  f = open_image (false);
  CHECK (storage_lock (f, STORAGE_READER) == 0);
  check_bytes (reader);
  storage_close (f);
}

static void
test_exclusion (void)
{
  struct storage *a = open_image (true), *b = open_image (true);

  /* Two openings of one file exclude each other, in one process, too. */
  CHECK (storage_lock (a, STORAGE_WRITER) == 0);
  check_refused (b, STORAGE_WRITER, "cannot get the \"write\" lock: ");
  check_refused (b, STORAGE_READER, "cannot get the shared \"write\" lock");
  if (access ("/proc/self/fdinfo/0", R_OK) == 0)
    CHECK (strstr (last_error (), "would be read and written at the same time") != NULL);
  check_bytes (writer);

  CHECK (storage_lock (a, STORAGE_READER) == 0);
  CHECK (storage_lock (b, STORAGE_READER) == 0);
  check_bytes (reader);

  /* A change of role that fails leaves the old role. */
  check_refused (a, STORAGE_WRITER, "\"write\" lock");
  check_bytes (reader);
  check_refused (b, STORAGE_WRITER, "\"write\" lock");
  check_bytes (reader);
  CHECK (storage_lock (b, STORAGE_UNLOCKED) == 0);
  check_bytes (reader);
  CHECK (storage_lock (a, STORAGE_WRITER) == 0);
  check_refused (b, STORAGE_WRITER, "\"write\" lock");
  storage_close (a);
  CHECK (storage_lock (b, STORAGE_WRITER) == 0);
  storage_close (b);
}

/* An external data file has one writer or any number of readers, too, but does not mind
 * those who write and don't resize. */
static void
test_data_file (void)
{
  const struct storage_options options = {
    .try_writable = true, .lock = true, .data_file = true,
  };
  struct storage *a, *b;

  CHECK (storage_open (path, &options, &a) == 0);
  check_bytes (data_reader);
  CHECK (storage_lock (a, STORAGE_DATA_WRITER) == 0);
  check_bytes (data_writer);
  b = open_image (true);
  check_refused (b, STORAGE_DATA_WRITER, "\"resize\" lock");
  check_refused (b, STORAGE_DATA_READER, "cannot get the shared \"resize\" lock");
  check_refused (b, STORAGE_READER, "shared \"write\" lock");
  CHECK (storage_lock (a, STORAGE_DATA_READER) == 0);
  check_bytes (data_reader);
  CHECK (storage_lock (b, STORAGE_DATA_READER) == 0);
  check_refused (a, STORAGE_DATA_WRITER, "\"resize\" lock");
  check_bytes (data_reader);
  storage_close (b);
  storage_close (a);
  check_bytes (none);
}

/* Another process with a classic lock, of which the kernel tells the PID. */
static void
test_classic_lock (void)
{
  struct storage *f = open_image (true);
  char holder[64], byte;
  int ready[2], hold[2];
  pid_t pid;

  CHECK (pipe (ready) == 0 && pipe (hold) == 0);
  pid = fork ();
  CHECK (pid >= 0);
  if (pid == 0) {
    struct flock fl = {
      .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 201, .l_len = 1,
    };
    int fd = open (path, O_RDONLY);

    close (hold[1]);
    if (fd == -1 || fcntl (fd, F_SETLK, &fl) == -1 ||
        write (ready[1], "x", 1) != 1 || read (hold[0], &byte, 1) != 0)
      _exit (1);
    _exit (0);
  }
  close (hold[0]);
  CHECK (read (ready[0], &byte, 1) == 1);
  snprintf (holder, sizeof holder, "(held by PID %ld, ", (long) pid);
  check_refused (f, STORAGE_WRITER, holder);
  CHECK (storage_lock (f, STORAGE_READER) == 0);
  close (hold[1]);
  close (ready[0]);
  close (ready[1]);
  CHECK (waitpid (pid, NULL, 0) == pid);
  CHECK (storage_lock (f, STORAGE_WRITER) == 0);
  storage_close (f);
}

/* --- QEMU --- */

/* Runs a command on the image; its output, both streams, is in OUTPUT. */
static int
run (const char *command, char *output, size_t size)
{
  char line[PATH_MAX + 200];
  size_t n;
  FILE *fp;

  snprintf (line, sizeof line, command, path);
  fp = popen (line, "r");
  CHECK (fp != NULL);
  n = fread (output, 1, size - 1, fp);
  output[n] = '\0';
  return pclose (fp);
}

/* QEMU's tools see what we hold. */
static void
test_qemu_sees_us (void)
{
  static const char *const readers[] = {
    "qemu-img info '%s' 2>&1", "qemu-img check '%s' 2>&1",
    "qemu-io -r -f qcow2 -c 'read 0 512' '%s' 2>&1",
  };
  static const char *const writers[] = {
    "qemu-io -f qcow2 -c 'write 0 512' '%s' 2>&1",
    "qemu-img resize -f qcow2 '%s' 8M 2>&1",
  };
  struct storage *f = open_image (true);
  char output[4096];

  for (int role = STORAGE_UNLOCKED; role <= STORAGE_WRITER; role++) {
    CHECK (storage_lock (f, role) == 0);
    for (int i = 0; i < 3; i++) {
      bool ok = run (readers[i], output, sizeof output) == 0;

      CHECK (ok == (role != STORAGE_WRITER));
      if (!ok)
        CHECK (strstr (output, "Failed to get shared \"write\" lock"));
    }
    for (int i = 0; i < 2; i++) {
      bool ok = run (writers[i], output, sizeof output) == 0;

      CHECK (ok == (role == STORAGE_UNLOCKED));
      if (!ok)
        CHECK (strstr (output, "Failed to get \"write\" lock"));
    }
    CHECK (run ("qemu-img info -U '%s' 2>&1", output, sizeof output) == 0);
  }
  storage_close (f);
}

/* Starts qemu-io on the image and waits until it holds byte 100.  It ends when
 * the pipe *STDIN_FD is closed.
 */
static pid_t
start_qemu_io (const char *option, int *stdin_fd)
{
  const struct timespec pause = { .tv_nsec = 10000000 };
  int fds[2], fd = open (path, O_RDWR | O_CLOEXEC);
  pid_t pid;

  CHECK (fd >= 0 && pipe2 (fds, O_CLOEXEC) == 0);
  pid = fork ();
  CHECK (pid >= 0);
  if (pid == 0) {
    int null = open ("/dev/null", O_WRONLY);

    dup2 (fds[0], 0);
    dup2 (null, 1);
    execlp ("qemu-io", "qemu-io", "-f", "qcow2", option, path, (char *) NULL);
    _exit (127);
  }
  close (fds[0]);
  *stdin_fd = fds[1];
  /* It tests before it settles: byte 203 is among the last that it takes. */
  while (!locked (fd, 100) || !locked (fd, 203)) {
    CHECK (waitpid (pid, NULL, WNOHANG) == 0);
    nanosleep (&pause, NULL);
  }
  close (fd);
  return pid;
}

static void
test_we_see_qemu (void)
{
  struct storage *f = open_image (true);
  char holder[64];
  int stdin_fd;
  pid_t pid;

  pid = start_qemu_io ("-dunmap", &stdin_fd);   /* a writer */
  snprintf (holder, sizeof holder, "(held by PID %ld, qemu-io)", (long) pid);
  check_refused (f, STORAGE_WRITER, "\"write\" lock");
  check_refused (f, STORAGE_READER, "shared \"write\" lock");
  if (access ("/proc/self/fdinfo/0", R_OK) == 0)
    CHECK (strstr (last_error (), holder) != NULL);
  close (stdin_fd);
  CHECK (waitpid (pid, NULL, 0) == pid);

  pid = start_qemu_io ("-r", &stdin_fd);        /* a reader */
  check_refused (f, STORAGE_WRITER, "cannot get the \"write\" lock");
  CHECK (storage_lock (f, STORAGE_READER) == 0);
  check_refused (f, STORAGE_WRITER, "cannot get the \"write\" lock");
  close (stdin_fd);
  CHECK (waitpid (pid, NULL, 0) == pid);
  CHECK (storage_lock (f, STORAGE_WRITER) == 0);
  storage_close (f);
}

int
main (void)
{
  char cwd[PATH_MAX / 2], output[1000];
  int fd;

  CHECK (mkdtemp (dir) != NULL);
  CHECK (getcwd (cwd, sizeof cwd) != NULL);
  snprintf (path, sizeof path, "%s/%s/image", cwd, dir);
  fd = open (path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  CHECK (fd >= 0);
  close (fd);

  test_bytes ();
  test_exclusion ();
  test_data_file ();
  test_classic_lock ();
  if (run ("qemu-img create -q -f qcow2 '%s' 4M 2>&1 && qemu-io --version 2>&1",
           output, sizeof output) == 0) {
    test_qemu_sees_us ();
    test_we_see_qemu ();
  }
  else
    printf ("no qemu-img or qemu-io: only our own locks were tested\n");

  unlink (path);
  CHECK (rmdir (dir) == 0);
  return 0;
}
