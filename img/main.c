/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nbdkit-qcow2-img: qemu-img's commands for qcow2 images, on the core.
 *
 * This file has the table of the commands, and runs one.  A file for each family of
 * commands (info.c, check.c ...) reads the options, calls the core, and prints what the
 * core has found out.
 *
 * A link to the program that is called nbdkit-qcow2-NAME runs the command NAME.
 *
 * Errors are reported where they occur, as in the core: a line each (words.c).  Exit
 * statuses come from results and errno, never from the text of a message.
 *
 * A signal that stops a long job has it come to an orderly end (progress.c); then this
 * process ends by the same signal, so that a shell knows.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/report.h"
#include "img/command.h"
#include "img/live.h"
#include "img/progress.h"

static const struct command *const commands[] = {
  &advise_command,
  &amend_command,
  &apply_command,
  &backup_command,
  &bench_command,
  &bitmap_command,
  &check_command,
  &commit_command,
  &compare_command,
  &convert_command,
  &create_command,
  &dd_command,
  &info_command,
  &map_command,
  &measure_command,
  &rebase_command,
  &resize_command,
  &restore_command,
  &snapshot_command,
  &top_command,
  &validate_command,
  NULL
};

/* If they are closed, files would get their numbers, and messages. */
static int
open_standard_descriptors (void)
{
  int fd;

  do
    fd = open ("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO);
  return fd == -1 ? -1 : close (fd);
}

/* A write beyond the maximum size of a file (ulimit -f) shall only fail. */
static void
do_nothing (int sig)
{
  (void) sig;
}

static void
set_signals (void)
{
  const struct sigaction ours = { .sa_handler = do_nothing, .sa_flags = SA_RESTART };

  sigaction (SIGXFSZ, &ours, NULL);
}

static const struct command *
find_command (const char *name)
{
  for (unsigned i = 0; commands[i]; i++)
    if (strcmp (commands[i]->name, name) == 0)
      return commands[i];
  return NULL;
}

/* The command that the program's own name says, or NULL. */
static const struct command *
command_called (const char *path)
{
  static const char prefix[] = "nbdkit-qcow2-";
  const char *name = path ? strrchr (path, '/') : NULL;
  const struct command *c = NULL;

  name = name ? name + 1 : path;
  if (name && strncmp (name, prefix, sizeof prefix - 1) == 0)
    c = find_command (name + sizeof prefix - 1);
  if (c)
    called = name;
  return c;
}

static int output_lost;         /* of the command that runs */
static const char *control;     /* --control SOCKET, or NULL */

/* Returns the exit status. */
static int
run_command (const struct command *command, char **words)
{
  struct arguments a;
  int status = command->usage ? command->usage : EXIT_FAILURE;

  output_lost = command->output_lost;
  words_are_for (command);
  if (arguments_parse (&a, command, words) == 0) {
    if (is_given (&a, &option_help)) {
      help_command (command);
      status = EXIT_SUCCESS;
    }
    else if (arguments_check (&a) == 0) {
      if (control == NULL)
        status = command->run (&a);
      else if (live_run (&a, control) == EXIT_SUCCESS)
        status = EXIT_SUCCESS;
    }
  }
  arguments_free (&a);
  return status;
}

/* WORDS: the program's own name, and those behind it. */
static int
run (char **words)
{
  const struct command *command = command_called (words[0]);
  const char *word = words[0] ? words[1] : NULL;

  if (word && (strcmp (word, "--version") == 0 || strcmp (word, "-V") == 0)) {
    printf ("%s %s\n", called, PACKAGE_VERSION);
    return EXIT_SUCCESS;
  }
  if (command)
    return run_command (command, words + 1);
  if (word && strncmp (word, "--control=", 10) == 0) {
    control = word + 10;
    word = *++words ? words[1] : NULL;
  }
  else if (word && strcmp (word, "--control") == 0 && words[2]) {
    control = words[2];
    words += 2;
    word = words[1];
  }
  if (word == NULL || strcmp (word, "--control") == 0) {
    report_error ("no command was given: see %s --help", PROGRAM);
    return EXIT_FAILURE;
  }
  if (strcmp (word, "--help") == 0 || strcmp (word, "-h") == 0 ||
      strcmp (word, "help") == 0) {
    help_all (commands);
    return EXIT_SUCCESS;
  }
  command = find_command (word);
  if (command)
    return run_command (command, words + 2);
  report_error ("unknown command '%s': see %s --help", word, PROGRAM);
  return EXIT_FAILURE;
}

int
main (int argc, char **argv)
{
  int status;

  (void) argc;
  if (open_standard_descriptors () == -1)
    return EXIT_FAILURE;
  set_signals ();
  status = run (argv);
  errno = 0;
  if (fflush (stdout) == EOF || ferror (stdout)) {
    report_error ("stdout: %s", errno ? strerror (errno) : "cannot be written");
    status = output_lost ? output_lost : status ? status : EXIT_FAILURE;
  }
  if (progress_signal ())
    raise (progress_signal ());
  /* Nothing is left to be freed that matters. */
  _exit (status);
}
