/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What did the user say?
 *
 * As GNU getopt_long reads it, and so qemu-img: options and operands in any order, until
 * "--"; long names can be abbreviated; the value of an option is what follows its letter
 * or "=", or the next word.  (getopt itself prints messages of its own kind, and knows
 * neither choices nor operands that begin with "-".)
 *
 * A command can ask for options in the order in which they were given.  It names them by
 * the address of their description, so that none can be misspelled.
 *
 * Locks: none.
 */

#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/memory.h"
#include "util/report.h"
#include "img/command.h"

const struct option option_help = { 'h', "help", NULL, "show this text" };

static const char *
option_named (const struct option *o, char buf[32], bool letter_first)
{
  if (o->letter && (letter_first || o->name == NULL))
    snprintf (buf, 32, "-%c", o->letter);
  else
    snprintf (buf, 32, "--%s", o->name);
  return buf;
}

const char *
option_word (const struct option *o, char buf[32])
{
  return option_named (o, buf, true);
}

/* --- one option --- */

/* Is WORD one of the words of CHOICES, which "|" separates? */
static bool
is_choice (const char *choices, const char *word)
{
  const size_t len = strlen (word);

  for (const char *c = choices; c; c = strchr (c, '|') ? strchr (c, '|') + 1 : NULL)
    if (strncmp (c, word, len) == 0 && (c[len] == '|' || c[len] == '\0'))
      return true;
  return false;
}

static int
take (struct arguments *a, const struct option *o, const char *value)
{
  char buf[32];

  if (MEMORY_APPEND (a->given, a->nr_given) == -1)
    return -1;
  a->given[a->nr_given++] = (struct given) { o, value };
  if (value == NULL || strchr (o->value, '|') == NULL || is_choice (o->value, value))
    return 0;
  report_error ("%s: '%s' is not one of %s", option_word (o, buf), value, o->value);
  return -1;
}

/* Takes the value from the next word. */
static int
take_next (struct arguments *a, const struct option *o, char ***words)
{
  char buf[32];

  if (**words)
    return take (a, o, *(*words)++);
  report_error ("option %s requires a value", option_word (o, buf));
  return -1;
}

/* The Nth option of the command: --help is the last one.  NULL: there are no more. */
static const struct option *
nth_option (const struct command *c, unsigned n)
{
  unsigned i = 0;

  while (i < n && c->options[i])
    i++;
  if (c->options[i])
    return c->options[i];
  return i == n ? &option_help : NULL;
}

static const struct option *
find_long (const struct command *c, const char *name, size_t len)
{
  const struct option *o, *found = NULL;
  bool ambiguous = false;

  for (unsigned i = 0; (o = nth_option (c, i)); i++) {
    if (o->name == NULL || strncmp (o->name, name, len) != 0)
      continue;
    if (o->name[len] == '\0')
      return o;
    ambiguous = found != NULL;
    found = o;
  }
  if (found && !ambiguous)
    return found;
  report_error ("%s option --%.*s", found ? "ambiguous" : "unknown", (int) len, name);
  return NULL;
}

/* WORD is behind "--". */
static int
parse_long (struct arguments *a, const char *word, char ***words)
{
  const size_t len = strcspn (word, "=");
  const struct option *o = find_long (a->command, word, len);

  if (o == NULL)
    return -1;
  if (o->value)
    return word[len] ? take (a, o, word + len + 1) : take_next (a, o, words);
  if (word[len] == '\0')
    return take (a, o, NULL);
  report_error ("option --%s has no value", o->name);
  return -1;
}

/* WORD is behind "-": letters, the last of which can have a value. */
static int
parse_short (struct arguments *a, const char *word, char ***words)
{
  for (; *word; word++) {
    const struct option *o;
    unsigned i = 0;

    while ((o = nth_option (a->command, i)) && o->letter != *word)
      i++;
    if (o == NULL) {
      report_error ("unknown option -%c", *word);
      return -1;
    }
    if (o->value)
      return word[1] ? take (a, o, word + 1) : take_next (a, o, words);
    if (take (a, o, NULL) == -1)
      return -1;
  }
  return 0;
}

/* --- all of them --- */

static int
parse (struct arguments *a, char **words)
{
  while (*words) {
    const char *word = *words++;
    int r = 0;

    if (strcmp (word, "--") == 0) {
      while (*words)
        a->operands[a->nr_operands++] = *words++;
      return 0;
    }
    if (strncmp (word, "--", 2) == 0)
      r = parse_long (a, word + 2, &words);
    else if (word[0] == '-' && word[1] != '\0')
      r = parse_short (a, word + 1, &words);
    else
      a->operands[a->nr_operands++] = word;
    if (r == -1)
      return -1;
  }
  return 0;
}

int
arguments_parse (struct arguments *a, const struct command *command, char **words)
{
  char *last = NULL;
  unsigned n = 0;
  int r;

  while (words[n])
    n++;
  *a = (struct arguments) {
    .command = command, .operands = memory_new (n + 1, sizeof *a->operands)
  };
  if (a->operands == NULL)
    return -1;
  if (command->last_is_operand && n > 1) {
    last = words[n - 1];
    words[n - 1] = NULL;
  }
  r = parse (a, words);
  if (last) {
    a->operands[a->nr_operands++] = last;
    words[n - 1] = last;
  }
  return r;
}

void
arguments_free (struct arguments *a)
{
  free (a->operands);
  free (a->given);
}

const char *called = PROGRAM;

/* What the user types for it. */
static const char *
words_of (const struct command *c, char buf[64])
{
  const bool own = strcmp (called, PROGRAM) != 0;

  snprintf (buf, 64, "%s%s%s", called, own ? "" : " ", own ? "" : c->name);
  return buf;
}

int
arguments_check (const struct arguments *a)
{
  const struct command *c = a->command;
  char buf[64];

  if (a->nr_operands >= c->least && a->nr_operands <= c->most)
    return 0;
  report_error ("usage: %s [OPTION...] %s", words_of (c, buf), c->operands);
  return -1;
}

const char *
value_of (const struct arguments *a, const struct option *o)
{
  for (unsigned i = a->nr_given; i > 0; i--)
    if (a->given[i - 1].option == o)
      return a->given[i - 1].value;
  return NULL;
}

bool
is_given (const struct arguments *a, const struct option *o)
{
  for (unsigned i = 0; i < a->nr_given; i++)
    if (a->given[i].option == o)
      return true;
  return false;
}

const char *
next_value (const struct arguments *a, const struct option *o, unsigned *i)
{
  while (*i < a->nr_given) {
    const struct given *g = &a->given[(*i)++];

    if (g->option == o)
      return g->value;
  }
  return NULL;
}

/* --- help --- */

#define WIDTH 90                /* columns */
#define COLUMN 28               /* where the texts of options begin */

/* Prints TEXT from column AT on; its lines begin at column INDENT. */
static void
wrap (const char *text, int at, int indent)
{
  for (const char *p = text; *p; ) {
    const int len = strcspn (p, " ");

    if (at > indent && at + 1 + len > WIDTH) {
      printf ("\n%*s", indent, "");
      at = indent;
    }
    else if (at > indent) {
      putchar (' ');
      at++;
    }
    printf ("%.*s", len, p);
    at += len;
    p += len;
    p += strspn (p, " ");
  }
  putchar ('\n');
}

static void
help_option (const struct option *o)
{
  char letter[8] = "";
  int n;

  if (o->letter)
    snprintf (letter, sizeof letter, "-%c%s", o->letter, o->name ? ", " : "");
  n = printf ("  %s%s%s%s%s", letter, o->name ? "--" : "", o->name ? o->name : "",
              o->value ? " " : "", o->value ? o->value : "");
  if (n >= COLUMN - 1)
    printf ("\n%*s", COLUMN, "");
  else
    printf ("%*s", COLUMN - n, "");
  wrap (o->text, COLUMN, COLUMN);
}

void
help_command (const struct command *c)
{
  const struct option *o;
  char buf[64];

  printf ("usage: %s [OPTION...] %s\n\n", words_of (c, buf), c->operands);
  wrap (c->text, 0, 0);
  putchar ('\n');
  for (unsigned i = 0; (o = nth_option (c, i)); i++)
    help_option (o);
  if (c->live)
    printf ("\nOn a disk in use: %s --control SOCKET %s ...\n", PROGRAM, c->name);
}

void
help_all (const struct command *const *commands)
{
  printf ("usage: %s [--control SOCKET] COMMAND [OPTION...] ...\n\n"
          "The commands of qemu-img for qcow2 images, without QEMU:\n\n", PROGRAM);
  for (unsigned i = 0; commands[i]; i++)
    printf ("  %-13s %.*s.\n", commands[i]->name, (int) strcspn (commands[i]->text, ".:"),
            commands[i]->text);
  printf ("\n\"%s COMMAND --help\" describes the options of a command.\n"
          "With --control, a server is asked to run it on a disk in use.\n", PROGRAM);
}
