/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is a command, and what did the user say?  See arguments.c and main.c.
 */

#ifndef QCOW2_IMG_COMMAND_H
#define QCOW2_IMG_COMMAND_H

#include <stdbool.h>

#define PROGRAM "nbdkit-qcow2-img"

struct command;

/* How the user has called it: PROGRAM, or nbdkit-qcow2-NAME, which runs the command NAME.
 * Messages begin with it; "": with nothing. */
extern const char *called;
/* Messages propose an option only if the command that runs has it: see words.c. */
extern void words_are_for (const struct command *);

/* -LETTER, --NAME [VALUE]. */
struct option {
  char letter;                  /* 0: none */
  const char *name;             /* NULL: none */
  const char *value;            /* what --help calls its value: "FILE", or all values that
                                   it can have: "human|json".  NULL: it has none */
  const char *text;             /* for --help */
};

struct arguments;
struct live;

/* NAME [OPTION...] OPERANDS. */
struct command {
  const char *name;
  const char *operands;         /* for --help */
  const char *text;             /* likewise; up to the first full stop or colon it is a
                                   summary */
  const struct option *const *options;  /* NULL ends the list; --help is added to all */
  unsigned least, most;         /* operands that are possible */
  bool last_is_operand;         /* whatever it begins with: resize IMAGE -SIZE */
  int usage;                    /* exit status of wrong usage; 0: 1 */
  int output_lost;              /* the same if what was printed cannot be written */
  /* Returns the exit status.  Errors were reported. */
  int (*run) (const struct arguments *);
  /* On a disk in use (live.h), with these options only.  NULL: that is not possible. */
  int (*live) (const struct arguments *, struct live *);
  const struct option *const *live_options;
  bool finds_disks;             /* then LIVE says which disks are meant: live_use */
};

/* --- what the user said --- */

struct given {
  const struct option *option;
  const char *value;            /* NULL: it has none */
};

/* The strings are those of the command line. */
struct arguments {
  const struct command *command;
  const char **operands;
  unsigned nr_operands;
  struct given *given;          /* in the order given */
  unsigned nr_given;
};

/* Takes WORDS, of which the last one is followed by NULL.  0, or -1 (reported). */
extern int arguments_parse (struct arguments *, const struct command *, char **words);
extern void arguments_free (struct arguments *);
/* The number of operands is possible.  -1: reported. */
extern int arguments_check (const struct arguments *);

/* Was this option given? */
extern bool is_given (const struct arguments *, const struct option *);
/* Its last value, or NULL. */
extern const char *value_of (const struct arguments *, const struct option *);
/* Each of its values, in order: *I is 0 at first.  NULL: there are no more. */
extern const char *next_value (const struct arguments *, const struct option *,
                               unsigned *i);
/* How a message names it: "-f" or "--output". */
extern const char *option_word (const struct option *, char buf[32]);

/* Prints what COMMAND --help says, and what --help says of all commands (NULL ends the
 * list). */
extern void help_command (const struct command *);
extern void help_all (const struct command *const *commands);

/* --- options that many commands have --- */

extern const struct option option_help, option_format, option_quiet, option_force_share,
  option_object, option_image_opts, option_allow_uri, option_output, option_svg,
  option_cache, option_src_cache, option_progress;

/* Those of an image that exists: see imagefile.h. */
#define IMAGE_OPTIONS &option_object, &option_image_opts, &option_allow_uri

/* --- the commands, by their files --- */

extern const struct command advise_command;
extern const struct command apply_command;
extern const struct command backup_command;
extern const struct command bench_command;
extern const struct command info_command;
extern const struct command check_command;
extern const struct command compare_command;
extern const struct command map_command;
extern const struct command convert_command;
extern const struct command create_command;
extern const struct command dd_command;
extern const struct command amend_command;
extern const struct command bitmap_command;
extern const struct command commit_command;
extern const struct command measure_command;
extern const struct command rebase_command;
extern const struct command resize_command;
extern const struct command restore_command;
extern const struct command snapshot_command;
extern const struct command top_command;
extern const struct command validate_command;

#endif /* QCOW2_IMG_COMMAND_H */
